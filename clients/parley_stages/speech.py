"""The speech of a synthesizer as one stream of audio, and the growing text that it is spoken from."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parley.audio.pcm import Resampler
from parley.errors import InvalidMessageError, SessionIdleError
from parley.timeouts import is_set_within
from parley.tts.markdown import MarkdownSegmenter
from parley.tts.messages import SpeechChunk
from parley_client.errors import CallEndedError
from parley_stages.streams import ModelStream, Requests

MAX_TEXT = 20_000
"""Characters of one text."""
_READ_AT_ONCE = 512


@dataclass(frozen=True)
class TextSpan:
    """A part that can be spoken by itself: a half-open span of characters in what is said of the text."""

    start: int
    end: int
    text: str


class GrowingText:
    """Cuts a text into segments while it is being written. Its Markdown is not said.

    What was written is read in pieces when a segment is wanted, with other work of the event loop between
    them: the largest text takes some 100 ms.

    Args:
        idle_s: longest wait for more text (seconds).
    """

    def __init__(self, idle_s: float) -> None:
        self.text = ""
        """All that was written so far."""
        self.finished = False
        self._idle_s = idle_s
        self._segmenter = MarkdownSegmenter()
        self._read = 0  # characters
        self._ended = False
        self._waiting: deque[TextSpan] = deque()
        self._cut = 0  # characters in segments
        self._changed = asyncio.Event()

    def add(self, text: str) -> None:
        """Write on.

        Raises:
            CallEndedError: the text is finished.
            InvalidMessageError: it is too long; nothing was added.
        """
        if self.finished:
            raise CallEndedError("the text was finished before")
        if len(self.text) + len(text) > MAX_TEXT:
            raise InvalidMessageError(f"more than {MAX_TEXT} characters in one text")
        self.text += text
        self._changed.set()

    @property
    def said(self) -> str:
        """What is said of the text, as far as that is known."""
        return self._segmenter.said

    def written_span(self, start: int, end: int) -> tuple[int, int]:
        """The half-open span in the text of a span in what is said of it."""
        return self._segmenter.written_span(start, end)

    def finish(self) -> None:
        """End the text; may be called twice."""
        self.finished = True
        self._changed.set()

    def drop(self) -> None:
        """End the text, and drop what has not been spoken."""
        self.finished = self._ended = True
        self._read = len(self.text)
        self._waiting.clear()
        self._changed.set()

    async def next_segment(self) -> TextSpan | None:
        """The next segment; None after the last.

        Raises:
            SessionIdleError: nothing was written for too long.
        """
        while not self._waiting:
            if self._read < len(self.text):
                piece = self.text[self._read : self._read + _READ_AT_ONCE]
                self._read += len(piece)
                self._queue(self._segmenter.push(piece))
                await asyncio.sleep(0)
            elif not self.finished:
                await self._wait_for_more()
            elif self._ended:
                return None
            else:
                self._ended = True
                self._queue(self._segmenter.finish())
        return self._waiting.popleft()

    async def _wait_for_more(self) -> None:
        self._changed.clear()
        if not await is_set_within(self._changed, self._idle_s):
            raise SessionIdleError(f"no more text came within {self._idle_s:g} s")

    def _queue(self, segments: list[str]) -> None:
        for text in segments:
            start = self.said.index(text, self._cut)
            self._cut = start + len(text)
            self._waiting.append(TextSpan(start, self._cut, text))


@dataclass(frozen=True)
class WordTiming:
    """Where a word begins in the audio."""

    text: str
    """Without marks of Markdown."""
    start_char: int
    end_char: int
    """Half-open span of characters in the whole text."""
    at_sample: int
    """Counted from the first sample of the speech."""


@dataclass(frozen=True)
class SpeechPiece:
    """The next audio of a speech."""

    samples: NDArray[np.int16]
    """Mono, shape [n]."""
    sample_rate: int
    """Hertz; the same in all pieces."""
    offset: int
    """Index of the first sample within the speech."""
    words: tuple[WordTiming, ...] = ()
    """Words that begin in this piece."""


class Track:
    """Makes one stream of audio and words out of the requests that a text was spoken in."""

    def __init__(self, script: GrowingText, rate: int | None) -> None:
        self._script = script
        self._rate = rate
        self._resampler: Resampler | None = None
        self._received = 0
        self._sent = 0
        self._request_began = 0

    def begin_request(self) -> None:
        """What follows was spoken for the next part of the text."""
        self._request_began = self._received

    def add(self, chunk: SpeechChunk, audio: NDArray[np.int16], first_char: int) -> SpeechPiece:
        """The next piece, of which the request's text begins at ``first_char`` of what is said."""
        if self._resampler is None:
            self._rate = self._rate or chunk.sample_rate
            self._resampler = Resampler(chunk.sample_rate, self._rate)
        ratio = self._resampler.to_rate / self._resampler.from_rate
        words = tuple(
            self._word(
                first_char + mark.start_char,
                first_char + mark.end_char,
                int((self._request_began + mark.at_sample) * ratio),
            )
            for mark in chunk.words
        )
        self._received += len(audio)
        return self._piece(self._resampler.push(audio), words)

    def finish(self) -> SpeechPiece | None:
        """What is left of the audio."""
        rest = self._resampler.finish() if self._resampler else np.zeros(0, np.int16)
        return self._piece(rest, ()) if len(rest) else None

    def _word(self, start: int, end: int, at_sample: int) -> WordTiming:
        start_char, end_char = self._script.written_span(start, end)
        return WordTiming(self._script.said[start:end], start_char, end_char, at_sample)

    def _piece(self, samples: NDArray[np.int16], words: tuple[WordTiming, ...]) -> SpeechPiece:
        piece = SpeechPiece(samples, self._rate or 0, self._sent, words)
        self._sent += len(samples)
        return piece


class Speech(ModelStream[SpeechPiece]):
    """A text that is being spoken: iterate it for its audio, inside ``async with``.

    :meth:`add` and :meth:`finish` are for a text that was begun with
    :meth:`parley_stages.Synthesis.begin`; other tasks may call them, and :meth:`abort`.
    """

    def __init__(
        self,
        script: GrowingText,
        pieces: AsyncGenerator[SpeechPiece, None],
        stop: Callable[[], Awaitable[object]],
        requests: Requests,
        what: str,
    ) -> None:
        super().__init__(pieces, stop, requests, what)
        self._script = script

    @property
    def text(self) -> str:
        """All of the text so far."""
        return self._script.text

    def add(self, text: str) -> None:
        """Write on; never waits. Each complete clause or sentence is spoken.

        Raises:
            CallEndedError: the text is finished.
            InvalidMessageError: it is too long; nothing was added.
        """
        self._script.add(text)

    def finish(self) -> None:
        """The text is complete: the rest is spoken, and then the audio ends."""
        self._script.finish()

    def stop(self) -> None:
        """Stop speaking without waiting for it."""
        super().stop()
        self._script.drop()
