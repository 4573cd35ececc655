"""Speech of one turn: segments of text in, paced audio out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from parley.agent.config import AgentConfig
from parley.agent.playout import PlayedWord, Playout
from parley.audio.pcm import Resampler, samples_to_ms
from parley.engines.base import Synthesizer
from parley.errors import InferenceError, ParleyError, UnsupportedVoiceError
from parley.protocol import Audio
from parley.timeouts import best_effort, iter_with_timeout, loop_time, with_timeout
from parley.tracing import NO_TRACE, Trace
from parley.tts.messages import SpeakRequest, WordMark

_NOTHING = np.zeros(0, np.int16)
# The next segment is synthesised while one is sent.
_SEGMENTS_AHEAD = 2
_MAX_SEGMENTS = 64
_MAX_PIECES = 64
_SOON_MS = 0.01
"""Below the precision of summed lengths."""
# Longest wait for the last playback mark of a client.
_LAST_MARK_S = 1.0
_LAST_MARK_CHECKS = 10
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SpeechSettings:
    """Voice and format of one session's speech."""

    voice: str | None
    language: str
    sample_rate: int
    """Sample rate of the audio for the client (Hz)."""
    exaggeration: float | None = None
    guidance_weight: float | None = None
    """See :class:`parley.tts.messages.SpeakRequest`."""


@dataclass(frozen=True)
class _Piece:
    """A stretch of a segment's audio at the client's sample rate."""

    round_number: int
    text: str
    samples: NDArray[np.int16] = field(default_factory=lambda: _NOTHING)
    words: tuple[PlayedWord, ...] = ()
    opens: bool = False
    closes: bool = False


async def check_voices(
    synthesizer: Synthesizer, voices: Iterable[str | None], language: str, limit_s: float
) -> None:
    """Check that voices exist. One of which the synthesizer says nothing within ``limit_s`` is not checked.

    Raises:
        UnsupportedVoiceError: one does not exist.
    """
    asked = {voice for voice in voices if voice is not None and not synthesizer.check_known(voice, language)}
    checks = [with_timeout(synthesizer.check_voice(voice), limit_s, "the list of voices") for voice in asked]
    for problem in await asyncio.gather(*checks, return_exceptions=True):
        if isinstance(problem, ParleyError) and not isinstance(problem, UnsupportedVoiceError):
            _log.warning("a voice was not checked: %s", problem.to_log(), extra=problem.log_extra())
        elif problem is not None:
            raise problem


class SpeechOutput:
    """Synthesises and sends one response.

    The next segment is synthesised while one is sent. Audio is sent at most ``lead_ms`` before its playback,
    so that an interruption drops little; the first audio is sent at once. After :meth:`hold` audio is
    synthesised but not sent.

    ``name`` is the prefix of the ids of requests to the synthesizer. ``on_failure`` is called when synthesis
    fails; no segment may be added afterwards. ``on_fallback`` is called when another synthesizer continues.
    Audio that ``playout`` has already was sent by another session.
    """

    def __init__(
        self,
        synthesizer: Synthesizer,
        *,
        speaker: SpeechSettings,
        name: str,
        response_id: str,
        turn: int,
        playout: Playout,
        emit: Callable[[Audio, NDArray[np.int16]], None],
        on_failure: Callable[[ParleyError], None],
        on_fallback: Callable[[], None],
        config: AgentConfig,
        trace: Trace = NO_TRACE,
    ) -> None:
        self._sent_before_ms = playout.length_ms
        self._trace = trace
        self._synthesizer = synthesizer
        self._speaker = speaker
        self._name = name
        self._response_id = response_id
        self._turn = turn
        self._playout = playout
        self._emit = emit
        self._on_failure = on_failure
        self._on_fallback = on_fallback
        self._config = config
        self._segments: asyncio.Queue[tuple[int, str] | None] = asyncio.Queue(_MAX_SEGMENTS)
        self._pieces: asyncio.Queue[_Piece | None] = asyncio.Queue(_MAX_PIECES)
        self._ahead = asyncio.Semaphore(_SEGMENTS_AHEAD)
        self._free = asyncio.Event()
        self._free.set()
        self._count = 0
        self.asked_at: float | None = None
        """When the first segment was added (seconds of the loop's clock)."""
        self.made_at: float | None = None
        """When the first audio was synthesised."""
        self.sent_at: float | None = None
        """When the first audio was sent."""
        self.made_ms = playout.length_ms
        """Synthesised audio, with that of another session."""
        self.complete = False
        """Whether all audio is synthesised."""

    async def say(self, round_number: int, text: str) -> None:
        """Add a segment; waits while the queue is full."""
        if self.asked_at is None:
            self.asked_at = loop_time()
        await self._segments.put((round_number, text))

    async def finish(self) -> None:
        """No segment follows."""
        await self._segments.put(None)

    def hold(self) -> None:
        """Send nothing until :meth:`release`."""
        self._free.clear()

    def release(self) -> None:
        """Send what is due."""
        self._free.set()

    async def send_all(self) -> None:
        """Send until :meth:`finish`, or all audio that there is after a failure."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._synthesise(), name=f"{self._name} synthesis")
            await self._play()

    async def wait_until_played(self) -> None:
        """Wait until the client has played what was sent."""
        await self._until_free()
        while (ahead_ms := self._playout.ahead_ms(loop_time())) > _SOON_MS:
            await asyncio.sleep(ahead_ms / 1000)
            await self._until_free()
        for _ in range(_LAST_MARK_CHECKS):
            await self._until_free()
            if self._playout.finished(loop_time()):
                return
            await asyncio.sleep(_LAST_MARK_S / _LAST_MARK_CHECKS)

    # --- synthesis ---------------------------------------------------------------------

    async def _synthesise(self) -> None:
        try:
            while (segment := await self._segments.get()) is not None:
                await self._ahead.acquire()
                self._count += 1
                await self._speak(*segment, f"{self._name}-{self._count}")
        except ParleyError as error:
            self._on_failure(error)
        except Exception:  # noqa: BLE001 - logged and reported to the client
            _log.exception("%s: speech failed", self._name)
            self._on_failure(ParleyError("the speech failed unexpectedly"))
        else:
            if self._count and self.made_ms <= self._sent_before_ms:
                self._on_failure(InferenceError("the synthesizer made no audio"))
        self.complete = True
        await self._pieces.put(None)

    async def _speak(self, round_number: int, text: str, request_id: str) -> None:
        with self._trace.child("tts", {"parley.request_id": request_id}) as span:
            span.set_content("text", text)
            before_ms, began = self.made_ms, loop_time()
            await self._synthesise_segment(
                round_number,
                self._request(text, request_id, span.traceparent),
                lambda: span.set({"parley.tts_first_audio_ms": round((loop_time() - began) * 1000, 1)}),
            )
            span.set({"parley.characters": len(text), "parley.audio_ms": round(self.made_ms - before_ms)})

    def _request(self, text: str, request_id: str, traceparent: str) -> SpeakRequest:
        return SpeakRequest(
            request_id=request_id,
            text=text,
            voice=self._speaker.voice,
            language=self._speaker.language,
            exaggeration=self._speaker.exaggeration,
            guidance_weight=self._speaker.guidance_weight,
            sample_rate=self._speaker.sample_rate,
            utterance=self._name,
            traceparent=traceparent,
        )

    async def _synthesise_segment(
        self, round_number: int, request: SpeakRequest, on_first_audio: Callable[[], None]
    ) -> None:
        text, request_id = request.text, request.request_id
        await self._pieces.put(_Piece(round_number, text, opens=True))
        limits = self._config.deadlines
        stream = iter_with_timeout(self._synthesizer.speak(request), limits.tts_s, "the synthesizer")
        resampler: Resampler | None = None
        done = False
        try:
            async with aclosing(stream):
                async for chunk, samples in stream:
                    if chunk.fallback is not None:
                        self._on_fallback()
                        continue
                    if self.made_at is None:
                        self.made_at = loop_time()
                    if resampler is None:
                        on_first_audio()
                        resampler = Resampler(chunk.sample_rate, self._speaker.sample_rate)
                    words = tuple(_spoken_word(mark, chunk.sample_rate) for mark in chunk.words)
                    resampled = resampler.push(samples)
                    self._count_made(resampled)
                    await self._pieces.put(_Piece(round_number, text, resampled, words))
            done = True
        finally:
            if not done:
                await best_effort(
                    self._synthesizer.abort(request_id), limits.abort_s, f"stopping {request_id}"
                )
        rest = resampler.finish() if resampler else _NOTHING
        self._count_made(rest)
        await self._pieces.put(_Piece(round_number, text, rest, closes=True))

    def _count_made(self, samples: NDArray[np.int16]) -> None:
        self.made_ms += samples_to_ms(len(samples), self._speaker.sample_rate)

    # --- sending -----------------------------------------------------------------------

    async def _play(self) -> None:
        waiting: list[PlayedWord] = []
        position_ms = 0.0
        while (piece := await self._pieces.get()) is not None:
            if piece.opens:
                waiting, position_ms = [], 0.0
                self._playout.begin(piece.round_number, piece.text)
            waiting.extend(piece.words)
            for block in self._blocks(piece.samples):
                length_ms = samples_to_ms(len(block), self._speaker.sample_rate)
                position_ms += length_ms
                words = [word for word in waiting if word.at_ms < position_ms]
                del waiting[: len(words)]
                await self._until_due(length_ms)
                self._send(block, length_ms, piece.text, words)
            if piece.closes:
                if waiting:  # words without samples of their own, after the last block
                    await self._until_free()
                    self._send(_NOTHING, 0.0, piece.text, waiting)
                self._playout.complete()
                self._ahead.release()

    def _blocks(self, samples: NDArray[np.int16]) -> Iterator[NDArray[np.int16]]:
        size = self._speaker.sample_rate * self._config.block_ms // 1000
        for start in range(0, len(samples), size):
            yield samples[start : start + size]

    async def _until_due(self, length_ms: float) -> None:
        await self._until_free()
        while (early_ms := self._early_ms(length_ms)) > _SOON_MS:
            await asyncio.sleep(early_ms / 1000)
            await self._until_free()

    async def _until_free(self) -> None:
        # hold() may come again before this task runs.
        while not self._free.is_set():
            await self._free.wait()

    def _early_ms(self, length_ms: float) -> float:
        ahead_ms = self._playout.ahead_ms(loop_time())
        return min(ahead_ms, ahead_ms + length_ms - self._config.lead_ms)

    def _send(self, block: NDArray[np.int16], length_ms: float, text: str, words: list[PlayedWord]) -> None:
        event = Audio(
            turn=self._turn,
            response_id=self._response_id,
            offset_ms=round(self._playout.length_ms),
            sample_rate=self._speaker.sample_rate,
            samples=len(block),
            text=" ".join(_with_punctuation(text, word) for word in words),
        )
        now = loop_time()
        if self.sent_at is None:
            self.sent_at = now
        self._emit(event, block)
        self._playout.sent(length_ms, words, now)


def _spoken_word(mark: WordMark, sample_rate: int) -> PlayedWord:
    return PlayedWord(mark.start_char, mark.end_char, samples_to_ms(mark.at_sample, sample_rate))


def _with_punctuation(text: str, word: PlayedWord) -> str:
    """The word of the text with the punctuation behind it."""
    end = word.end_char
    while end < len(text) and not text[end].isalnum() and not text[end].isspace():
        end += 1
    return text[word.start_char : end]


class UnreadAudio:
    """Seconds of audio since the last sign that the client reads, with a limit.

    Until the first playback mark every request is such a sign, afterwards only marks: a client may send its
    microphone's audio without reading anything.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._sent_s = 0.0
        self._marks = False

    @property
    def exceeded(self) -> bool:
        """Whether the limit is exceeded."""
        return self._sent_s > self._limit_s

    def sent(self, seconds: float) -> None:
        """Count audio that was sent."""
        self._sent_s += seconds

    def on_request(self) -> None:
        """The client has sent audio or a message."""
        if not self._marks:
            self._sent_s = 0.0

    def on_playback(self) -> None:
        """The client has sent a playback mark."""
        self._marks = True
        self._sent_s = 0.0
