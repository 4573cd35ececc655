"""The interface of a network that speaks clauses, and the level of its audio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from parley.errors import InferenceError
from parley.runtime.onnx import Stop, StoppedError
from parley.tts.clauses.splitting import ClauseLimits
from parley.tts.english.pronouncer import PronouncedWord
from parley.tts.messages import SpeakRequest

Floats = NDArray[np.float32]
CEILING = 0.891
"""Highest output sample: -1 dB."""
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


class FrontEnd(Protocol):
    """Pronounces a text."""

    def pronounce(self, text: str) -> Sequence[PronouncedWord]:
        """The words of a text."""
        ...


class ClauseSound(Protocol):
    """The sound of a clause, made piece by piece in the thread of the network."""

    @property
    def begins(self) -> Sequence[int]:
        """Sample at which each word of the clause begins."""
        ...

    @property
    def complete(self) -> bool:
        """Whether all of it has been made."""
        ...

    def make(self, stop: Stop) -> NDArray[np.int16]:
        """The next samples, at their final level; not to be called when it is complete.

        The first begin and the last end at zero, with little silence; pieces join without a step.

        Raises:
            StoppedError: the request was stopped.
            InferenceError: the network failed, or its output is not speech.
        """
        ...


class ClauseNetwork(Protocol):
    """Makes the sound of clauses. Used from one thread."""

    sample_rate: int
    limits: ClauseLimits
    """How texts are cut for it."""

    def check(self, voice: str | None, language: str) -> None:
        """Return if the voice exists and speaks the language; from any thread.

        Raises:
            UnsupportedVoiceError: there is no such voice.
            UnsupportedLanguageError: the language is not spoken.
        """
        ...

    def pronounce(self, text: str, language: str) -> Sequence[PronouncedWord]:
        """The words of a text as they are spoken; may be none.

        Raises:
            InferenceError: it cannot be pronounced now.
        """
        ...

    def speak(self, words: Sequence[PronouncedWord], request: SpeakRequest, stop: Stop) -> ClauseSound:
        """Begin the sound of a clause; the request provides the voice and the seed.

        Raises:
            StoppedError: the request was stopped.
            InferenceError: the network failed, or its output is not speech.
        """
        ...


@dataclass(frozen=True)
class Trimmed:
    """A clause without the silence around it."""

    audio: Floats
    cut: int
    """Samples cut from its beginning."""


class WholeSound:
    """The sound of a clause that was made in one run.

    Args:
        audio: f32 ``[n]``, with the network's own silence around it.
        begins: sample at which each word of the clause begins.
        gain_db: brings the voice to the common loudness.
        rate_hz: of the audio.

    Raises:
        InferenceError: it is not speech.
    """

    def __init__(self, audio: Floats, begins: Sequence[int], *, gain_db: float, rate_hz: int) -> None:
        check_sound(audio)
        trimmed = trim(audio, rate_hz)
        self._audio = amplify(trimmed.audio, gain_db, rate_hz)
        last = max(0, len(self._audio) - 1)
        self.begins: Sequence[int] = [min(max(0, begin - trimmed.cut), last) for begin in begins]
        self.complete = False

    def make(self, stop: Stop) -> NDArray[np.int16]:
        """All of it."""
        if stop.requested:
            raise StoppedError
        self.complete = True
        return self._audio


def check_sound(audio: Floats) -> None:
    """Raise InferenceError for values that are not finite, and for silence."""
    if not np.isfinite(audio).all():
        raise InferenceError("the network made values that are not numbers")
    if np.abs(audio).max(initial=0.0) <= SILENT:
        raise InferenceError("the network made only silence")


def trim(audio: Floats, rate_hz: int) -> Trimmed:
    """Cut the silence off both ends of f32 ``[n]`` and fade; ``audio`` must not be silent as a whole."""
    size = int(_FRAME_S * rate_hz)
    frames = np.resize(np.pad(audio, (0, -len(audio) % size)), (-(-len(audio) // size), size))
    power = np.square(frames.astype(np.float64)).mean(axis=1)
    audible = np.flatnonzero(power > power.max() * 10 ** (_INAUDIBLE_DB / 10))
    before, after = int(_BEFORE_S * rate_hz), int(_AFTER_S * rate_hz)
    start = max(0, int(audible[0]) * size - before)
    end = min(len(audio), (int(audible[-1]) + 1) * size + after)
    kept = audio[start:end].copy()
    kept[:before] *= _rise(len(kept[:before]))
    kept[-after:] *= _rise(len(kept[-after:]))[::-1]
    return Trimmed(kept, start)


def _rise(length: int) -> Floats:
    return np.asarray(0.5 - 0.5 * np.cos(np.linspace(0.0, np.pi, length)), np.float32)


class Level:
    """Brings a voice to its loudness, and limits short peaks to :data:`CEILING`.

    Attributes:
        margin: samples on both sides of the output on which it depends.
    """

    def __init__(self, gain_db: float, rate_hz: int) -> None:
        self._gain = np.float32(10 ** (gain_db / 20))
        self._block = int(_LIMITER_S * rate_hz)
        self.margin = (_BLOCKS_AROUND + 1) * self._block

    def apply(self, audio: Floats, at: int, inner: slice) -> NDArray[np.int16]:
        """Samples at their final level.

        Args:
            audio: f32 ``[n]``, with up to ``margin`` samples around the output.
            at: place of its first sample in all of the audio, however that is cut.
            inner: the output's part of it.
        """
        margin = _BLOCKS_AROUND * self._block
        first = inner.start - margin
        first = max(0, first - (at + first) % self._block)
        loud = audio[first : inner.stop + margin] * self._gain
        if np.abs(loud).max(initial=0.0) > CEILING:
            loud = _limited(loud, self._block)
        return np.asarray(np.round(loud[inner.start - first : inner.stop - first] * 32767.0), np.int16)


def amplify(audio: Floats, gain_db: float, rate_hz: int) -> NDArray[np.int16]:
    """A whole clause, f32 ``[n]``, at its level."""
    return Level(gain_db, rate_hz).apply(audio, 0, slice(0, len(audio)))


def _limited(audio: Floats, size: int) -> Floats:
    blocks = -(-len(audio) // size)
    peaks = np.abs(np.pad(audio, (0, blocks * size - len(audio)))).reshape(blocks, size).max(axis=1)
    # Of the blocks around it too: then the line between two of these is below what both of them need.
    needed = np.pad(np.minimum(1.0, CEILING / np.maximum(peaks, 1e-9)), 1, mode="edge")
    gains = np.minimum(np.minimum(needed[:-2], needed[1:-1]), needed[2:])
    centres = (np.arange(blocks) + 0.5) * size
    return np.asarray(audio * np.interp(np.arange(len(audio)), centres, gains), np.float32)


def random_of(words: Sequence[PronouncedWord], request: SpeakRequest) -> np.random.Generator:
    """The random numbers of a clause: with a seed the same for the same place in the same text."""
    return np.random.default_rng(None if request.seed is None else (request.seed, words[0].start))


def pause_samples(after: str, rate_hz: int) -> int:
    """Samples of silence after a clause; ``after``: the marks behind its last word."""
    pauses = [_PAUSES[mark] for mark in after if mark in _PAUSES]
    return int((max(pauses) if pauses else _NO_MARK) * rate_hz)
