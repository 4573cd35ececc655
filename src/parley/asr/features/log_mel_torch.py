"""The front end's formula on torch, for a GPU: the same frames as numpy's.

Apart because importing it needs ``torch``.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from parley.asr.checkpoint import ParakeetConfig
from parley.asr.features.log_mel import LOG_GUARD, LogMel


class TorchLogMel(LogMel):
    """:class:`parley.asr.features.log_mel.LogMel` whose transform runs on a torch device."""

    def __init__(self, config: ParakeetConfig, device: str) -> None:
        """Put the window and the filters on ``device``.

        Args:
            config: the constants.
            device: as torch names it, such as ``cuda:0``.
        """
        super().__init__(config)
        self._device = torch.device(device)
        self._torch_window = torch.from_numpy(self.window).to(self._device)
        self._torch_filters = torch.from_numpy(self.filters).to(self._device)

    def frames(self, emphasized: NDArray[np.float32]) -> NDArray[np.float32]:
        """See :meth:`parley.asr.features.log_mel.LogMel.frames`."""
        if emphasized.shape[-1] < self.n_fft:
            return super().frames(emphasized)
        audio = torch.from_numpy(np.ascontiguousarray(emphasized)).to(self._device)
        pieces = audio.unfold(-1, self.n_fft, self.hop) * self._torch_window
        # In double precision, as numpy computes it: single precision misses quiet bands by up to 1e-3.
        spectrum = torch.fft.rfft(pieces.double())
        power = (spectrum.real.square() + spectrum.imag.square()).float()
        frames = torch.log(power @ self._torch_filters.T + float(LOG_GUARD))
        return np.ascontiguousarray(frames.transpose(-1, -2).cpu().numpy())
