"""Loudness as broadcasters measure it (ITU-R BS.1770), which Turbo's voices are normalised to."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

TARGET_LUFS = -27.0
"""Of the recordings that Turbo was trained on."""
_BLOCK_S, _STEP_S = 0.4, 0.1
_ABSOLUTE_GATE, _RELATIVE_GATE = -70.0, -10.0
_OFFSET = -0.691
_RING_S = 0.5
"""By then the filters' response has died away."""


def normalize(audio: NDArray[np.float32], rate: int) -> NDArray[np.float32]:
    """The recording at :data:`TARGET_LUFS`.

    Args:
        audio: f32 ``[n]``, at least 0.4 s, not silent.
        rate: hertz.
    """
    gain = 10.0 ** ((TARGET_LUFS - integrated(audio, rate)) / 20.0)
    return np.asarray(audio * np.float32(gain), np.float32)


def integrated(audio: NDArray[np.float32], rate: int) -> float:
    """Loudness of a whole mono recording in LUFS; :data:`TARGET_LUFS` where all is below the gate.

    Args:
        audio: f32 ``[n]``, at least 0.4 s.
        rate: hertz.
    """
    weighted = _weighted(audio.astype(np.float64), rate)
    block, step = int(_BLOCK_S * rate), int(_STEP_S * rate)
    blocks = np.lib.stride_tricks.sliding_window_view(weighted, block)[::step]
    power = np.square(blocks).mean(axis=1)
    audible = power[_lufs(power) >= _ABSOLUTE_GATE]
    if not len(audible):
        return TARGET_LUFS
    gate = _lufs(audible.mean()) + _RELATIVE_GATE
    return float(_lufs(audible[_lufs(audible) > gate].mean()))


def _lufs(power: NDArray[np.float64] | np.float64) -> NDArray[np.float64]:
    return np.asarray(_OFFSET + 10.0 * np.log10(np.maximum(power, 1e-20)), np.float64)


def _weighted(audio: NDArray[np.float64], rate: int) -> NDArray[np.float64]:
    """K-weighting: a shelf for the head, and a high pass."""
    length = len(audio) + int(_RING_S * rate)
    delay = np.exp(-2j * np.pi * np.fft.rfftfreq(length))
    response = _response(_shelf(rate), delay) * _response(_high_pass(rate), delay)
    return np.fft.irfft(np.fft.rfft(audio, length) * response, length)[: len(audio)]


def _response(
    filter_: tuple[tuple[float, ...], tuple[float, ...]], delay: NDArray[np.complex128]
) -> NDArray[np.complex128]:
    above, below = filter_
    return np.asarray(np.polyval(above[::-1], delay) / np.polyval(below[::-1], delay), np.complex128)


def _shelf(rate: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    gain, quality, corner = 10.0 ** (4.0 / 40.0), 1 / math.sqrt(2), 1500.0
    angle = 2 * math.pi * corner / rate
    cosine, root = math.cos(angle), 2 * math.sqrt(gain) * math.sin(angle) / (2 * quality)
    more, less = gain + 1, gain - 1
    above = (
        gain * (more + less * cosine + root),
        -2 * gain * (less + more * cosine),
        gain * (more + less * cosine - root),
    )
    below = (more - less * cosine + root, 2 * (less - more * cosine), more - less * cosine - root)
    return above, below


def _high_pass(rate: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    quality, corner = 0.5, 38.0
    angle = 2 * math.pi * corner / rate
    cosine, alpha = math.cos(angle), math.sin(angle) / (2 * quality)
    return ((1 + cosine) / 2, -(1 + cosine), (1 + cosine) / 2), (1 + alpha, -2 * cosine, 1 - alpha)
