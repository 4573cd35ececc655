"""The utterance that is being spoken: its audio, and what has been asked of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parley.asr.decoding.words import StablePrefix, confidence_of, text_of
from parley.asr.messages import STREAM_ENDED, AsrEvent, AsrFallbackEvent, TranscriptEvent
from parley.asr.reader import (
    NO_TEXT,
    RecognizedText,
    combine_confidences,
    combine_texts,
    combine_words,
)
from parley.asr.segmenter.segmentation import PER_MS
from parley.asr.segmenter.turn_audio import JoinedTurn, TurnUtterance, split_text
from parley.asr.utterances.worker import ReadRequest, TextReader
from parley.errors import ParleyError


@dataclass(frozen=True)
class EarlyText:
    """The end of an utterance that is read before it is certain that it has ended."""

    asked: ReadRequest
    joined: JoinedTurn | None
    """What is read in the utterance's place."""
    end: int
    """Sample of the stream at which the speech had ended."""


@dataclass(frozen=True)
class PartialText:
    """A text of what has been said so far, on its way."""

    asked: ReadRequest
    settled: int
    """How many settled pieces come before it."""


class OpenUtterance:
    """What is known of it between two steps: at most a window of audio, and the texts of what was cut off."""

    def __init__(self, number: int, start: int, onset: int, window: Window) -> None:
        """Begin.

        Args:
            number: counts the stream's utterances from 1.
            start: sample of the stream at which its audio begins.
            onset: sample at which speech begins.
            window: how much is read at once.
        """
        self.number = number
        self._start = start
        self._onset = onset
        self.rest_start = start
        """Sample of the stream at which :meth:`rest` begins."""
        self._window = window
        self._parts: list[NDArray[np.int16]] = []
        self._length = 0
        self.position = start
        """Sample of the stream up to which its audio has come."""
        self.settled: list[ReadRequest] = []
        """Texts of what was cut off its beginning, in order."""
        self.early: EarlyText | None = None
        self.partial: PartialText | None = None
        self.asked_at = onset
        """Sample at which the last partial text was asked for."""
        self.rest_ms = 0.0
        """New audio before the next partial text, in proportion to the time that the last one took."""
        self.reported = ""
        """The last reported partial text."""
        self.stable = StablePrefix()

    def fork(self) -> OpenUtterance:
        """Return an independent copy."""
        twin = copy.copy(self)
        twin._parts = list(self._parts)  # noqa: SLF001 - same class
        twin.settled = list(self.settled)
        twin.stable = self.stable.fork()
        return twin

    def push(self, samples: NDArray[np.int16]) -> None:
        """Add audio: i16 ``[n]``."""
        self._parts.append(samples.copy())
        self._length += len(samples)
        self.position += len(samples)

    @property
    def is_full(self) -> bool:
        """Whether no more can be read at once."""
        return self._length >= self._window.longest_ms * PER_MS

    def rest(self) -> NDArray[np.int16]:
        """The audio since the last cut: i16 ``[n]``."""
        if len(self._parts) != 1:
            self._parts = [np.concatenate([np.zeros(0, np.int16), *self._parts])]
        return self._parts[0]

    def cut(self) -> NDArray[np.int16]:
        """Give away the audio before the quietest place of a full window."""
        audio = self.rest()
        at = quietest(audio, self._window.shortest_ms * PER_MS, self._window.longest_ms * PER_MS)
        self._parts = [audio[at:].copy()]
        self._length = len(audio) - at
        self.rest_start += at
        return audio[:at]

    def piece(self, end: int) -> TurnUtterance | None:
        """The utterance as part of a turn; None: its beginning was cut off.

        Args:
            end: sample of the stream at which its speech ends.
        """
        return (
            None if self.settled else TurnUtterance(self.number, self._start, self._onset, end, self.rest())
        )

    def forget_early(self, *, unless_ended_ms: int | None = None) -> None:
        """Drop the early final text, unless the utterance ended there (milliseconds of the stream)."""
        if self.early is not None and self.early.end // PER_MS != unless_ended_ms:
            self.early.asked.drop()
            self.early = None

    def forget_partial(self) -> None:
        """What was asked for is of no use any more."""
        if self.partial is not None:
            self.partial.asked.drop()
            self.partial = None

    def drop(self) -> None:
        """Its texts are no longer needed."""
        self.forget_early()
        self.forget_partial()
        for asked in self.settled:
            asked.drop()


_FRAME = 10 * PER_MS
_AROUND = 25
"""Frames over which loudness is averaged: 250 ms, so that not the silence of a "p" or "t" is taken."""


@dataclass(frozen=True)
class Window:
    """How much is read at once."""

    longest_ms: int = 9_000
    shortest_ms: int = 4_000
    """What is cut off is at least as long: the longer a piece, the better it is read."""


def quietest(audio: NDArray[np.int16], earliest: int, latest: int) -> int:
    """The quietest place between two samples, the later one of two that are equally quiet.

    Args:
        audio: i16 ``[n]``.
        earliest: sample.
        latest: sample, at most ``n``.
    """
    first, last = earliest // _FRAME, latest // _FRAME
    if last <= first:
        return latest
    frames = audio[first * _FRAME : last * _FRAME].astype(np.float64).reshape(-1, _FRAME)
    power = (frames**2).mean(axis=1)
    width = min(_AROUND, len(power))
    around = np.convolve(
        np.pad(power, (width // 2, width - 1 - width // 2), mode="edge"), np.ones(width), "valid"
    )
    at = len(around) - 1 - int(around[::-1].argmin())
    return (first + at) * _FRAME + _FRAME // 2


def pieces(audio: NDArray[np.int16], window: Window) -> Iterator[tuple[int, int]]:
    """Where the pieces of a stretch of speech begin and end (samples), in order."""
    start = 0
    longest, shortest = window.longest_ms * PER_MS, window.shortest_ms * PER_MS
    while len(audio) - start > longest:
        end = start + quietest(audio[start:], shortest, longest)
        yield start, end
        start = end
    yield start, len(audio)


class PendingText:
    """Looks after the readings that it is made of.

    The error of one that fails is raised with the piece of audio in progress, and the reading is
    made anew when that piece comes again. If it fails again it is given up: each later piece of its
    stream fails with that error.
    """

    def __init__(
        self,
        text_reader: TextReader,
        number: int,
        parts: Sequence[ReadRequest],
        joined: JoinedTurn | None,
        known: str,
        *,
        with_words: bool,
        model: str,
    ) -> None:
        """Wait for a text."""
        self.number = number
        self.joined = joined
        self._text_reader = text_reader
        self._parts = list(parts)
        self._known = known
        self._with_words = with_words
        self._model = model
        self._cut_off = False
        self._made_anew: set[int] = set()
        self.revised_texts: list[str] = []
        """What each utterance before it says now, if it was read with them and is there, from a model without
        times of words."""

    def poll(
        self, said_before: Callable[[JoinedTurn], Sequence[str]]
    ) -> tuple[list[AsrEvent], list[RecognizedText]] | None:
        """The events and the readings they are made of; None: they are not there yet.

        Args:
            said_before: the texts so far of each utterance that comes before it in what is joined.

        Raises:
            ParleyError: the speech could not be read.
        """
        if self._cut_off:
            return [self._fallback, self._event([RecognizedText(self._known, 0.0)], said_before)], []
        texts: list[RecognizedText] = []
        for at, asked in enumerate(self._parts):
            part = self._ask_anew(at) if asked.dropped else asked
            if not part.done:
                return None
            try:
                texts.append(part.result() or NO_TEXT)
            except ParleyError:
                if at not in self._made_anew:
                    part.drop()
                raise
        return [self._event(texts, said_before)], texts

    def _ask_anew(self, at: int) -> ReadRequest:
        failed = self._parts[at]
        self._parts[at] = self._text_reader.ask(failed.stretch, final=True, of=failed.of)
        self._made_anew.add(at)
        return self._parts[at]

    def end_stream(self) -> None:
        """Take the last partial text if no other is there yet: the stream has no later reply."""
        if not all(part.done and not part.dropped for part in self._parts):
            self.drop()
            self._cut_off = True

    def drop(self) -> None:
        """The result is no longer needed."""
        for part in self._parts:
            part.drop()

    @property
    def _fallback(self) -> AsrFallbackEvent:
        return AsrFallbackEvent(
            utterance=self.number, from_model=self._model, to_model=self._model, reason=STREAM_ENDED
        )

    def _event(
        self, texts: Sequence[RecognizedText], said_before: Callable[[JoinedTurn], Sequence[str]]
    ) -> TranscriptEvent:
        text, confidence, words = combine_texts(texts), combine_confidences(texts), combine_words(texts)
        first, before = 0, ""
        if self.joined is not None and text and not self._cut_off:
            first = self.joined.first
            if words:
                earlier, words = self.joined.split(words)
                before, text = text_of(earlier), text_of(words)
                confidence = confidence_of(words)
            else:
                *self.revised_texts, text = split_text(text, said_before(self.joined))
                before = " ".join(filter(None, self.revised_texts))
        return TranscriptEvent(
            utterance=self.number,
            text=text,
            is_final=True,
            confidence=confidence if text else 0.0,
            words=words if self._with_words else [],
            stable_words=len(text.split()),
            first=first,
            before=before,
        )
