"""Whisper's log-mel features of the last eight seconds of speech, for many streams at once.

What ``transformers.WhisperFeatureExtractor(chunk_length=8)`` computes with ``do_normalize=True``, for
audio that is padded with zeros at its beginning; see
https://github.com/huggingface/transformers/blob/main/src/transformers/models/whisper/feature_extraction_whisper.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from parley.audio.mel import mel_filters

SAMPLE_RATE = 16_000
SAMPLES = 8 * SAMPLE_RATE
"""Audio that the features are made of."""
BANDS = 80
FRAMES = 800
_N_FFT = 400
_HOP = 160
_FLOOR = 1e-10
"""Least power of a band."""
_RANGE = 8.0
"""Decades below a recording's loudest band at which all else is cut off."""
_VARIANCE_GUARD = np.float32(1e-7)
_FULL_SCALE = np.float32(32768)


def last_seconds(pieces: Sequence[NDArray[np.int16]]) -> NDArray[np.float32]:
    """The ends of recordings, in one array.

    Args:
        pieces: i16 ``[n]`` each, 16 kHz mono, any length.

    Returns:
        f32 ``[B, 128000]`` within ±1; what is shorter begins with zeros.
    """
    rows = np.zeros((len(pieces), SAMPLES), np.float32)
    for row, piece in zip(rows, pieces, strict=True):
        end = piece[-SAMPLES:]
        row[SAMPLES - len(end) :] = end.astype(np.float32) / _FULL_SCALE
    return rows


class WhisperFeatures:
    """The constants of the computation; holds no audio."""

    def __init__(self) -> None:
        self._window = np.hanning(_N_FFT + 1)[:-1]
        self._filters = mel_filters(BANDS, _N_FFT, SAMPLE_RATE).T.astype(np.float64)

    def compute(self, audio: NDArray[np.float32], frames: int = FRAMES) -> NDArray[np.float32]:
        """The features of every row.

        Args:
            audio: f32 ``[B, 128000]`` within ±1.
            frames: how many of the last frames are wanted. Fewer take less time; the loudest band is then
                looked for in these alone.

        Returns:
            f32 ``[B, 80, frames]``. A row does not depend on the others.
        """
        mean = audio.mean(axis=1, keepdims=True)
        deviation = np.sqrt(audio.var(axis=1, keepdims=True) + _VARIANCE_GUARD)
        padded = np.pad((audio - mean) / deviation, ((0, 0), (_N_FFT // 2, _N_FFT // 2)), mode="reflect")
        features = np.empty((len(audio), BANDS, frames), np.float32)
        # A row at a time: the spectrum of one is 13 MB in double precision, which Whisper uses.
        for row, samples in enumerate(padded):
            features[row] = self._log_mel(samples, frames)
        return features

    def _log_mel(self, padded: NDArray[np.float32], frames: int) -> NDArray[np.float64]:
        pieces = np.lib.stride_tricks.sliding_window_view(padded, _N_FFT)[::_HOP][FRAMES - frames : FRAMES]
        spectrum = np.fft.rfft(pieces * self._window, axis=-1)
        power = spectrum.real**2 + spectrum.imag**2
        logarithm = np.log10(np.maximum(power @ self._filters, _FLOOR))
        clipped = np.maximum(logarithm, logarithm.max() - _RANGE)
        return np.asarray((clipped.T + 4.0) / 4.0)
