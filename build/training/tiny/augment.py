"""What lies between a speaker and the recogniser: pauses, level, room, noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.signal import fftconvolve

from tiny.speech import SAMPLE_RATE, Samples

Signal = npt.NDArray[np.float32]
"""Mono audio at 16 kHz in -1..1, shape ``[samples]``."""


@dataclass(frozen=True)
class Heard:
    """A clip as it reaches the recogniser."""

    audio: Signal
    span: tuple[int, int]
    """First and last sample of the speech; empty when nothing is said."""


def clean(speech: Samples, lead: float = 0.25, trail: float = 0.25) -> Heard:
    """``speech`` at its own level, with ``lead`` and ``trail`` seconds of digital silence."""
    before, after = round(lead * SAMPLE_RATE), round(trail * SAMPLE_RATE)
    audio = np.pad(speech.astype(np.float32) / 32768, (before, after))
    return Heard(audio, (before, before + len(speech)))


def varied(speech: Samples, rng: np.random.Generator) -> Heard:
    """``speech`` as a segmenter may cut it from a live line.

    Up to half a second before it and after it, and :func:`worn`.
    """
    return worn(clean(speech, lead=rng.uniform(0.02, 0.55), trail=rng.uniform(0.08, 0.55)), rng)


def worn(heard: Heard, rng: np.random.Generator) -> Heard:
    """A clip after its way to the recogniser.

    Level from -42 to -16 dBFS, a random tilt of the spectrum, sometimes a small room, and noise 8 to 45 dB
    below the speech in two cases of three.
    """
    audio = heard.audio
    audio = audio * _gain(rng.uniform(-42, -16) - _level(audio[slice(*heard.span)]))
    audio[1:] += np.float32(rng.uniform(-0.4, 0.4)) * audio[:-1]
    if rng.random() < 0.12:
        audio = _reverberate(audio, rng)
    if rng.random() < 0.67:
        level = _level(audio[slice(*heard.span)]) - rng.uniform(8, 45)
        audio = audio + _noise(len(audio), rng) * _gain(level)
    if rng.random() < 0.08:
        audio = audio + _breath(heard.span[0], len(audio), rng)
    return Heard(np.clip(audio, -1, 1, dtype=np.float32), heard.span)


def silent(seconds: float, rng: np.random.Generator) -> Heard:
    """A segment without speech: digital silence, or noise from -80 to -30 dBFS, perhaps a breath."""
    length = round(seconds * SAMPLE_RATE)
    audio = np.zeros(length, np.float32)
    if rng.random() < 0.85:
        audio = _noise(length, rng) * _gain(rng.uniform(-80, -30))
    if rng.random() < 0.4:
        audio = audio + _breath(length, length, rng)
    return Heard(audio, (0, 0))


def _gain(decibel: float) -> np.float32:
    return np.float32(10 ** (decibel / 20))


def _level(audio: Signal) -> float:
    """Root mean square in dBFS."""
    return float(10 * np.log10(np.mean(np.square(audio)) + 1e-12))


def _noise(length: int, rng: np.random.Generator) -> Signal:
    """Noise of unit power whose spectrum falls by 0 to 9 dB an octave, sometimes with a mains hum."""
    spectrum = np.fft.rfft(rng.standard_normal(length, dtype=np.float32))
    spectrum[1:] *= np.arange(1, len(spectrum)) ** -rng.uniform(0, 1.5)
    spectrum[0] = 0
    noise = np.fft.irfft(spectrum, length).astype(np.float32)
    noise /= np.sqrt(np.mean(np.square(noise))) + np.float32(1e-9)
    if rng.random() < 0.15:
        time = np.arange(length, dtype=np.float32) / SAMPLE_RATE
        mains = rng.choice((50, 60)) * rng.integers(1, 4)
        noise = 0.7 * noise + np.sin(2 * np.pi * mains * time, dtype=np.float32)
    return noise


def _breath(before: int, length: int, rng: np.random.Generator) -> Signal:
    """One breath or rustle that starts in the first ``before`` samples, -55 to -30 dBFS."""
    burst = np.zeros(length, np.float32)
    start = int(rng.integers(0, max(1, before)))
    size = min(int(rng.uniform(0.02, 0.4) * SAMPLE_RATE), length - start)
    shaped = _noise(size, rng) * np.hanning(size).astype(np.float32)
    burst[start : start + size] = shaped * _gain(rng.uniform(-55, -30))
    return burst


def _reverberate(audio: Signal, rng: np.random.Generator) -> Signal:
    """A small room: direct sound and a tail that falls by 60 dB in 0.1 to 0.35 s."""
    length = int(rng.uniform(0.1, 0.35) * SAMPLE_RATE)
    tail = rng.standard_normal(length) * 10 ** (-3 * np.arange(length) / length)
    tail *= rng.uniform(0.1, 0.5) / np.sqrt(np.sum(np.square(tail)))
    tail[0] = 1.0
    return fftconvolve(audio, tail)[: len(audio)].astype(np.float32)
