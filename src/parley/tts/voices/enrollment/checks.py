"""Whether a voice can be made of a recording, and what is not good about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from parley.errors import ReferenceClippedError, ReferenceTooQuietError, ReferenceTooShortError
from parley.vad.silero import CONTEXT, SAMPLE_RATE, STATE, WINDOW, SileroVad

_SPEECH = 0.5
"""Probability from which a window counts as speech."""
_PAUSE_WINDOWS = 9
"""0.29 s: shorter pauses are part of the speech."""
_CLIPPING_PEAK = 0.9
_CLIPPING_RUN = 3
_NOISY, _BAND_LIMITED = "noisy", "narrow band"
_SILENCE_DB = -100.0

Detect: TypeAlias = Callable[[NDArray[np.float32]], NDArray[np.float32]]
"""f32 ``[n]`` at 16 kHz → the probability of speech in each window of 512 samples."""


@dataclass(frozen=True)
class EnrollmentLimits:
    """What a recording must be like."""

    min_speech_s: float = 5.0
    max_s: float = 30.0
    max_bytes: int = 16 << 20
    min_level_db: float = -45.0
    """Of the speech, against full scale."""
    max_clipped: float = 0.001
    """Share of samples that may be cut off at the peak."""
    min_snr_db: float = 15.0
    """Less is worth a warning."""


@dataclass(frozen=True)
class Examination:
    """What is to be said about a recording."""

    speech_s: float
    """Seconds of speech, short pauses included."""
    level_db: float
    """Of the speech, against full scale."""
    snr_db: float
    """Level of the speech above that of the pauses."""
    warnings: Sequence[str]


def silero(session: Any) -> Detect:
    """Speech probabilities from Silero's network.

    Args:
        session: of ONNX Runtime, of ``silero_vad.onnx``.
    """
    network = SileroVad(session)

    def detect(audio: NDArray[np.float32]) -> NDArray[np.float32]:
        windows = _windows(audio)[None]
        counts = np.array([windows.shape[1]], np.int32)
        state, context = np.zeros((1, *STATE), np.float32), np.zeros((1, CONTEXT), np.float32)
        probabilities, _, _ = network.detect(windows, counts, state, context)
        return np.asarray(probabilities[0], np.float32)

    return detect


def examine(
    audio: NDArray[np.float32],
    heard: NDArray[np.float32],
    rate: int,
    detect: Detect,
    limits: EnrollmentLimits,
) -> Examination:
    """Look at a recording.

    Args:
        audio: f32 ``[n]``, as it was recorded.
        heard: f32 ``[m]``, the same at 16 kHz.
        rate: hertz of ``audio``.
        detect: finds speech.
        limits: what it must be like.

    Raises:
        ReferenceTooQuietError: it is silent or too quiet.
        ReferenceClippedError: its peaks are cut off.
        ReferenceTooShortError: it holds too little speech.
    """
    levels = _levels(heard)
    if not len(levels) or np.percentile(levels, 95) < limits.min_level_db:
        loudest = levels.max(initial=_SILENCE_DB)
        if loudest <= _SILENCE_DB:
            raise ReferenceTooQuietError("the recording is silent")
        raise ReferenceTooQuietError(
            f"the recording is too quiet: hardly anything is above {limits.min_level_db:g} dB of full scale"
        )
    if (share := clipped_share(audio)) > limits.max_clipped:
        raise ReferenceClippedError(
            f"{share:.1%} of the recording is cut off at its peak: record it again, not as loud"
        )
    probabilities = detect(heard)
    speech = _without_short_pauses(probabilities >= _SPEECH)
    speech_s = float(speech.sum()) * WINDOW / SAMPLE_RATE
    if speech_s < limits.min_speech_s:
        raise ReferenceTooShortError(
            f"the recording holds {speech_s:.1f} s of speech; {limits.min_speech_s:g} s are needed"
        )
    level = float(np.median(levels[speech]))
    pauses = levels[~speech]
    noise = float(np.percentile(pauses, 50) if len(pauses) >= _PAUSE_WINDOWS else np.percentile(levels, 5))
    warnings = []
    if level - noise < limits.min_snr_db:
        warnings.append(_NOISY)
    if rate < SAMPLE_RATE:
        warnings.append(_BAND_LIMITED)
    return Examination(speech_s, level, level - noise, warnings)


def clipped_share(audio: NDArray[np.float32]) -> float:
    """The share of samples that lie in flat stretches at the peak.

    Args:
        audio: f32 ``[n]``, n above 0.
    """
    level = np.abs(audio)
    peak = float(level.max())
    if peak < _CLIPPING_PEAK:
        return 0.0
    flat = level >= 0.999 * peak
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flat, [False]]).astype(np.int8)))
    lengths = edges[1::2] - edges[::2]
    return float(lengths[lengths >= _CLIPPING_RUN].sum()) / len(audio)


def _windows(audio: NDArray[np.float32]) -> NDArray[np.float32]:
    """Whole windows, ``[w, 512]``; what is left over is not looked at."""
    return audio[: len(audio) // WINDOW * WINDOW].reshape(-1, WINDOW)


def _levels(audio: NDArray[np.float32]) -> NDArray[np.float64]:
    """Decibels of each window against full scale, ``[w]``."""
    power = np.square(_windows(audio).astype(np.float64)).mean(axis=1)
    return np.asarray(10.0 * np.log10(np.maximum(power, 10.0 ** (_SILENCE_DB / 10.0))), np.float64)


def _without_short_pauses(speech: NDArray[np.bool_]) -> NDArray[np.bool_]:
    filled = speech.copy()
    places = np.flatnonzero(speech)
    for before, after in pairwise(places):
        if after - before <= _PAUSE_WINDOWS + 1:
            filled[before:after] = True
    return filled
