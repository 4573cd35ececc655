"""Whole recordings to text.

::

    async with open_server("127.0.0.1:8001") as server, Transcriber(server) as transcriber:
        reply = await transcriber.transcribe(read_speech(Path("meeting.wav"), max_seconds=MAX_SECONDS))
        print(reply.text)

Several may be under way at once; the server batches them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import grpc.aio
import numpy as np
from numpy.typing import NDArray

from parley.asr.messages import TranscribeReply, TranscribeRequest
from parley.engines.registry import ENGLISH
from parley.errors import ModelUnavailableError
from parley.inference import struct_tensor
from parley.languages import primary_language
from parley.names import nearest_first
from parley.triton.grpc_client import GrpcModelClient
from parley_stages.server import ClosedAtTheEnd, StageServer, is_model_ready, request_reply

FOR_RECORDINGS = {
    "parakeet_tdt": "parakeet_transcribe",
    "moonshine": "moonshine_transcribe",
    "whisper": "whisper_transcribe",
    "sherpa_onnx": "sherpa_onnx_transcribe",
}
"""The model for recordings of each that takes streams; ``nemotron_streaming`` has none."""
TRANSCRIBERS = tuple(FOR_RECORDINGS.values())
"""Models for recordings, in the order of preference for English."""
_WEIGHTS = {
    "parakeet_transcribe": "parakeet-tdt-0.6b-v2",
    "moonshine_transcribe": "moonshine-tiny-en",
    "whisper_transcribe": "whisper-base",
    "sherpa_onnx_transcribe": "parakeet-ctc-110m",
}
"""What ``make fetch MODEL=`` brings for each, as the model repository configures them."""
_MULTILINGUAL = "whisper_transcribe"
_READY_S = 5.0
MAX_SECONDS = 24 * 60
"""Longest recording that the server takes, as it is configured."""


async def find_loaded(channel: grpc.aio.Channel, names: Sequence[str], timeout_s: float) -> str:
    """The first of these models that serves; of none the first, so that asking it gives the reason.

    Raises:
        ParleyError: the server cannot be asked.
    """
    for name in names:
        if await is_model_ready(channel, name, min(timeout_s, _READY_S)):
            return name
    return names[0]


async def check_loaded(channel: grpc.aio.Channel, model: str, timeout_s: float) -> None:
    """Find out before the first recording that a chosen model for recordings does not serve.

    Raises:
        ModelUnavailableError: it does not; the text has those that do, the nearest name first.
        ParleyError: the server cannot be asked.
    """
    limit_s = min(timeout_s, _READY_S)
    if await is_model_ready(channel, model, limit_s):
        return
    nearest = nearest_first(model, TRANSCRIBERS)
    ready = [name for name in nearest if await is_model_ready(channel, name, limit_s)]
    raise ModelUnavailableError(
        f"the server does not serve {model}; of the models for recordings it has "
        f"{', '.join(ready) or 'none'}. A model is left out without its weights: "
        f"`make fetch MODEL={_WEIGHTS[model]}` brings them, and the next start of a server whose profile has "
        f"{model} loads them"
    )


class Transcriber(ClosedAtTheEnd):
    """The model for recordings; any number may be under way.

    Args:
        server: where the model is.
        model: its name; None: the first that the server has, for other languages than English one that
            understands them.
        timeout_s: longest wait for a whole transcript (seconds).
    """

    def __init__(self, server: StageServer, *, model: str | None = None, timeout_s: float = 300.0) -> None:
        self._server = server
        self._client = GrpcModelClient(lambda: server.channel)
        self._model = model
        self._timeout_s = timeout_s

    async def model(self, language: str = ENGLISH) -> str:
        """The name of the model for a language."""
        if self._model is not None:
            return self._model
        is_english = primary_language(language) == ENGLISH
        names = sorted(TRANSCRIBERS, key=lambda name: not is_english and name != _MULTILINGUAL)
        return await find_loaded(self._server.channel, names, self._timeout_s)

    async def transcribe(
        self, audio: NDArray[np.int16], request: TranscribeRequest | None = None
    ) -> TranscribeReply:
        """The text of a recording.

        Args:
            audio: i16 ``[n]``, 16 kHz mono, at most :data:`MAX_SECONDS`.
            request: language, phrases and form of the result; None: the defaults.

        Raises:
            InvalidInputError: the recording is empty or too long, or an option is not supported.
            OverloadedError: too much audio waits at the server already.
            ModelUnavailableError: the server has no such model.
            DeadlineExceededError: it took longer than ``timeout_s``.
            InferenceError: the model failed.
        """
        began_s = time.monotonic()
        request = request or TranscribeRequest()
        model = await self.model(request.language)
        left_s = max(0.001, self._timeout_s - (time.monotonic() - began_s))
        message = struct_tensor(request, batched=True)
        inputs = {"AUDIO": audio.reshape(1, -1), "REQUEST": message}
        return await request_reply(self._client, model, inputs, TranscribeReply, left_s)

    async def close(self) -> None:
        """Cancel what is under way."""
        await self._client.close()
