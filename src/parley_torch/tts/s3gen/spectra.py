"""The vocoder's short-time spectra, 16 samples every 4, as ``torch.stft`` and ``torch.istft`` have them.

``torch.istft`` waits for the device to look at its envelope, which no CUDA graph can hold. And a graph holds
the addresses of the tables of cuFFT's plans, which belong to the library. So both directions are products
with constant matrices of 16 x 18 numbers here: of float32 even where convolutions may be of less.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the usual name

SIZE, HOP = 16, 4
BINS = SIZE // 2 + 1
_PIECES = SIZE // HOP
"""Windows that a sample lies in."""
_OVERLAP = 1.5
"""Sum of the squared windows over a sample inside the signal."""


class ShortTimeTransform(nn.Module):
    """Signals to spectra with a periodic Hann window, and back."""

    analysis: Tensor
    synthesis: Tensor
    edges: Tensor

    def __init__(self) -> None:
        super().__init__()
        samples, bins = np.arange(SIZE), np.arange(BINS)
        window = 0.5 - 0.5 * np.cos(2 * np.pi * samples / SIZE)
        angles = 2 * np.pi * samples[:, None] * bins / SIZE
        waves = np.concatenate([np.cos(angles), -np.sin(angles)], axis=1) * window[:, None]
        # Bins between the first and the last stand for two each.
        counts = np.where(bins % (BINS - 1) == 0, 1.0, 2.0)
        back = (waves * np.tile(counts, 2)).T / (SIZE * _OVERLAP)
        # One window less covers the first samples, and the last ones: each has the last quarter of the one
        # before the signal, or the first quarter of the one behind it, too little.
        quarters = np.stack([window[-HOP:], window[:HOP]]) ** 2
        for name, values in {
            "analysis": waves,
            "synthesis": back,
            "edges": _OVERLAP / (_OVERLAP - quarters),
        }.items():
            self.register_buffer(name, torch.tensor(values, dtype=torch.float32), persistent=False)

    def forward(self, signal: Tensor) -> Tensor:
        """Spectra of a signal ``[B, 4 n]``, reflected at its ends.

        Returns:
            ``[B, n + 1, 18]``: 9 real parts and 9 imaginary ones.
        """
        padded = F.pad(signal[:, None], (SIZE // 2, SIZE // 2), mode="reflect")[:, 0]
        return padded.unfold(1, SIZE, HOP) @ self.analysis

    def inverse(self, spectra: Tensor) -> Tensor:
        """The signal ``[B, 4 n]`` of spectra ``[B, n + 1, 18]``.

        The imaginary parts of the first bin and of the last one have no meaning.
        """
        rows, count = spectra.shape[0], spectra.shape[1] - 1
        pieces = F.pad(spectra @ self.synthesis, (0, 0, 1, 1)).view(rows, -1, _PIECES, HOP)
        # A stretch of four samples has the last quarter of the first of its windows, and so on.
        last = _PIECES - 1
        signal = pieces[:, :count, last] + pieces[:, 1 : 1 + count, last - 1]
        for later in range(2, _PIECES):
            signal += pieces[:, later : later + count, last - later]
        signal[:, 0] *= self.edges[0]
        signal[:, -1] *= self.edges[1]
        return signal.flatten(1)
