"""The utterance that is being spoken: its audio, and what has been asked of it."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parley.asr.decoding.stable import StablePrefix
from parley.asr.moonshine.cutting import Window, quietest
from parley.asr.moonshine.desk import Asked
from parley.asr.rails.segmentation import PER_MS
from parley.asr.rails.spoken_turn import Joined, Piece


@dataclass(frozen=True)
class EarlyText:
    """The end of an utterance that is read before it is certain that it has ended."""

    asked: Asked
    joined: Joined | None
    """What is read in the utterance's place."""
    end: int
    """Sample of the stream at which the speech had ended."""


@dataclass(frozen=True)
class PartialText:
    """A text of what has been said so far, on its way."""

    asked: Asked
    settled: int
    """How many settled pieces come before it."""


class Utterance:
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
        self._window = window
        self._parts: list[NDArray[np.int16]] = []
        self._length = 0
        self.position = start
        """Sample of the stream up to which its audio has come."""
        self.settled: list[Asked] = []
        """Texts of what was cut off its beginning, in order."""
        self.early: EarlyText | None = None
        self.partial: PartialText | None = None
        self.asked_at = onset
        """Sample at which the last partial text was asked for."""
        self.rest_ms = 0.0
        """So much audio must have come since then, because the last one took its time."""
        self.reported = ""
        """The partial text that was told last."""
        self.stable = StablePrefix()

    def fork(self) -> Utterance:
        """Return an independent copy."""
        twin = copy.copy(self)
        twin._parts = list(self._parts)  # noqa: SLF001 - same class
        twin.settled = list(self.settled)
        twin.stable = self.stable.fork()
        return twin

    def hear(self, samples: NDArray[np.int16]) -> None:
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
        return audio[:at]

    def piece(self, end: int) -> Piece | None:
        """The utterance as part of a turn; None: its beginning was cut off.

        Args:
            end: sample of the stream at which its speech ends.
        """
        return None if self.settled else Piece(self.number, self._start, self._onset, end, self.rest())

    def forget_early(self, *, unless_ended_ms: int | None = None) -> None:
        """It was not over, or not where it seemed to be (milliseconds of the stream)."""
        if self.early is not None and self.early.end // PER_MS != unless_ended_ms:
            self.early.asked.drop()
            self.early = None

    def forget_partial(self) -> None:
        """What was asked for is of no use any more."""
        if self.partial is not None:
            self.partial.asked.drop()
            self.partial = None

    def drop(self) -> None:
        """Nobody wants to know anything of it any more."""
        self.forget_early()
        self.forget_partial()
        for asked in self.settled:
            asked.drop()
