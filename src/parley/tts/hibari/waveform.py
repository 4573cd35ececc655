"""The sound of what Hibari's network makes, with the definitions that its model was trained with.

The pulses of the vocal folds are filtered, and noise and free tones are added, in frames of 50 ms::

    S = exp(harmonic) e^(i pi tanh(phase)) STFT(pulses) + exp(noise) Z + exp(tone) e^(i angle)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
SAMPLE_RATE = 24_000
HOP = 300
"""Samples of a frame."""

_WIDTH = 4
"""Hops of the window."""
_SIZE = _WIDTH * HOP
_WINDOW = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_SIZE) / _SIZE)).astype(np.float32)
_UNIT = _WINDOW / HOP
"""With it, the spectrum of a cosine of amplitude 1 has 1 at its peak."""
_LOUDEST = 7.0
"""Of a logarithm of a magnitude; the model learned with this limit."""
_UNVOICED_HZ, _HIGHEST_HZ = 40.0, 11_000.0
_NEAR_ZERO = 2e-3


@dataclass(frozen=True)
class Spectrum:
    """What the network makes of a clause, f32 ``[601, frames]`` each."""

    harmonic: Floats
    phase: Floats
    noise: Floats
    tone: Floats
    angle: Floats
    pitch_hz: Floats
    """``[frames]``; below 40 there is no voice."""


def make_waveform(spectrum: Spectrum, random: np.random.Generator) -> Floats:
    """The audio of a clause, f32 ``[300 * frames]``."""
    made = _analyse(make_pulses(spectrum.pitch_hz))
    made *= _turned(spectrum.harmonic, np.pi * np.tanh(spectrum.phase))
    made += _turned(spectrum.tone, spectrum.angle)
    drawn = random.standard_normal((*made.shape, 2), np.float32).view(np.complex64)[..., 0]
    made += _magnitudes(spectrum.noise) * drawn
    return _join(made)


def make_pulses(pitch_hz: Floats) -> Floats:
    """All harmonics of a pitch below 11 kHz, at amplitude 1 each; zero where there is no voice."""
    at = (np.arange(len(pitch_hz) * HOP) + 0.5) / HOP - 0.5
    pitch = np.interp(at, np.arange(len(pitch_hz)), pitch_hz)
    voiced = pitch > _UNVOICED_HZ
    pitch = np.maximum(pitch, _UNVOICED_HZ)
    half = np.pi * (np.cumsum(pitch / SAMPLE_RATE) % 1.0)
    count = np.floor(_HIGHEST_HZ / pitch) + 0.5
    below = 2 * np.sin(half)
    rises = np.abs(below) <= _NEAR_ZERO  # there the quotient tends to the number of harmonics
    summed = np.where(rises, count, np.sin(2 * count * half) / np.where(rises, 1.0, below)) - 0.5
    return np.where(voiced, summed, 0.0).astype(np.float32)


def _turned(magnitude: Floats, angle: Floats) -> NDArray[np.complex64]:
    turned = np.empty(angle.shape, np.complex64)
    np.cos(angle, out=turned.real)
    np.sin(angle, out=turned.imag)
    turned *= _magnitudes(magnitude)
    return turned


def _magnitudes(logarithms: Floats) -> Floats:
    magnitudes: Floats = np.exp(np.minimum(logarithms, _LOUDEST))
    return magnitudes


def _analyse(audio: Floats) -> NDArray[np.complex64]:
    """The spectra of all frames, complex ``[601, n / 300]``, each around the beginning of its hop."""
    padded = np.pad(audio, _SIZE // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, _SIZE)[::HOP][: len(audio) // HOP]
    return np.fft.rfft(frames * _UNIT).T.astype(np.complex64, order="C")


def _join(spectra: NDArray[np.complex64]) -> Floats:
    """The inverse of :func:`_analyse`, by overlapping frames."""
    count = spectra.shape[1]
    frames = np.fft.irfft(spectra.T, _SIZE).astype(np.float32) * _WINDOW
    summed = np.zeros((count + _WIDTH - 1, HOP), np.float32)
    weight = np.zeros_like(summed)
    for place in range(_WIDTH):
        part = slice(place * HOP, (place + 1) * HOP)
        summed[place : place + count] += frames[:, part]
        weight[place : place + count] += np.square(_WINDOW[part])
    first = _WIDTH // 2
    audio: Floats = (summed / np.maximum(weight, 1e-11))[first : first + count].reshape(-1)
    return audio
