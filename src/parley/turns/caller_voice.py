"""Whose speech is the caller's: the voice that opened the call, by likeness and by level.

A voice alone is not enough: of half a second, by telephone and with others behind it, one in ten is taken for
another one. What others in the room say is also softer. The softer a sound is than the caller's turns, the
more it has to be like the caller's voice.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from parley.turns.interruption import words_of

ENROL_S = 0.7
"""The shortest speech by which a voice is known."""
_LIKE = 0.15
"""Likeness from which a voice as loud as the caller's is the caller's."""
_MORE_PER_DB = 0.025
"""Likeness that is needed in addition, for each decibel that the voice is softer."""
_SOFTER_DB, _LOUDER_DB = -4.0, 6.0
"""Relative to the caller. Softer: another person in the room. Louder: the telephone was handed over."""
_SURE = 0.3
"""Likeness from which speech adds to what is known of the voice."""
_MOST_S = 20.0
"""Speech that the vector of a voice stands for; later speech replaces some of it."""
_IGNORED = 2
"""Utterances in a row of another voice as loud as the caller's; the next one is the caller's."""
_ABSENT_S = 60.0
"""After so long without the caller a softer voice is the caller's too."""
_FRAME = 320
_LOUD = 0.9


def loudness(speech: NDArray[np.int16]) -> float:
    """Level that a tenth of the speech exceeds, dB: i16 ``[n]``, 16 kHz; of less than 20 ms: 0."""
    if len(speech) < _FRAME:
        return 0.0
    frames = speech[: len(speech) // _FRAME * _FRAME].reshape(-1, _FRAME).astype(np.float32)
    return float(10 * np.log10(np.quantile((frames**2).mean(axis=1), _LOUD) + 1.0))


class CallerVoice:
    """What is known of the caller's voice. It is kept for the call, in memory only.

    ``language``: primary language of the call.
    """

    def __init__(self, language: str) -> None:
        self._phrases = _phrases(language)
        self._vector: NDArray[np.float32] | None = None
        self._has_words = False
        self._level = 0.0
        self._seconds = 0.0
        self._handed = False
        self._ignored = 0
        self._heard_at = 0.0

    @property
    def is_known(self) -> bool:
        """Whether another voice can be told from the caller's."""
        return self._vector is not None

    def is_usual(self, level: float) -> bool:
        """Whether a sound of this level (dB) may be the caller's, and no other person's in the room."""
        return self.is_known and not self.is_soft(level) and not self.is_loud(level)

    def is_loud(self, level: float) -> bool:
        """Whether a sound of this level (dB) is so much louder that the voice before was not the caller's."""
        return level >= self._level + _LOUDER_DB

    def is_soft(self, level: float) -> bool:
        """Whether a sound of this level (dB) is softer than the caller's turns, as others in the room are."""
        return self.is_known and level < self._level + _SOFTER_DB

    def is_other(self, vector: NDArray[np.float32], level: float) -> bool:
        """Whether speech is another person's; ``vector``: of the voice, of length 1; ``level``: in dB."""
        if self._vector is None:
            return False
        needed = _LIKE + _MORE_PER_DB * max(0.0, self._level - level)
        return float(vector @ self._vector) < needed

    def accepts(self, vector: NDArray[np.float32], level: float, seconds: float, at: float) -> bool:
        """Whether an utterance is the caller's; remembers its voice.

        Args:
            vector: of the voice, of length 1.
            level: of the utterance, in dB.
            seconds: its length.
            at: seconds of the call.
        """
        if self.is_other(vector, level):
            if not self._takes_over(level, seconds, at):
                return False
            self.forget()
        self._handed = self._handed and self._vector is not None
        self._ignored, self._heard_at = 0, at
        if seconds >= ENROL_S:
            self._learn(vector, level, seconds)
        return True

    def _takes_over(self, level: float, seconds: float, at: float) -> bool:
        if self._handed or self.is_loud(level):
            return seconds >= ENROL_S
        if self.is_soft(level):
            return at - self._heard_at >= _ABSENT_S
        self._ignored += 1
        return self._ignored > _IGNORED

    def _learn(self, vector: NDArray[np.float32], level: float, seconds: float) -> None:
        if self._vector is None:
            self._vector, self._level, self._seconds = vector, level, seconds
        elif vector @ self._vector >= _SURE:
            share = seconds / (self._seconds + seconds)
            total = (1 - share) * self._vector + share * vector
            self._vector = total / np.linalg.norm(total)
            self._level += share * (level - self._level)
            self._seconds = min(self._seconds + seconds, _MOST_S)

    def forget(self) -> None:
        """Take the next voice for the caller's."""
        self._vector, self._has_words = None, False

    def hear(self, text: str) -> None:
        """Take the words of an utterance that was accepted: the caller may hand the telephone over.

        What was learned of sounds alone, such as music, is forgotten.
        """
        said = f" {' '.join(words_of(text))} "
        self._has_words = self._has_words or (self.is_known and said.strip() != "")
        if not self._has_words:
            self.forget()
        self._handed = self._handed or any(phrase in said for phrase in self._phrases)


@cache
def _phrases(language: str) -> tuple[str, ...]:
    listed = tomllib.loads((Path(__file__).parent / "handing_over.toml").read_text(encoding="utf-8"))
    return tuple(f" {' '.join(words_of(phrase))} " for phrase in listed.get(language, ()))
