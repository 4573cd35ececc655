"""One utterance, from its first text to its last audio."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import aclosing
from dataclasses import dataclass
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from parley.errors import InferenceError, InvalidMessageError, OverloadedError, ParleyError, SessionIdleError
from parley.tts.chatterbox.limits import ChatterboxLimits
from parley.tts.chatterbox.models import (
    AudioModel,
    Normalizer,
    Send,
    TokenModel,
    VoiceCache,
    audio_voice,
    token_voice,
)
from parley.tts.chatterbox.rendering import render
from parley.tts.chatterbox.segments import TextSegment, cut
from parley.tts.chatterbox.timing import HeardWords, Pace, SegmentTimes
from parley.tts.chatterbox.token_queue import TokenQueue
from parley.tts.messages import MoreText, SpeakRequest, SpeechChunk
from parley.tts.normalization.normalizer import SpokenText
from parley.tts.plain_text import is_speakable
from parley.tts.s3gen.messages import OpenUtterance
from parley.tts.s3gen.scheduler import PlayoutSchedule
from parley.tts.t3.messages import SpeechSampling, SpeechTokensRequest, TokensCompleted
from parley.tts.t3.request import TokenVoice
from parley.tts.voices.voice import Voice
from parley.waiting import each_within, try_within, within

_log = logging.getLogger(__name__)

# A model that has lost its way would speak to the limit. Speech takes 1.7 tokens for a letter.
_LONGEST_PER_LETTER = 8
_LONGEST_START = 100


def longest(text: str, limits: ChatterboxLimits) -> int:
    """Tokens that a text may take."""
    return min(limits.max_tokens, _LONGEST_START + _LONGEST_PER_LETTER * len(text))


async def draw(
    model: TokenModel,
    request: SpeechTokensRequest,
    voice: TokenVoice,
    tokens: TokenQueue,
    limits: ChatterboxLimits,
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


_NOTHING = np.zeros(0, np.int16)
_SEEDS = 2**31
# The segment that is being rendered, and the one whose tokens are drawn meanwhile.
_UNDER_WAY = 2
_LONGEST_AFTER_S = 60.0  # that S3Gen accepts


@dataclass(frozen=True)
class Parts:
    """What all utterances share."""

    tokens: TokenModel
    audio: AudioModel
    voices: VoiceCache
    normalizer: Normalizer


@dataclass(frozen=True)
class Style:
    """How an utterance is spoken: everything is decided."""

    voice: str
    language: str
    sample_rate: int
    exaggeration: float
    guidance_weight: float
    seed: int


@dataclass(frozen=True)
class _Take:
    """A segment on its way."""

    segment: TextSegment
    spoken: SpokenText
    tokens: TokenQueue


class ChatterboxUtterance:
    """Speaks what is pushed until it ends, fails or is stopped.

    Everything must be called on one event loop. Whatever ends it, neither model works for it any
    more when :meth:`run` returns, unless the model did not answer in time.

    Args:
        request: opens it.
        style: how it is spoken.
        parts: the models and what they need.
        limits: of size and time.
        send: takes the audio.
    """

    def __init__(
        self, request: SpeakRequest, style: Style, parts: Parts, limits: ChatterboxLimits, send: Send
    ) -> None:
        self._style = style
        self._parts = parts
        self._limits = limits
        self._send = send
        # A client may use an id again, and the models remember what they were told to stop.
        self._name = f"{request.request_id}-{uuid4().hex[:8]}"
        self._segments: deque[TextSegment] = deque()
        self._arrived = asyncio.Event()
        self._characters = 0
        self._count = 0
        self._final = False
        self._takes: asyncio.Queue[_Take | None] = asyncio.Queue()  # bounded by the semaphore
        self._room = asyncio.Semaphore(_UNDER_WAY)
        self._pace = Pace()
        self._samples = 0
        self._playout = PlayoutSchedule(_now())
        self._work: asyncio.Task[None] | None = None
        self._stopped = False
        self._ended = asyncio.Event()
        self._add(request.text, final=request.final)

    # --- from outside ---------------------------------------------------------------------

    def push(self, message: MoreText) -> None:
        """Take more text; never waits.

        Raises:
            InvalidMessageError: it is too long, comes after the end, or overtook something.
            OverloadedError: too much is waiting; the utterance stays as it was.
        """
        if self._final:
            raise InvalidMessageError("text after the end")
        if message.first != self._characters:
            raise InvalidMessageError(
                f"text from character {message.first} on came when {self._characters} were known"
            )
        self._add(message.text, final=message.final)

    def stop(self) -> None:
        """Send nothing more, and let both models stop; :meth:`wait_ended` says when they have."""
        if not self._stopped:
            self._stopped = True
            if self._work is not None:
                self._work.cancel()

    async def wait_ended(self) -> None:
        """Wait until nothing of it runs any more."""
        await self._ended.wait()

    async def run(self) -> None:
        """Speak; returns after the last audio, or when it was stopped.

        Raises:
            ParleyError: it failed.
        """
        if self._stopped:
            self._ended.set()
            return
        self._work = asyncio.create_task(self._speak(), name=self._name)
        self._work.add_done_callback(lambda _: self._ended.set())
        try:
            await asyncio.wait({self._work})
        except asyncio.CancelledError:  # the caller has gone away
            self.stop()
            await asyncio.wait({self._work})
            raise
        if not self._work.cancelled() and not self._stopped:
            self._work.result()

    def _add(self, text: str, *, final: bool) -> None:
        limits = self._limits
        if len(text) > limits.max_text:
            raise InvalidMessageError(
                f"text of {len(text)} characters; at most {limits.max_text} are allowed"
            )
        if self._characters + len(text) > limits.max_utterance_text:
            raise InvalidMessageError(f"an utterance has at most {limits.max_utterance_text} characters")
        pieces = cut(text, limits.segment_text) if text else []
        if len(self._segments) + len(pieces) > limits.max_waiting:
            raise OverloadedError(f"{len(self._segments)} segments are waiting to be spoken already")
        for piece in pieces:
            self._segments.append(TextSegment(self._count, piece, self._characters))
            self._count += 1
            self._characters += len(piece)
        self._final = final
        self._arrived.set()

    # --- drawing tokens -------------------------------------------------------------------

    async def _speak(self) -> None:
        voice = await within(
            self._parts.voices.get(self._style.voice), self._limits.voice_s, "the store of voices"
        )
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._draw_all(voice), name=f"{self._name} tokens")
                group.create_task(self._render_all(voice), name=f"{self._name} audio")
        except BaseExceptionGroup as failures:
            raise _cause(failures) from failures

    async def _draw_all(self, voice: Voice) -> None:
        while True:
            await self._room.acquire()
            segment = await self._next_segment()
            if segment is None:
                break
            spoken = await self._parts.normalizer.normalize(segment.text, self._style.language)
            take = _Take(segment, spoken, TokenQueue())
            self._takes.put_nowait(take)
            if is_speakable(spoken.text):
                request = self._tokens_request(segment, spoken.text)
                await draw(self._parts.tokens, request, token_voice(voice), take.tokens, self._limits)
            else:
                take.tokens.end()
        self._takes.put_nowait(None)

    async def _next_segment(self) -> TextSegment | None:
        while not self._segments:
            if self._final:
                return None
            self._arrived.clear()
            try:
                async with asyncio.timeout(self._limits.idle_s):
                    await self._arrived.wait()
            except TimeoutError as error:
                raise SessionIdleError(f"no text for {self._limits.idle_s:g} s") from error
        return self._segments.popleft()

    def _tokens_request(self, segment: TextSegment, text: str) -> SpeechTokensRequest:
        style = self._style
        return SpeechTokensRequest(
            request_id=self._model_id(segment),
            text=text,
            language=style.language,
            exaggeration=style.exaggeration,
            guidance_weight=style.guidance_weight,
            sampling=SpeechSampling(seed=self._seed(segment)),
            max_tokens=longest(text, self._limits),
            chunk_tokens=self._limits.event_tokens,
        )

    def _model_id(self, segment: TextSegment) -> str:
        return f"{self._name}-{segment.number}"

    def _seed(self, segment: TextSegment) -> int:
        return (self._style.seed + segment.number) % _SEEDS

    # --- making audio ---------------------------------------------------------------------

    async def _render_all(self, voice: Voice) -> None:
        while (take := await self._takes.get()) is not None:
            await self._render(take, voice)
            self._room.release()

    async def _render(self, take: _Take, voice: Voice) -> None:
        style, tokens = self._style, take.tokens
        times = SegmentTimes(
            take.spoken.words,
            first_char=take.segment.first_char,
            pace=self._pace,
            rate=style.sample_rate,
            first_sample=self._samples,
        )

        def hear(audio: NDArray[np.int16]) -> None:
            self._give(audio, times.advance(len(audio), tokens.drawn, complete=tokens.complete))

        message = OpenUtterance(
            utterance_id=self._model_id(take.segment),
            seed=self._seed(take.segment),
            sample_rate=style.sample_rate,
            after_s=min(max(0.0, self._playout.ahead(_now())), _LONGEST_AFTER_S),
        )
        await render(self._parts.audio, message, audio_voice(voice), tokens, limits=self._limits, hear=hear)
        rest = times.finish(tokens.drawn)
        if rest.marks:
            self._give(_NOTHING, rest)

    def _give(self, audio: NDArray[np.int16], heard: HeardWords) -> None:
        if self._stopped:
            return
        chunk = SpeechChunk(
            sample_rate=self._style.sample_rate,
            offset=self._samples,
            words=heard.marks,
            start_char=heard.start_char,
            end_char=heard.end_char,
        )
        self._samples += len(audio)
        self._playout.sent(len(audio) / self._style.sample_rate, _now())
        if not self._send(chunk, audio):
            self.stop()


def _cause(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of the protocol, which the others followed; else the first of all."""
    known, _ = failures.split(ParleyError)
    first: BaseException = known or failures
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first


def _now() -> float:
    return asyncio.get_running_loop().time()
