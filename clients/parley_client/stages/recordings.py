"""Whole recordings to text, over a connection that other stages use too.

:class:`parley_client.transcription.Transcriber` does the same over a connection of its own.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from parley.asr.messages import TranscribeReply, TranscribeRequest
from parley.inference import ModelRequest, struct_tensor, tensor_struct
from parley.triton.grpc_client import GrpcModelClient
from parley_client.closing import ClosedAtTheEnd
from parley_client.stages.server import StageServer
from parley_client.transcription import TRANSCRIBERS, find_loaded


class Transcription(ClosedAtTheEnd):
    """The model for recordings; any number may be under way.

    Args:
        server: where the model is.
        model: its name; None: that which the server has.
        timeout_s: seconds to wait for a whole transcript.
    """

    def __init__(self, server: StageServer, *, model: str | None = None, timeout_s: float = 300.0) -> None:
        self._server = server
        self._port = GrpcModelClient(lambda: server.channel)
        self._model = model
        self._timeout_s = timeout_s

    async def model(self) -> str:
        """The name of the model."""
        return self._model or await find_loaded(self._server.channel, TRANSCRIBERS, self._timeout_s)

    async def transcribe(
        self, audio: NDArray[np.int16], request: TranscribeRequest | None = None
    ) -> TranscribeReply:
        """What is said in a recording.

        Args:
            audio: i16 ``[n]``, 16 kHz mono, at most :data:`parley_client.transcription.MAX_SECONDS`.
            request: what is wanted; None: the defaults.

        Raises:
            InvalidInputError: the recording is empty or too long, or a wish cannot be fulfilled.
            OverloadedError: too much audio waits at the server already.
            InferenceError: the model failed, is not there, or did not answer in time.
        """
        began_s = time.monotonic()
        model = await self.model()
        left_s = max(0.001, self._timeout_s - (time.monotonic() - began_s))
        response = await self._port.infer(
            ModelRequest(
                model,
                {
                    "AUDIO": audio.reshape(1, -1),
                    "REQUEST": struct_tensor(request or TranscribeRequest(), batched=True),
                },
                ("REPLY",),
                timeout_s=left_s,
            )
        )
        return tensor_struct(response["REPLY"], TranscribeReply)

    async def close(self) -> None:
        """Cancel what is under way."""
        await self._port.close()
