"""Kaldi's filter bank: the logarithm of the energy in mel bands, ten milliseconds a frame, without dither."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

SAMPLE_RATE = 16_000
HOP = 160
"""Samples from one frame to the next."""
WINDOW = 400
"""Samples of a frame."""
_N_FFT = 512
_PREEMPHASIS = np.float32(0.97)
_FLOOR = np.finfo(np.float32).eps
"""Least energy of a band."""


@dataclass(frozen=True)
class FbankOptions:
    """What recipes have of their own; the defaults are Kaldi's."""

    bands: int = 80
    lowest_hz: float = 20.0
    highest_hz: float = SAMPLE_RATE / 2
    """Where the last band ends."""
    window: Literal["povey", "hamming"] = "povey"
    whole_frames: bool = True
    """Whether the first frame begins with the first sample, and none goes beyond the last (``snip_edges``).
    Else frames are centred in their ten milliseconds, and audio is mirrored at both ends."""
    full_scale: float = 1.0
    """The samples of the loudest audio: 32,768 for networks that were trained on integers."""


class KaldiFbank:
    """The constants of the computation; holds no audio."""

    def __init__(self, options: FbankOptions) -> None:
        self.bands = options.bands
        self._whole_frames = options.whole_frames
        self._full_scale = np.float32(options.full_scale)
        window = np.hamming(WINDOW) if options.window == "hamming" else np.hanning(WINDOW) ** 0.85
        self._window = window.astype(np.float32)
        self._filters = _filters(options.bands, options.lowest_hz, options.highest_hz).T

    def compute(self, audio: NDArray[np.float32]) -> NDArray[np.float32]:
        """The features of a recording.

        Args:
            audio: f32 ``[n]`` within ±1, 16 kHz.

        Returns:
            f32 ``[frames, bands]``: ``1 + (n - 400) // 160`` whole frames (none of less than 400 samples), or
            ``(n + 80) // 160``.
        """
        frames = self._frames(audio * self._full_scale)
        frames = frames - frames.mean(axis=1, keepdims=True)
        before = np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
        spectrum = np.fft.rfft((frames - _PREEMPHASIS * before) * self._window, _N_FFT)
        power = (spectrum.real**2 + spectrum.imag**2)[:, : _N_FFT // 2]
        return np.asarray(np.log(np.maximum(power @ self._filters, _FLOOR)), np.float32)

    def _frames(self, audio: NDArray[np.float32]) -> NDArray[np.float32]:
        if not self._whole_frames:
            count = (len(audio) + HOP // 2) // HOP
            lead = (WINDOW - HOP) // 2
            rest = max((count - 1) * HOP + WINDOW - lead - len(audio), 0)
            audio = np.pad(audio, (lead, rest), mode="symmetric") if count else audio[:0]
        if len(audio) < WINDOW:
            return np.zeros((0, WINDOW), np.float32)
        return np.lib.stride_tricks.sliding_window_view(audio, WINDOW)[::HOP]


def stack_frames(features: NDArray[np.float32], window: int, shift: int) -> NDArray[np.float32]:
    """Fewer, wider frames (low frame rate): every ``shift``-th one with its neighbours.

    At both ends the first and the last frame are repeated.

    Args:
        features: f32 ``[frames, bands]``, at least one frame.
        window: frames that become one.
        shift: frames from one to the next.

    Returns:
        f32 ``[ceil(frames / shift), window * bands]``.
    """
    frames = len(features)
    first = np.arange(0, frames, shift) - (window - 1) // 2
    places = np.clip(first[:, None] + np.arange(window), 0, frames - 1)
    stacked: NDArray[np.float32] = features[places].reshape(len(first), window * features.shape[1])
    return stacked


def _filters(bands: int, lowest_hz: float, highest_hz: float) -> NDArray[np.float32]:
    """Triangles on HTK's mel scale, f32 ``[bands, 256]``; the bin of half the sample rate belongs to none."""
    edges = np.linspace(_mel(np.array(lowest_hz)), _mel(np.array(highest_hz)), bands + 2)
    bins = _mel(np.arange(_N_FFT // 2) * (SAMPLE_RATE / _N_FFT))
    left, center, right = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    triangles = np.minimum((bins - left) / (center - left), (right - bins) / (right - center))
    return np.maximum(triangles, 0.0).astype(np.float32)


def _mel(hertz: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(1127.0 * np.log1p(hertz / 700.0), np.float64)
