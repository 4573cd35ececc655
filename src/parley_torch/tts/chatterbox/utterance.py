"""One utterance, from its first text to its last audio."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeAlias
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from parley.errors import InvalidMessageError, OverloadedError, ParleyError, SessionIdleError
from parley.timeouts import loop_time, with_timeout
from parley.tts.messages import MoreText, SpeakRequest, SpeechChunk
from parley.tts.normalization.normalizer import SpokenText
from parley.tts.text import is_speakable, split_text
from parley_torch.tts.chatterbox.limits import ChatterboxLimits
from parley_torch.tts.chatterbox.segments import TextSegment, TokenQueue, generate_tokens, max_tokens, render
from parley_torch.tts.chatterbox.timing import Pace, SegmentTimes, SpokenSpan
from parley_torch.tts.s3gen.client import AudioModel
from parley_torch.tts.s3gen.messages import OpenUtterance
from parley_torch.tts.s3gen.scheduling import PlayoutSchedule
from parley_torch.tts.t3.client import SpeechTokenModel
from parley_torch.tts.t3.messages import SpeechSampling, SpeechTokensRequest
from parley_torch.tts.t3.request import TokenVoice
from parley_torch.tts.voices.store import VoiceCache
from parley_torch.tts.voices.voice import Voice

SEEDS = 2**31
_NO_AUDIO = np.zeros(0, np.int16)
# One segment is rendered while the tokens of the next are generated.
_MAX_SEGMENTS_UNDER_WAY = 2
_MAX_AFTER_S = 60.0  # that S3Gen accepts

Send: TypeAlias = Callable[[SpeechChunk, NDArray[np.int16]], bool]
"""Sends a piece of an utterance's audio; False if the client has cancelled."""


class Normalizer(Protocol):
    """Writes text out as it is spoken."""

    async def normalize(self, text: str, language: str) -> SpokenText:
        """The text to say; never fails."""
        ...


@dataclass(frozen=True)
class ChatterboxParts:
    """Everything that all utterances share."""

    tokens: SpeechTokenModel
    audio: AudioModel
    voices: VoiceCache
    normalizer: Normalizer


@dataclass(frozen=True)
class SpeakingStyle:
    """How an utterance is spoken; all values are decided."""

    voice: str
    language: str
    sample_rate: int
    exaggeration: float
    guidance_weight: float
    seed: int


@dataclass(frozen=True)
class _SegmentWork:
    """A segment between its text and its audio."""

    segment: TextSegment
    spoken: SpokenText
    tokens: TokenQueue


class ChatterboxUtterance:
    """Speaks the text that is pushed until it ends, fails or is stopped.

    Everything must be called on one event loop. However it ends, neither model works for it any
    more when :meth:`run` returns, unless a model did not answer in time.
    """

    def __init__(
        self,
        request: SpeakRequest,
        style: SpeakingStyle,
        parts: ChatterboxParts,
        limits: ChatterboxLimits,
        send: Send,
    ) -> None:
        self._style = style
        self._parts = parts
        self._limits = limits
        self._send = send
        self._traceparent = request.traceparent
        self._background = request.background
        # A client may use an id again, and the models remember the ids that they stopped.
        self._name = f"{request.request_id}-{uuid4().hex[:8]}"
        self._segments: deque[TextSegment] = deque()
        self._arrived = asyncio.Event()
        self._characters = 0
        self._count = 0
        self._final = False
        self._works: asyncio.Queue[_SegmentWork | None] = asyncio.Queue()  # bounded by the semaphore
        self._room = asyncio.Semaphore(_MAX_SEGMENTS_UNDER_WAY)
        self._pace = Pace()
        self._samples = 0
        self._playout = PlayoutSchedule(loop_time())
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        self._ended = asyncio.Event()
        self._add(request.text, final=request.final)

    def push(self, message: MoreText) -> None:
        """Add text; never waits.

        Raises:
            InvalidMessageError: it is too long, comes after the end, or overtook other text.
            OverloadedError: too many segments are waiting; the utterance stays as it was.
        """
        if self._final:
            raise InvalidMessageError("text after the end")
        if message.first != self._characters:
            raise InvalidMessageError(
                f"text from character {message.first} on arrived after {self._characters} characters"
            )
        self._add(message.text, final=message.final)

    def stop(self) -> None:
        """Send nothing more, and stop both models; :meth:`wait_ended` waits until they have."""
        if not self._stopped:
            self._stopped = True
            if self._task is not None:
                self._task.cancel()

    async def wait_ended(self) -> None:
        """Wait until nothing of the utterance runs any more."""
        await self._ended.wait()

    async def run(self) -> None:
        """Speak; returns after the last audio or after a stop.

        Raises:
            ParleyError: it failed.
        """
        if self._stopped:
            self._ended.set()
            return
        self._task = asyncio.create_task(self._speak(), name=self._name)
        self._task.add_done_callback(lambda _: self._ended.set())
        try:
            await asyncio.wait({self._task})
        except asyncio.CancelledError:  # the client cancelled the request
            self.stop()
            while not self._task.done():
                with suppress(asyncio.CancelledError):  # again
                    await asyncio.wait({self._task})
            raise
        if not self._task.cancelled() and not self._stopped:
            self._task.result()

    def _add(self, text: str, *, final: bool) -> None:
        limits = self._limits
        if len(text) > limits.max_text:
            raise InvalidMessageError(
                f"text of {len(text)} characters; at most {limits.max_text} are allowed"
            )
        if self._characters + len(text) > limits.max_utterance_text:
            raise InvalidMessageError(f"an utterance has at most {limits.max_utterance_text} characters")
        pieces = split_text(text, limits.segment_text) if text else []
        if len(self._segments) + len(pieces) > limits.max_waiting:
            raise OverloadedError(f"{len(self._segments)} segments are waiting to be spoken already")
        for piece in pieces:
            self._segments.append(TextSegment(self._count, piece, self._characters))
            self._count += 1
            self._characters += len(piece)
        self._final = final
        self._arrived.set()

    async def _speak(self) -> None:
        voice = await with_timeout(
            self._parts.voices.get(self._style.voice), self._limits.voice_s, "the store of voices"
        )
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._generate_all(voice), name=f"{self._name} tokens")
                group.create_task(self._render_all(voice), name=f"{self._name} audio")
        except BaseExceptionGroup as failures:
            raise _cause(failures) from failures

    async def _generate_all(self, voice: Voice) -> None:
        token_voice = TokenVoice(voice.speaker_embedding, voice.t3_prompt_tokens)
        while True:
            await self._room.acquire()
            segment = await self._next_segment()
            if segment is None:
                break
            spoken = await self._parts.normalizer.normalize(segment.text, self._style.language)
            work = _SegmentWork(segment, spoken, TokenQueue())
            self._works.put_nowait(work)
            if is_speakable(spoken.text):
                request = self._tokens_request(segment, spoken.text)
                await generate_tokens(self._parts.tokens, request, token_voice, work.tokens, self._limits)
            else:
                work.tokens.end()
        self._works.put_nowait(None)

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
            max_tokens=max_tokens(text, self._limits),
            background=self._background,
            chunk_tokens=self._limits.event_tokens,
            traceparent=self._traceparent,
        )

    def _model_id(self, segment: TextSegment) -> str:
        return f"{self._name}-{segment.number}"

    def _seed(self, segment: TextSegment) -> int:
        return (self._style.seed + segment.number) % SEEDS

    async def _render_all(self, voice: Voice) -> None:
        while (work := await self._works.get()) is not None:
            await self._render(work, voice)
            self._room.release()

    async def _render(self, work: _SegmentWork, voice: Voice) -> None:
        style, tokens = self._style, work.tokens
        times = SegmentTimes(
            work.spoken.words,
            first_char=work.segment.first_char,
            pace=self._pace,
            rate=style.sample_rate,
            first_sample=self._samples,
        )

        def on_audio(audio: NDArray[np.int16]) -> None:
            self._send_audio(audio, times.advance(len(audio), tokens.received, complete=tokens.complete))

        message = OpenUtterance(
            utterance_id=self._model_id(work.segment),
            seed=self._seed(work.segment),
            sample_rate=style.sample_rate,
            after_s=min(max(0.0, self._playout.deadline - loop_time()), _MAX_AFTER_S),
            traceparent=self._traceparent,
        )
        tensors = {
            "SPEAKER": voice.speaker,
            "PROMPT_TOKENS": voice.prompt_tokens,
            "PROMPT_MEL": voice.prompt_mel,
        }
        await render(self._parts.audio, message, tensors, tokens, limits=self._limits, on_audio=on_audio)
        rest = times.finish(tokens.received)
        if rest.marks:
            self._send_audio(_NO_AUDIO, rest)

    def _send_audio(self, audio: NDArray[np.int16], span: SpokenSpan) -> None:
        if self._stopped:
            return
        chunk = SpeechChunk(
            sample_rate=self._style.sample_rate,
            offset=self._samples,
            words=span.marks,
            start_char=span.start_char,
            end_char=span.end_char,
        )
        self._samples += len(audio)
        self._playout.on_sent(len(audio) / self._style.sample_rate, loop_time())
        if not self._send(chunk, audio):
            self.stop()


def _cause(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first ParleyError, from which the others follow; else the first of all."""
    known, _ = failures.split(ParleyError)
    first: BaseException = known or failures
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first
