"""What the calls of a soak are about, each something else, so that a mix-up is seen.

No two calls that are open at once share a script: what the agent is made to say, and what the user says. A
call compares the text, the samples, the transcript and the answer with those of its script, and, where they
differ, with those of all others.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

import numpy as np
from harness.stats import spoken_words, word_errors
from numpy.typing import NDArray

LIKE = 0.8
"""Least :func:`likeness` of two speeches with the same words."""
_FRAME = 512
_BANDS = (1, 3, 5, 8, 12, 17, 24, 34, 48, 70, 100)
_LATER = 3  # frames


class UnexpectedAnswerError(Exception):
    """The server answered otherwise than it has to."""


class CrossedError(Exception):
    """A call got what belongs to another one."""


class LostTurnError(Exception):
    """A question was not answered, or a text was not spoken; the call goes on."""


@dataclass(frozen=True, eq=False)
class Script:
    """What one call is about. The references come from calls that were held one after the other."""

    text: str
    """The agent is made to say it."""
    recording: NDArray[np.int16]
    """The user's question: 16 kHz, shape [n]."""
    words: list[str]
    """In the recording."""
    sum: str
    """The question that the user types."""
    speech: NDArray[np.int16] = field(default_factory=lambda: np.zeros(0, np.int16))
    """The text, as the agent speaks it: shape [n]."""
    spoken_answer: str = ""
    """To the recording, in a conversation that has just begun."""
    typed_answer: str = ""
    """To the sum, likewise."""


class Scripts:
    """A pool; the callers of one soak share it."""

    def __init__(self, scripts: Iterable[Script]) -> None:
        self.all = tuple(scripts)
        self._free = list(self.all)

    @asynccontextmanager
    async def take(self, chance: Random) -> AsyncIterator[Script]:
        """One that no other call has now."""
        script = self._free.pop(chance.randrange(len(self._free)))
        try:
            yield script
        finally:
            self._free.append(script)

    def check_text(self, script: Script, text: str) -> None:
        """Raise CrossedError for the text of another call, and UnexpectedAnswerError for any other."""
        if text == script.text:
            return
        if any(other.text in text for other in self.all if other is not script):
            raise CrossedError(f"the agent wrote {text!r} instead of {script.text!r}")
        raise UnexpectedAnswerError(f"the agent wrote {text!r} instead of {script.text!r}")

    def check_speech(self, script: Script, speech: NDArray[np.int16]) -> None:
        """As :meth:`check_text`, for samples. They may break off earlier than the reference."""
        own = likeness(script.speech, speech)
        if own >= LIKE:
            return
        for other in self.all:
            if other is not script and likeness(other.speech, speech) >= LIKE:
                raise CrossedError(f"the agent spoke {other.text!r} instead of {script.text!r}")
        raise UnexpectedAnswerError(
            f"{len(speech)} samples of {script.text!r} are like its {len(script.speech)} by {own:.2f} only"
        )

    def check_transcript(self, script: Script, text: str) -> int:
        """The wrong words. Raises CrossedError if the words are those of another call."""
        heard = spoken_words(text)
        wrong = word_errors(script.words, heard)
        # Half of the other one's words: nothing, or one word, is no other call's question.
        if any(word_errors(other.words, heard) < min(wrong, 1 + len(other.words) // 2) for other in self.all):
            raise CrossedError(f"{' '.join(script.words)!r} was understood as {text!r}")
        return wrong

    def check_answer(self, answer: str, text: str) -> None:
        """Raise CrossedError for the answer to another call's question, and LostTurnError for any other."""
        if text == answer:
            return
        if any(text in (other.spoken_answer, other.typed_answer) for other in self.all):
            raise CrossedError(f"the answer was {text!r} instead of {answer!r}")
        raise LostTurnError(f"the answer was {text!r} instead of {answer!r}")


def likeness(reference: NDArray[np.int16], speech: NDArray[np.int16]) -> float:
    """Correlation of two spectrograms: near 1.0 for the same words, although espeak-ng's noise varies.

    Speech may break off earlier than the reference, but not go on for longer; 0.0 if it does, or is empty.
    """
    one, other = _spectrogram(reference), _spectrogram(speech)
    if not 0 < len(other) <= len(one) + _LATER:
        return 0.0
    count = min(len(one), len(other))
    one, other = one[:count] - one[:count].mean(), other[:count] - other[:count].mean()
    size = float(np.sqrt((one * one).sum() * (other * other).sum()))
    return float((one * other).sum()) / size if size else 0.0


def _spectrogram(speech: NDArray[np.int16]) -> NDArray[np.float64]:
    """Levels (dB, at least 40 below full scale) of frames of 23 ms: shape [frames, bands]."""
    frames = speech[: len(speech) // _FRAME * _FRAME].reshape(-1, _FRAME) / 32_768
    power = np.abs(np.fft.rfft(frames * np.hanning(_FRAME), axis=1)) ** 2
    bands = np.add.reduceat(power, _BANDS, axis=1)
    return np.asarray(10 * np.log10(bands + 1e-2))
