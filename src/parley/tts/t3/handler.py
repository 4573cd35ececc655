"""Answers to the Triton requests of ``t3``."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing

import msgspec
import numpy as np

from parley.errors import InvalidMessageError
from parley.inference import Tensor, struct_tensor, tensor_bytes
from parley.serving.responder import Responder
from parley.tts.t3.messages import AbortTokens, SpeechTokensRequest, T3Request
from parley.tts.t3.request import Voice
from parley.tts.t3.service import SpeechTokenService, Utterance
from parley.tts.t3.vocabulary import SPEAKER_EMBEDDING_SIZE, SPEECH_CODES

_requests: msgspec.json.Decoder[T3Request] = msgspec.json.Decoder(T3Request)


class SpeechTokenHandler:
    """Turns tensors into requests and events into tensors."""

    def __init__(self, service: SpeechTokenService) -> None:
        self._service = service

    async def __call__(self, responder: Responder, inputs: Mapping[str, Tensor]) -> None:
        """Answer one request.

        Raises:
            ParleyError: the request failed; the caller answers with it.
        """
        try:
            request = _requests.decode(tensor_bytes(inputs["REQUEST"]))
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise InvalidMessageError(f"request cannot be read: {error}") from error
        if isinstance(request, AbortTokens):
            await self._service.abort(request.request_id)
            return
        async with aclosing(self._service.generate(_utterance(request, inputs))) as events:
            async for event, tokens in events:
                if not responder.send({"EVENT": struct_tensor(event), "TOKENS": tokens}):
                    return


def _utterance(request: SpeechTokensRequest, inputs: Mapping[str, Tensor]) -> Utterance:
    speaker = inputs.get("SPEAKER_EMBEDDING")
    if speaker is None or speaker.size != SPEAKER_EMBEDDING_SIZE:
        raise InvalidMessageError(f"SPEAKER_EMBEDDING must have {SPEAKER_EMBEDDING_SIZE} numbers")
    if not np.isfinite(speaker).all():
        raise InvalidMessageError("SPEAKER_EMBEDDING is not finite")
    prompt = inputs.get("PROMPT_TOKENS", np.zeros(0, np.int32)).reshape(-1)
    if prompt.size and not 0 <= prompt.min() <= prompt.max() < SPEECH_CODES:
        raise InvalidMessageError(f"PROMPT_TOKENS go from 0 to {SPEECH_CODES - 1}")
    text = inputs.get("TEXT_TOKENS")
    if text is not None and request.text:
        raise InvalidMessageError("both text and TEXT_TOKENS were sent")
    if text is not None and not text.size:
        raise InvalidMessageError("TEXT_TOKENS is empty")
    return Utterance(
        request,
        Voice(speaker.reshape(-1).astype(np.float32), prompt.astype(np.int32)),
        None if text is None else [int(token) for token in text.reshape(-1)],
    )
