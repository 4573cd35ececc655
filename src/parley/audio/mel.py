"""Mel filters, as librosa and torchaudio make them for Slaney's scale."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def mel_filters(
    bands: int, n_fft: int, sample_rate: int, highest: float | None = None
) -> NDArray[np.float32]:
    """Triangular filters, equally wide on Slaney's mel scale and of equal area.

    The scale is linear up to 1 kHz and logarithmic above (M. Slaney, Auditory Toolbox, 1998).

    Args:
        bands: how many.
        n_fft: length of the Fourier transform whose power they weigh.
        sample_rate: hertz.
        highest: hertz where the last filter ends; None: half the sample rate.

    Returns:
        f32 ``[bands, n_fft // 2 + 1]``.
    """
    top = _hertz_to_mel(np.array(sample_rate / 2 if highest is None else highest))
    edges = _mel_to_hertz(np.linspace(0.0, top, bands + 2))
    bins = np.linspace(0.0, sample_rate / 2, n_fft // 2 + 1)
    distance = edges[:, None] - bins[None, :]
    widths = np.diff(edges)
    rising = -distance[:-2] / widths[:-1, None]
    falling = distance[2:] / widths[1:, None]
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    area = 2.0 / (edges[2:] - edges[:-2])
    return np.asarray(triangles * area[:, None], np.float32)


_LINEAR_HERTZ_PER_MEL = 200.0 / 3.0
_KNEE_HERTZ = 1000.0
_KNEE_MEL = _KNEE_HERTZ / _LINEAR_HERTZ_PER_MEL
_LOG_STEP = np.log(6.4) / 27.0


def _hertz_to_mel(hertz: NDArray[np.float64]) -> NDArray[np.float64]:
    logarithmic = _KNEE_MEL + np.log(np.maximum(hertz, _KNEE_HERTZ) / _KNEE_HERTZ) / _LOG_STEP
    return np.where(hertz < _KNEE_HERTZ, hertz / _LINEAR_HERTZ_PER_MEL, logarithmic)


def _mel_to_hertz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    exponential = _KNEE_HERTZ * np.exp(_LOG_STEP * (np.maximum(mel, _KNEE_MEL) - _KNEE_MEL))
    return np.where(mel < _KNEE_MEL, mel * _LINEAR_HERTZ_PER_MEL, exponential)
