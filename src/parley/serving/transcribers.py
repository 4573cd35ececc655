"""Calls to transcription models that go on while their caller does."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
from numpy.typing import NDArray

from parley.asr.messages import TranscribeReply, TranscribeRequest
from parley.errors import ShuttingDownError
from parley.inference import InferencePort, ModelRequest, struct_tensor, tensor_struct
from parley.serving.loop_thread import LoopThread

_CLOSE_S = 5.0


class PortTranscribers:
    """:class:`parley.asr.streaming.finals.Transcribers` behind a port, on an event loop of its own.

    The port bounds how many calls are under way.
    """

    def __init__(self, port: InferencePort, *, timeout_s: float) -> None:
        """Call through ``port``, which nobody else uses, with ``timeout_s`` for each call."""
        self._port = port
        self._timeout_s = timeout_s
        self._loop = LoopThread("transcribers")
        self._closed = False

    def submit(
        self, model: str, audio: NDArray[np.int16], request: TranscribeRequest
    ) -> Future[TranscribeReply]:
        """Begin to transcribe: i16 ``[n]``, 16 kHz mono."""
        if self._closed:
            refused: Future[TranscribeReply] = Future()
            refused.set_exception(ShuttingDownError(f"no more calls to {model}: the server is stopping"))
            return refused
        return self._loop.submit(self._transcribe(model, audio, request))

    def close(self) -> None:
        """Take no more calls, and stop."""
        self._closed = True
        try:
            self._loop.run(self._port.close(), _CLOSE_S)
        finally:
            self._loop.stop(_CLOSE_S)

    async def _transcribe(
        self, model: str, audio: NDArray[np.int16], request: TranscribeRequest
    ) -> TranscribeReply:
        response = await self._port.infer(
            ModelRequest(
                model,
                {"AUDIO": audio[None], "REQUEST": struct_tensor(request, batched=True)},
                ("REPLY",),
                timeout_s=self._timeout_s,
            )
        )
        return tensor_struct(response["REPLY"], TranscribeReply)
