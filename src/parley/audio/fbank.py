"""Kaldi's filter bank: the logarithm of the energy in mel bands, ten milliseconds a frame, without dither."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_RATE = 16_000
_HOP = 160
"""Samples from one frame to the next."""
_WINDOW = 400
"""Samples of a frame."""
_LOWEST_HZ = 20.0
_N_FFT = 512
_PREEMPHASIS = np.float32(0.97)
_FLOOR = np.finfo(np.float32).eps
"""Least energy of a band."""


class KaldiFbank:
    """The constants of the computation, with Kaldi's default settings; holds no audio."""

    def __init__(self, bands: int) -> None:
        self._window = (np.hanning(_WINDOW) ** 0.85).astype(np.float32)  # Povey's
        self._filters = _filters(bands).T

    def compute(self, audio: NDArray[np.float32]) -> NDArray[np.float32]:
        """The features of a recording.

        Args:
            audio: f32 ``[n]`` within ±1, 16 kHz.

        Returns:
            f32 ``[1 + (n - 400) // 160, bands]``: whole frames; none of less than 400 samples.
        """
        if len(audio) < _WINDOW:
            return np.zeros((0, self._filters.shape[1]), np.float32)
        frames = np.lib.stride_tricks.sliding_window_view(audio, _WINDOW)[::_HOP]
        frames = frames - frames.mean(axis=1, keepdims=True)
        before = np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
        spectrum = np.fft.rfft((frames - _PREEMPHASIS * before) * self._window, _N_FFT)
        power = (spectrum.real**2 + spectrum.imag**2)[:, : _N_FFT // 2]
        return np.asarray(np.log(np.maximum(power @ self._filters, _FLOOR)), np.float32)


def _filters(bands: int) -> NDArray[np.float32]:
    """Triangles on HTK's mel scale, f32 ``[bands, 256]``; the bin of half the sample rate belongs to none."""
    edges = np.linspace(_mel(np.array(_LOWEST_HZ)), _mel(np.array(_RATE / 2)), bands + 2)
    bins = _mel(np.arange(_N_FFT // 2) * (_RATE / _N_FFT))
    left, center, right = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    triangles = np.minimum((bins - left) / (center - left), (right - bins) / (right - center))
    return np.maximum(triangles, 0.0).astype(np.float32)


def _mel(hertz: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(1127.0 * np.log1p(hertz / 700.0), np.float64)
