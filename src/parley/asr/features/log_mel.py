"""NeMo's log-mel front end in numpy, for whole recordings and for streams.

A recording becomes ``samples // hop`` frames: pre-emphasis, a symmetric Hann window centred in an
FFT over audio that is padded with zeros on both sides, power, Slaney's mel filters, logarithm. It
is what ``AudioToMelSpectrogramPreprocessor`` computes with ``dither=0`` and ``pad_to=0``; see
https://github.com/NVIDIA/NeMo/blob/main/nemo/collections/asr/parts/preprocessing/features.py.
"""

from __future__ import annotations

import copy

import numpy as np
from numpy.typing import NDArray

from parley.asr.checkpoint import ParakeetConfig
from parley.audio.mel import mel_filters

LOG_GUARD = np.float32(2**-24)
"""Added to every band's energy before the logarithm."""
SILENCE = np.log(LOG_GUARD)
"""What digital silence is in every band."""
_STD_GUARD = np.float32(1e-5)


def normalize(frames: NDArray[np.float32]) -> NDArray[np.float32]:
    """Give every band mean 0 and standard deviation 1 over time (NeMo's ``per_feature``).

    A single frame has no deviation: it becomes zeros.

    Args:
        frames: f32 ``[bands, n]``.
    """
    if frames.shape[1] < 2:
        return np.zeros_like(frames)
    mean = frames.mean(axis=1, keepdims=True)
    deviation = frames.std(axis=1, ddof=1, keepdims=True)
    return np.asarray((frames - mean) / (deviation + _STD_GUARD), np.float32)


class LogMel:
    """The front end's constants and its one formula; holds no audio."""

    def __init__(self, config: ParakeetConfig) -> None:
        self.bands = config.features_size
        self.hop = config.hop_length
        self.n_fft = config.n_fft
        self.preemphasis = np.float32(config.preemphasis)
        self._normalize = config.normalize
        self.filters = mel_filters(config.features_size, config.n_fft, config.sample_rate)
        window = np.zeros(config.n_fft, np.float32)
        margin = (config.n_fft - config.win_length) // 2
        window[margin : margin + config.win_length] = np.hanning(config.win_length)
        self.window = window

    def frames(self, emphasized: NDArray[np.float32]) -> NDArray[np.float32]:
        """All frames that lie completely inside pre-emphasised, padded audio.

        Args:
            emphasized: f32 ``[..., m]``, for example of several streams.

        Returns:
            f32 ``[..., bands, n]``, ``n`` = max(0, (m - n_fft) // hop + 1).
        """
        rows = emphasized.shape[:-1]
        count = (emphasized.shape[-1] - self.n_fft) // self.hop + 1
        if count <= 0:
            return np.zeros((*rows, self.bands, 0), np.float32)
        pieces = np.lib.stride_tricks.sliding_window_view(emphasized, self.n_fft, axis=-1)[
            ..., :: self.hop, :
        ]
        spectrum = np.fft.rfft(pieces * self.window, axis=-1)
        power = (spectrum.real**2 + spectrum.imag**2).astype(np.float32)
        mel = power.reshape(-1, power.shape[-1]) @ self.filters.T
        frames = np.log(mel + LOG_GUARD).reshape(*rows, count, self.bands)
        return np.ascontiguousarray(frames.swapaxes(-1, -2), np.float32)

    def normalized(self, frames: NDArray[np.float32]) -> NDArray[np.float32]:
        """The frames as the encoder wants them: f32 ``[bands, n]``."""
        return normalize(frames) if self._normalize == "per_feature" else frames

    def offline(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """All frames of a whole recording, not normalised: f32 ``[bands, len(samples) // hop]``."""
        stream = LogMelStream(self)
        return np.concatenate([stream.push(samples), stream.finish()], axis=1)


class LogMelStream:
    """Frames of a recording that arrives in pieces; equal to the whole recording's.

    It holds less than one FFT length of audio. After :meth:`finish` it is used up.
    """

    def __init__(self, mel: LogMel) -> None:
        self._mel = mel
        self._pending = np.zeros(mel.n_fft // 2, np.float32)
        self._previous = np.float32(0.0)
        self._samples = 0
        self._frames = 0

    def fork(self) -> LogMelStream:
        """Return an independent copy (arrays are replaced, never changed, so they may be shared)."""
        return copy.copy(self)

    def push(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Take the next piece and return the frames that it completes.

        Args:
            samples: f32 ``[n]`` within ±1, any length.

        Returns:
            f32 ``[bands, m]``.
        """
        if len(samples) == 0:
            return np.zeros((self._mel.bands, 0), np.float32)
        before = np.concatenate([[self._previous], samples[:-1]]).astype(np.float32)
        emphasized = samples - self._mel.preemphasis * before
        self._previous = samples[-1]
        self._samples += len(samples)
        self._pending = np.concatenate([self._pending, emphasized])
        return self._take(self._mel.frames(self._pending))

    def finish(self) -> NDArray[np.float32]:
        """Return the last frames, which need the zeros after the recording: f32 ``[bands, m]``."""
        padded = np.pad(self._pending, (0, self._mel.n_fft // 2))
        return self._take(self._mel.frames(padded)[:, : self._samples // self._mel.hop - self._frames])

    def _take(self, frames: NDArray[np.float32]) -> NDArray[np.float32]:
        self._pending = self._pending[frames.shape[1] * self._mel.hop :]
        self._frames += frames.shape[1]
        return frames
