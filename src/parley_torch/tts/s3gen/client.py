"""Client of the model ``s3gen``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.inference import DecoupledModel, ModelClient, Tensor
from parley_torch.tts.s3gen.messages import (
    OUTPUTS,
    AudioChunk,
    OpenUtterance,
    PushTokens,
    StopUtterance,
)

VoiceTensors = Mapping[str, Tensor]
"""SPEAKER f32 [192], PROMPT_TOKENS i32 [P], PROMPT_MEL f32 [2P, 80]."""
_TIMEOUT_S = 30.0
_chunks = msgspec.json.Decoder(AudioChunk)


class AudioModel:
    """Tokens in, PCM out. Every failure is raised as a :class:`parley.errors.ParleyError`."""

    def __init__(self, client: ModelClient, model: str = "s3gen") -> None:
        self._model = DecoupledModel(client, model, OUTPUTS, _chunks, timeout_s=_TIMEOUT_S)

    async def synthesize(
        self, message: OpenUtterance, voice: VoiceTensors, tokens: NDArray[np.int32] | None = None
    ) -> AsyncGenerator[tuple[AudioChunk, NDArray[np.int16]], None]:
        """Begin an utterance and stream its audio, until the last piece or :meth:`stop`."""
        inputs = dict(voice) if tokens is None else {**voice, "TOKENS": tokens}
        async with aclosing(self._model.stream(message, inputs)) as responses:
            async for chunk, response in responses:
                yield chunk, response["AUDIO"].reshape(-1)

    async def push(self, message: PushTokens, tokens: NDArray[np.int32]) -> None:
        """Add tokens; await each call before the next, or they may overtake each other."""
        await self._model.send(message, {"TOKENS": tokens} if len(tokens) else {}, timeout_s=_TIMEOUT_S)

    async def stop(self, utterance_id: str) -> None:
        """End an utterance; no audio follows."""
        await self._model.send(StopUtterance(utterance_id=utterance_id), timeout_s=_TIMEOUT_S, frees=True)
