"""What is done to the sound of a clause before it is sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parley.errors import InferenceError
from parley.tts.clauses.network import Stop, StoppedError

Floats = NDArray[np.float32]

CEILING = 0.891
"""Highest sample of what is sent: -1 dB."""
SILENT = 10 ** (-60 / 20)
_FRAME_S = 0.005
_INAUDIBLE_DB = -50.0
"""Below the loudest frame of the clause. The last sound of "five" or "month" is at about -40."""
_BEFORE_S, _AFTER_S = 0.010, 0.030
"""Left of the silence at both ends; faded."""
_LIMITER_S = 0.001
_BLOCKS_AROUND = 3
"""Blocks of that length, on both sides of a sample, that its gain may depend on."""

# Seconds, by the last mark of a clause.
_PAUSES = {".": 0.28, "!": 0.28, "?": 0.28, "…": 0.32, ":": 0.2, ";": 0.2, "—": 0.2, ",": 0.13}
_NO_MARK = 0.02


@dataclass(frozen=True)
class Trimmed:
    """A clause without the silence around it."""

    audio: Floats
    cut: int
    """Samples that were taken off its beginning."""


class WholeSound:
    """The sound of a clause that was made at once; see :class:`parley.tts.clauses.network.ClauseSound`.

    Args:
        audio: f32 ``[n]``, with whatever silence the network has put around it.
        begins: sample at which each word of the clause begins.
        gain_db: what makes the voice as loud as the others.
        rate: hertz.

    Raises:
        InferenceError: it is no speech.
    """

    def __init__(self, audio: Floats, begins: Sequence[int], *, gain_db: float, rate: int) -> None:
        check_sound(audio)
        trimmed = trim(audio, rate)
        self._audio = amplify(trimmed.audio, gain_db, rate)
        last = max(0, len(self._audio) - 1)
        self.begins: Sequence[int] = [min(max(0, begin - trimmed.cut), last) for begin in begins]
        self.complete = False

    def make(self, stop: Stop) -> NDArray[np.int16]:
        """All of it."""
        if stop.asked:
            raise StoppedError
        self.complete = True
        return self._audio


def check_sound(audio: Floats) -> None:
    """Refuse what is no speech.

    Raises:
        InferenceError: there are values that are no numbers, or nothing can be heard.
    """
    if not np.isfinite(audio).all():
        raise InferenceError("the network made values that are not numbers")
    if np.abs(audio).max(initial=0.0) <= SILENT:
        raise InferenceError("the network made nothing that can be heard")


def trim(audio: Floats, rate: int) -> Trimmed:
    """Take the silence off both ends, so that what is left begins and ends at zero.

    Args:
        audio: f32 ``[n]``, of which something can be heard.
        rate: hertz.
    """
    size = int(_FRAME_S * rate)
    frames = np.resize(np.pad(audio, (0, -len(audio) % size)), (-(-len(audio) // size), size))
    power = np.square(frames.astype(np.float64)).mean(axis=1)
    heard = np.flatnonzero(power > power.max() * 10 ** (_INAUDIBLE_DB / 10))
    before, after = int(_BEFORE_S * rate), int(_AFTER_S * rate)
    start = max(0, int(heard[0]) * size - before)
    end = min(len(audio), (int(heard[-1]) + 1) * size + after)
    kept = audio[start:end].copy()
    kept[:before] *= _rise(len(kept[:before]))
    kept[-after:] *= _rise(len(kept[-after:]))[::-1]
    return Trimmed(kept, start)


def _rise(length: int) -> Floats:
    return np.asarray(0.5 - 0.5 * np.cos(np.linspace(0.0, np.pi, length)), np.float32)


class Level:
    """Brings a voice to its loudness; what would be above :data:`CEILING` is turned down for a moment.

    Args:
        gain_db: of everything.
        rate: hertz.

    Attributes:
        margin: samples on both sides of what is wanted that it depends on.
    """

    def __init__(self, gain_db: float, rate: int) -> None:
        self._gain = np.float32(10 ** (gain_db / 20))
        self._block = int(_LIMITER_S * rate)
        self.margin = (_BLOCKS_AROUND + 1) * self._block

    def apply(self, audio: Floats, at: int, inner: slice) -> NDArray[np.int16]:
        """Samples as they are heard.

        Args:
            audio: f32 ``[n]``, with ``margin`` samples around what is wanted, where there are so many.
            at: place of its first sample in all of the audio. Wherever that is cut, the result is the same.
            inner: what is wanted of it.
        """
        margin = _BLOCKS_AROUND * self._block
        first = inner.start - margin
        first = max(0, first - (at + first) % self._block)
        loud = audio[first : inner.stop + margin] * self._gain
        if np.abs(loud).max(initial=0.0) > CEILING:
            loud = _limited(loud, self._block)
        return np.asarray(np.round(loud[inner.start - first : inner.stop - first] * 32767.0), np.int16)


def amplify(audio: Floats, gain_db: float, rate: int) -> NDArray[np.int16]:
    """A whole clause, f32 ``[n]``, at its level; ``rate``: hertz."""
    return Level(gain_db, rate).apply(audio, 0, slice(0, len(audio)))


def _limited(audio: Floats, size: int) -> Floats:
    blocks = -(-len(audio) // size)
    peaks = np.abs(np.pad(audio, (0, blocks * size - len(audio)))).reshape(blocks, size).max(axis=1)
    # Of the blocks around it too: then the line between two of these is below what both of them need.
    needed = np.pad(np.minimum(1.0, CEILING / np.maximum(peaks, 1e-9)), 1, mode="edge")
    gains = np.minimum(np.minimum(needed[:-2], needed[1:-1]), needed[2:])
    centres = (np.arange(blocks) + 0.5) * size
    return np.asarray(audio * np.interp(np.arange(len(audio)), centres, gains), np.float32)


def pause_samples(after: str, rate: int) -> int:
    """Samples of silence that follow a clause.

    Args:
        after: the marks behind its last word.
        rate: hertz.
    """
    pauses = [_PAUSES[mark] for mark in after if mark in _PAUSES]
    return int((max(pauses) if pauses else _NO_MARK) * rate)
