"""``s3gen`` for those who call it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.inference import (
    ModelClient,
    ModelRequest,
    Tensor,
    struct_tensor,
    tensor_struct,
)
from parley.tts.s3gen.messages import (
    OUTPUTS,
    AudioChunk,
    OpenUtterance,
    PushTokens,
    StopUtterance,
)

# Typed here by shape alone: callers need no torch.
VoiceTensors = Mapping[str, Tensor]
"""SPEAKER f32 [192], PROMPT_TOKENS i32 [P], PROMPT_MEL f32 [2P, 80]."""


class AudioModel:
    """Tokens in, PCM out. Every failure is raised as a :class:`parley.errors.ParleyError`.

    Args:
        port: carries the calls.
        model: name of the model.
    """

    def __init__(self, port: ModelClient, model: str = "s3gen") -> None:
        self._port = port
        self._model = model

    async def utter(
        self, message: OpenUtterance, voice: VoiceTensors, tokens: NDArray[np.int32] | None = None
    ) -> AsyncGenerator[tuple[AudioChunk, NDArray[np.int16]], None]:
        """Begin an utterance and receive its audio, until the last piece or :meth:`stop`."""
        inputs = dict(voice) if tokens is None else {**voice, "TOKENS": tokens}
        async with aclosing(self._port.stream(self._request(message, inputs))) as responses:
            async for response in responses:
                yield tensor_struct(response["CHUNK"], AudioChunk), response["AUDIO"].reshape(-1)

    async def push(self, message: PushTokens, tokens: NDArray[np.int32]) -> None:
        """Add tokens; await it before the next, or they may overtake each other."""
        await self._tell(message, {"TOKENS": tokens} if len(tokens) else {})

    async def stop(self, utterance_id: str) -> None:
        """End an utterance; no audio follows."""
        await self._tell(StopUtterance(utterance_id=utterance_id), {})

    async def _tell(self, message: msgspec.Struct, inputs: Mapping[str, Tensor]) -> None:
        async with aclosing(self._port.stream(self._request(message, inputs))) as responses:
            async for _ in responses:
                pass

    def _request(self, message: msgspec.Struct, inputs: Mapping[str, Tensor]) -> ModelRequest:
        return ModelRequest(
            self._model,
            {"REQUEST": struct_tensor(message), **inputs},
            OUTPUTS,
            frees=isinstance(message, StopUtterance),
        )
