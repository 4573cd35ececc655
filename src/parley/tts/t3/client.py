"""``t3`` behind an inference port."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.errors import InferenceError
from parley.inference import ModelClient, ModelRequest, Tensor, struct_tensor, tensor_bytes
from parley.tts.t3.messages import (
    AbortTokens,
    SpeechTokensEvent,
    SpeechTokensRequest,
    T3Request,
    TokensCompleted,
)
from parley.tts.t3.request import TokenVoice

MODEL = "t3"
_ABORT_TIMEOUT_S = 5.0
_events: msgspec.json.Decoder[SpeechTokensEvent] = msgspec.json.Decoder(SpeechTokensEvent)


class SpeechTokenModel:
    """Speech tokens from the model ``t3``.

    Args:
        port: the way to the model.
        model: name of the model.
        timeout_s: seconds until the first event, or the next one, is overdue.
    """

    def __init__(self, port: ModelClient, *, model: str = MODEL, timeout_s: float = 30.0) -> None:
        self._port = port
        self._model = model
        self._timeout_s = timeout_s

    async def generate(
        self, request: SpeechTokensRequest, voice: TokenVoice, *, text_tokens: Sequence[int] | None = None
    ) -> AsyncGenerator[tuple[SpeechTokensEvent, NDArray[np.int32]], None]:
        """Stream the utterance's tokens; the last event is ``TokensCompleted``.

        Closing it early does not stop the model: call :meth:`abort`.

        Args:
            request: what to say and how.
            voice: who says it.
            text_tokens: in place of the request's text.

        Raises:
            InvalidInputError: the model does not accept the request.
            InferenceError: the model failed, is overloaded, or did not answer in time.
        """
        tensors: dict[str, Tensor] = {"SPEAKER_EMBEDDING": voice.speaker_embedding.astype(np.float32)}
        # Triton does not take a tensor without elements for one that is there.
        if voice.prompt_tokens.size:
            tensors["PROMPT_TOKENS"] = voice.prompt_tokens.astype(np.int32)
        if text_tokens is not None:
            tensors["TEXT_TOKENS"] = np.array(text_tokens, np.int32)
        completed = False
        async with aclosing(self._port.stream(self._request(request, self._timeout_s, tensors))) as responses:
            async for response in responses:
                event = _read(tensor_bytes(response["EVENT"]))
                completed = isinstance(event, TokensCompleted)
                yield event, response["TOKENS"]
        if not completed:
            raise InferenceError(f"{self._model} ended the utterance without completing it")

    async def abort(self, request_id: str) -> None:
        """Stop ``generate`` of this id within one step of the engine.

        Raises:
            InferenceError: the model could not be told in time.
        """
        request = self._request(AbortTokens(request_id=request_id), _ABORT_TIMEOUT_S, {})
        async with aclosing(self._port.stream(request)) as responses:
            async for _ in responses:
                pass

    def _request(self, message: T3Request, timeout_s: float, tensors: dict[str, Tensor]) -> ModelRequest:
        return ModelRequest(
            self._model,
            {"REQUEST": struct_tensor(message), **tensors},
            ("EVENT", "TOKENS"),
            request_id=message.request_id,
            timeout_s=timeout_s,
            frees=isinstance(message, AbortTokens),
        )


def _read(raw: bytes) -> SpeechTokensEvent:
    try:
        return _events.decode(raw)
    except msgspec.MsgspecError as error:
        raise InferenceError(f"the model sent an event that cannot be read: {error}") from error
