"""Whisper's front end: the logarithm of the power in mel bands, ten milliseconds a frame."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parley.audio.mel import mel_filters

SAMPLE_RATE = 16_000
HOP = 160
"""Samples from one frame to the next."""
_N_FFT = 400
_FLOOR = 1e-10
"""Least power of a band."""
_RANGE = 8.0
"""Decades below a recording's loudest band at which all else is cut off."""


class WhisperMel:
    """The constants of the computation; holds no audio.

    Args:
        bands: mel bands: 80, or 128 for the newest models.
    """

    def __init__(self, bands: int = 80) -> None:
        self.bands = bands
        self._window = np.hanning(_N_FFT + 1)[:-1]
        self._filters = mel_filters(bands, _N_FFT, SAMPLE_RATE).T.astype(np.float64)

    def compute(self, audio: NDArray[np.float32], frames: slice = slice(None)) -> NDArray[np.float32]:
        """The features of a recording.

        Args:
            audio: f32 ``[n]`` within ±1, 16 kHz.
            frames: which of the ``n // 160`` are wanted. The loudest band is looked for in these alone.

        Returns:
            f32 ``[bands, frames]``.
        """
        padded = np.pad(audio, _N_FFT // 2, mode="reflect")
        # Frame n // 160, which has half of its samples from the padding, is none of Whisper's.
        pieces = np.lib.stride_tricks.sliding_window_view(padded, _N_FFT)[:-1:HOP][frames]
        spectrum = np.fft.rfft(pieces * self._window, axis=-1)
        power = spectrum.real**2 + spectrum.imag**2
        logarithm = np.log10(np.maximum(power @ self._filters, _FLOOR))
        clipped = np.maximum(logarithm, logarithm.max() - _RANGE)
        return np.asarray((clipped.T + 4.0) / 4.0, np.float32)
