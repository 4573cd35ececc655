"""The log-mel front end on a torch device, for the audio of many streams at once.

The same frames as :mod:`parley.asr.features` computes in numpy.
"""

from __future__ import annotations

import torch
from torch import Tensor

from parley.asr.features import LOG_GUARD, SILENCE, LogMel
from parley.asr.segmenter.segmentation import FULL_SCALE


class DeviceLogMel:
    """Audio that has arrived on the device to features.

    Args:
        mel: the constants.
        device: where window and filters are put.
    """

    def __init__(self, mel: LogMel, device: torch.device) -> None:
        self._hop = mel.hop
        self._n_fft = mel.n_fft
        self._preemphasis = float(mel.preemphasis)
        self._window = torch.from_numpy(mel.window).to(device)
        self._filters = torch.from_numpy(mel.filters).to(device).T.contiguous()

    def __call__(self, audio: Tensor, real_samples: Tensor, real_frames: Tensor) -> Tensor:
        """Compute frames.

        Args:
            audio: i16 ``[B, (n - 1) * hop + n_fft + 1]``; the first sample is the one before the first
                frame's, for its pre-emphasis.
            real_samples: i64 ``[B]``; after that many samples, without the first, each row is silent.
            real_frames: i64 ``[B]``; after that many frames each row is silence.

        Returns:
            f32 ``[B, n, bands]``, not normalised.
        """
        samples = audio.float() / float(FULL_SCALE)
        emphasized = samples[:, 1:] - self._preemphasis * samples[:, :-1]
        inside = torch.arange(emphasized.shape[1], device=audio.device) < real_samples[:, None]
        pieces = (emphasized * inside).unfold(-1, self._n_fft, self._hop) * self._window
        # In double precision, as numpy computes it: single precision misses quiet bands by up to 1e-3.
        spectrum = torch.fft.rfft(pieces.double())
        power = (spectrum.real.square() + spectrum.imag.square()).float()
        frames = torch.log(power @ self._filters + float(LOG_GUARD))
        spoken = torch.arange(frames.shape[1], device=audio.device) < real_frames[:, None]
        return torch.where(spoken[:, :, None], frames, float(SILENCE))
