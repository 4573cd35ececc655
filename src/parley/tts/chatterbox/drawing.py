"""A segment's tokens, by T3."""

from __future__ import annotations

import logging
from contextlib import aclosing

from parley.errors import InferenceError
from parley.tts.chatterbox.limits import Limits
from parley.tts.chatterbox.models import TokenModel
from parley.tts.chatterbox.token_queue import TokenQueue
from parley.tts.t3.messages import SpeechTokensRequest, TokensCompleted
from parley.tts.t3.request import Voice
from parley.waiting import each_within, try_within

_log = logging.getLogger(__name__)

# A model that has lost its way would speak to the limit. Speech takes 1.7 tokens for a letter.
_LONGEST_PER_LETTER = 8
_LONGEST_START = 100


def longest(text: str, limits: Limits) -> int:
    """Tokens that a text may take."""
    return min(limits.max_tokens, _LONGEST_START + _LONGEST_PER_LETTER * len(text))


async def draw(
    model: TokenModel, request: SpeechTokensRequest, voice: Voice, tokens: TokenQueue, limits: Limits
) -> None:
    """Put the tokens of ``request`` into ``tokens``; the model is told to stop if this ends early.

    Raises:
        ParleyError: the model failed or was late.
    """
    done = False
    stream = each_within(model.generate(request, voice), limits.tokens_s, "t3")
    try:
        async with aclosing(stream):
            async for event, drawn in stream:
                if not isinstance(event, TokensCompleted):
                    tokens.put(drawn)
                elif event.finish_reason == "abort":
                    raise InferenceError(f"somebody else stopped {request.request_id}")
                elif event.finish_reason == "length":
                    _log.warning("%s was cut off after %d tokens", request.request_id, event.spoken_tokens)
        done = True
    finally:
        if not done:
            name = request.request_id
            await try_within(model.abort(name), limits.stop_s, f"stopping the tokens of {name}")
    tokens.end()
