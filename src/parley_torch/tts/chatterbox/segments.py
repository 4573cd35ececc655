"""One segment of an utterance: its speech tokens from T3, and their audio from S3Gen."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.errors import InferenceError, SessionNotFoundError
from parley.timeouts import best_effort, iter_with_timeout, with_timeout
from parley_torch.tts.chatterbox.limits import ChatterboxLimits
from parley_torch.tts.s3gen.client import AudioModel, VoiceTensors
from parley_torch.tts.s3gen.messages import OpenUtterance, PushTokens
from parley_torch.tts.t3.client import SpeechTokenModel
from parley_torch.tts.t3.messages import SpeechTokensRequest, TokensCompleted
from parley_torch.tts.t3.request import TokenVoice

_log = logging.getLogger("parley.torch")
_RETRY_S = 0.005
_FADE_S = 0.005
# The most that a text takes before the model counts as derailed. Speech takes 1.7 tokens for a letter.
_TOKENS_PER_LETTER = 8
_EXTRA_TOKENS = 100

Tokens = NDArray[np.int32]


@dataclass(frozen=True)
class TextSegment:
    """The text of one request to T3."""

    number: int
    """Index among the utterance's segments, from 0."""
    text: str
    first_char: int
    """Position in the utterance's text."""


class TokenQueue:
    """Tokens of one segment between T3 and S3Gen; T3's limit for a segment bounds it. One reader."""

    def __init__(self) -> None:
        self.received = 0
        """Tokens so far."""
        self.complete = False
        """Whether these are all."""
        self._waiting: list[Tokens] = []
        self._changed = asyncio.Event()

    def put(self, tokens: Tokens) -> None:
        """Add tokens."""
        if len(tokens):
            self._waiting.append(tokens)
            self.received += len(tokens)
            self._changed.set()

    def end(self) -> None:
        """Mark the queue as complete."""
        self.complete = True
        self._changed.set()

    async def get(self) -> tuple[Tokens, bool]:
        """Wait for tokens or the end; all waiting tokens, and whether they are the last.

        Must not be called again after the end.
        """
        await self._changed.wait()
        self._changed.clear()
        tokens, self._waiting = self._waiting, []
        return np.concatenate([np.zeros(0, np.int32), *tokens]), self.complete


def max_tokens(text: str, limits: ChatterboxLimits) -> int:
    """Tokens at which the generation for a text is cut off."""
    return min(limits.max_tokens, _EXTRA_TOKENS + _TOKENS_PER_LETTER * len(text))


async def generate_tokens(
    model: SpeechTokenModel,
    request: SpeechTokensRequest,
    voice: TokenVoice,
    tokens: TokenQueue,
    limits: ChatterboxLimits,
) -> None:
    """Put the tokens of ``request`` into ``tokens``; aborts the request if this ends early.

    Raises:
        ParleyError: the model failed or was late.
    """
    done = False
    stream = iter_with_timeout(model.generate(request, voice), limits.tokens_s, "t3")
    try:
        async with aclosing(stream):
            async for event, new in stream:
                if not isinstance(event, TokensCompleted):
                    tokens.put(new)
                elif event.finish_reason == "abort":
                    raise InferenceError(f"{request.request_id} was aborted by another client")
                elif event.finish_reason == "length":
                    _log.warning("%s was cut off after %d tokens", request.request_id, event.spoken_tokens)
        done = True
    finally:
        if not done:
            name = request.request_id
            await best_effort(model.abort(name), limits.stop_s, f"stopping the tokens of {name}")
    tokens.end()


async def render(
    model: AudioModel,
    message: OpenUtterance,
    voice: VoiceTensors,
    tokens: TokenQueue,
    *,
    limits: ChatterboxLimits,
    on_audio: Callable[[NDArray[np.int16]], None],
) -> None:
    """Make audio of ``tokens`` as they arrive; stops the model's utterance if this ends early.

    ``message`` opens the model's utterance; its ``final`` is set here.

    Raises:
        ParleyError: the model failed or was late.
        ExceptionGroup: of such errors.
    """
    first, complete = await tokens.get()
    if complete and not len(first):
        return
    message = msgspec.structs.replace(message, final=complete)
    name = message.utterance_id
    done = False
    try:
        async with asyncio.TaskGroup() as group:
            if not complete:
                group.create_task(_feed(model, name, tokens, len(first), limits), name=f"{name} tokens")
            ended = False
            stream = iter_with_timeout(model.synthesize(message, voice, first), limits.audio_s, "s3gen")
            async with aclosing(stream):
                async for chunk, audio in stream:
                    ended = chunk.final
                    on_audio(fade_out(audio, chunk.sample_rate) if ended else audio)
            if not ended:
                raise InferenceError(f"s3gen ended {name} before its last audio")
        done = True
    finally:
        if not done:
            await best_effort(model.stop(name), limits.stop_s, f"stopping the audio of {name}")


async def _feed(
    model: AudioModel, utterance_id: str, tokens: TokenQueue, sent: int, limits: ChatterboxLimits
) -> None:
    complete = False
    while not complete:
        more, complete = await tokens.get()
        push = PushTokens(utterance_id=utterance_id, first=sent, final=complete)
        await with_timeout(_push(model, push, more), limits.push_s, "s3gen")
        sent += len(more)


async def _push(model: AudioModel, message: PushTokens, tokens: Tokens) -> None:
    while True:
        try:
            return await model.push(message, tokens)
        except SessionNotFoundError:
            # It may have overtaken the request that opens the utterance. If that one failed, the
            # task group cancels this.
            await asyncio.sleep(_RETRY_S)


def fade_out(audio: NDArray[np.int16], sample_rate: int) -> NDArray[np.int16]:
    """Fade the end of a segment's last piece: the next segment begins with silence."""
    count = min(len(audio), round(_FADE_S * sample_rate))
    gain = np.ones(len(audio), np.float32)
    gain[len(audio) - count :] = np.linspace(1.0, 0.0, count, dtype=np.float32)
    faded: NDArray[np.int16] = np.round(audio * gain).astype(np.int16)
    return faded
