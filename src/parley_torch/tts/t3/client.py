"""Client of the model ``t3``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.errors import InferenceError
from parley.inference import DecoupledModel, ModelClient, Tensor
from parley_torch.tts.t3.messages import (
    AbortTokens,
    SpeechTokensEvent,
    SpeechTokensRequest,
    TokensCompleted,
)
from parley_torch.tts.t3.request import TokenVoice

_ABORT_TIMEOUT_S = 5.0
_events: msgspec.json.Decoder[SpeechTokensEvent] = msgspec.json.Decoder(SpeechTokensEvent)


class SpeechTokenModel:
    """Speech tokens from the model ``t3``.

    ``timeout_s`` limits the wait for the first event and for each next one.
    """

    def __init__(self, client: ModelClient, *, model: str = "t3", timeout_s: float = 30.0) -> None:
        self._model = DecoupledModel(client, model, ("EVENT", "TOKENS"), _events, timeout_s=timeout_s)

    async def generate(
        self, request: SpeechTokensRequest, voice: TokenVoice, *, text_tokens: Sequence[int] | None = None
    ) -> AsyncGenerator[tuple[SpeechTokensEvent, NDArray[np.int32]], None]:
        """Stream the utterance's tokens; the last event is ``TokensCompleted``.

        ``text_tokens`` replace the request's text. Closing the stream early does not stop the model: call
        :meth:`abort`.

        Raises:
            InvalidInputError: the model does not accept the request.
            InferenceError: the model failed, is overloaded, or did not answer in time.
        """
        tensors: dict[str, Tensor] = {"SPEAKER_EMBEDDING": voice.speaker_embedding.astype(np.float32)}
        # For Triton a tensor without elements is missing.
        if voice.prompt_tokens.size:
            tensors["PROMPT_TOKENS"] = voice.prompt_tokens.astype(np.int32)
        if text_tokens is not None:
            tensors["TEXT_TOKENS"] = np.array(text_tokens, np.int32)
        completed = False
        async with aclosing(self._model.stream(request, tensors)) as responses:
            async for event, response in responses:
                completed = isinstance(event, TokensCompleted)
                yield event, response["TOKENS"]
        if not completed:
            raise InferenceError(f"{self._model.name} ended the utterance without completing it")

    async def abort(self, request_id: str) -> None:
        """Stop ``generate`` of this id within one step of the engine.

        Raises:
            InferenceError: the model did not confirm in time.
        """
        await self._model.send(AbortTokens(request_id=request_id), timeout_s=_ABORT_TIMEOUT_S, frees=True)
