"""What reads stretches of speech, whatever kind of network it has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from parley.asr.decoding.boosting import PhraseAutomaton, compile_phrases
from parley.asr.segmenter.segmentation import PER_MS
from parley.errors import (
    DeadlineExceededError,
    ModelUnavailableError,
    OverloadedError,
    ParleyError,
    ShuttingDownError,
    UnsupportedLanguageError,
)
from parley.protocol import Alternative, Word
from parley.runtime.onnx import Stop, StoppedError


@dataclass(frozen=True)
class ReadOptions:
    """How a stretch of audio is read."""

    language: str = "en"
    """One of the model's; :data:`parley.languages.DETECT`: it finds out."""
    boosting: PhraseAutomaton = field(default_factory=PhraseAutomaton.nothing)


@dataclass(frozen=True)
class Stretch:
    """A stretch of speech that is read at once."""

    audio: NDArray[np.int16]
    """i16 ``[n]``, 16 kHz mono."""
    options: ReadOptions
    start_ms: int = 0
    """The time of its first sample, from which the times of its words count."""


@dataclass(frozen=True)
class RecognizedText:
    """What was said in a stretch of audio; nothing if ``text`` is empty."""

    text: str
    confidence: float
    """0-1; 0 where there is no text."""
    encoder_ms: float = 0.0
    decoder_ms: float = 0.0
    """What it took to read, for all that was read with it."""
    language: str = ""
    """Empty where there is no text, or the model does not say."""
    words: tuple[Word, ...] = ()
    """The words of the text with their times; none from a model without times."""
    alternatives: tuple[Alternative, ...] = ()
    """The best readings, best first; none from a model that has one only."""


NO_TEXT = RecognizedText("", 0.0)


def combine_texts(pieces: Iterable[RecognizedText]) -> str:
    """The texts of pieces that follow one another."""
    return " ".join(piece.text for piece in pieces if piece.text)


def combine_words(pieces: Sequence[RecognizedText]) -> list[Word]:
    """The words of pieces that follow one another; none where a text has no times."""
    if any(piece.text and not piece.words for piece in pieces):
        return []
    return [word for piece in pieces for word in piece.words]


def combine_confidences(pieces: Sequence[RecognizedText]) -> float:
    """Their confidence, that of each counted as often as it has words; 0 where there are none."""
    words = [len(piece.text.split()) for piece in pieces]
    total = sum(count * piece.confidence for count, piece in zip(words, pieces, strict=True))
    return round(total / sum(words), 4) if sum(words) else 0.0


@dataclass(frozen=True)
class RunLimits:
    """Which stretches are read in one run of the networks."""

    stretches: int = 1
    """How many at most."""
    samples: int = 0
    """At most so many for all of them together, each counted as long as the longest; of several only."""
    ratio: float = 2.0
    """The longest is at most so many times as long as the shortest: what is padded is computed in vain."""

    def together(self, lengths: Sequence[int]) -> list[int]:
        """Which of the stretches are read with the first one, by their place; the first is always one.

        Args:
            lengths: samples of each, in the order in which they are due.
        """
        chosen, longest, shortest = [0], lengths[0], lengths[0]
        for place, length in enumerate(lengths[1:], 1):
            if len(chosen) >= self.stretches:
                break
            most, least = max(longest, length), min(shortest, length)
            if most * (len(chosen) + 1) <= self.samples and most <= self.ratio * least:
                chosen.append(place)
                longest, shortest = most, least
        return chosen


_OF_ALL = (DeadlineExceededError, ModelUnavailableError, OverloadedError, ShuttingDownError)
"""Failures that no single stretch causes."""


class Reader(ABC):
    """Reads stretches of speech; any thread may use it."""

    run_limits = RunLimits()
    """Which stretches it reads together."""

    favours_names = False
    """Whether phrases are cheap enough to be favoured unasked."""
    languages: tuple[str, ...]
    """Of the model; :data:`parley.languages.DETECT` among them if it tells them apart by itself."""
    longest_ms: int
    """The most audio that can be read at once."""
    spelled: tuple[str, ...]
    """The tokens as text, in which expected phrases are spelled."""

    @abstractmethod
    def read_together(self, stretches: Sequence[Stretch], stop: Stop) -> list[RecognizedText]:
        """Read stretches of at most :attr:`longest_ms` in one run of the networks.

        Args:
            stretches: as many as :attr:`run_limits` allow.
            stop: ends it from another thread, within the present operator of a network.

        Raises:
            InferenceError: the networks failed, or made of one of them what cannot be used.
            StoppedError: it was stopped.
        """

    def read(
        self, audio: NDArray[np.int16], options: ReadOptions, stop: Stop | None = None
    ) -> RecognizedText:
        """Read one stretch, i16 ``[n]``, 16 kHz mono; see :meth:`read_together`."""
        (text,) = self.read_together([Stretch(audio, options)], stop or Stop())
        return text

    def read_all(
        self,
        stretches: Sequence[Stretch],
        stop: Stop | None = None,
        on_run: Callable[[], object] = lambda: None,
    ) -> list[RecognizedText | Exception]:
        """Read stretches in one run, and each by itself if that fails: what one causes is its own error.

        Args:
            stretches: as many as :attr:`run_limits` allow.
            stop: ends it from another thread.
            on_run: called before each run.

        Raises:
            StoppedError: it was stopped.
        """
        stop = stop or Stop()
        on_run()
        try:
            return list(self.read_together(stretches, stop))
        except StoppedError:
            raise
        except Exception as error:  # noqa: BLE001 - it is the result
            if len(stretches) == 1 or isinstance(error, _OF_ALL):
                return [error for _ in stretches]
        return [result for one in stretches for result in self.read_all([one], stop, on_run)]

    def options(self, language: str, phrases: list[str], weight: float) -> ReadOptions:
        """The options of a stream or a recording.

        Raises:
            UnsupportedLanguageError: the model does not understand the language.
            InvalidMessageError: see :func:`parley.asr.decoding.boosting.compile_phrases`.
        """
        if language not in self.languages:
            raise UnsupportedLanguageError(f"language {language!r} is not one of the model's")
        return ReadOptions(language, compile_phrases(phrases, weight, self.spelled, cased=True))

    def warm_up(self) -> None:
        """Read silence once, so that no caller waits for what only the first run does.

        Raises:
            InferenceError: the networks cannot run at all.
        """
        self.read(np.zeros(1_000 * PER_MS, np.int16), ReadOptions(self.languages[0]))


def to_parley_error(error: Exception) -> ParleyError:
    """The error itself, or one with its type and text."""
    return error if isinstance(error, ParleyError) else ParleyError(f"{type(error).__name__}: {error}")
