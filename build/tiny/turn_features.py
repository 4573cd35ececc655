"""What the end-of-turn network sees of a turn: as the server computes it, and faster for the training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from parley.audio.mel import mel_filters
from parley.turns.smart_turn import BANDS, SAMPLES, WhisperFeatures
from tiny.speech import SAMPLE_RATE
from tiny.turn_model import FRAMES
from tiny.turn_model import SAMPLES as SEEN

Audio = npt.NDArray[np.float32]
"""Mono audio at 16 kHz within ±1, shape ``[n]``."""
_WINDOW, _HOP = 400, 160
_exact = WhisperFeatures()
_hann = torch.hann_window(_WINDOW)
_filters = torch.from_numpy(mel_filters(BANDS, _WINDOW, SAMPLE_RATE))


def exact(turns: Sequence[Audio]) -> tuple[torch.Tensor, torch.Tensor]:
    """The network's inputs, as the server makes them."""
    rows = _rows(turns)
    return torch.from_numpy(_exact.compute(rows, FRAMES)), torch.from_numpy(rows[:, -SEEN:].copy())


def fast(turns: Sequence[Audio]) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in single precision, for many turns at once."""
    rows = torch.from_numpy(_rows(turns))
    deviation, mean = torch.std_mean(rows, dim=1, correction=0, keepdim=True)
    ends = (rows[:, -SEEN - _WINDOW // 2 :] - mean) / torch.sqrt(deviation.square() + 1e-7)
    padded = torch.nn.functional.pad(ends, (0, _WINDOW // 2), mode="reflect")
    spectrum = torch.stft(padded, _WINDOW, _HOP, window=_hann, center=False, return_complex=True)
    power = spectrum.real.square() + spectrum.imag.square()
    decades = torch.log10(torch.clamp(_filters @ power[:, :, :FRAMES], min=1e-10))
    loudest = decades.amax(dim=(1, 2), keepdim=True)
    return (torch.maximum(decades, loudest - 8.0) + 4.0) / 4.0, rows[:, -SEEN:]


def _rows(turns: Sequence[Audio]) -> npt.NDArray[np.float32]:
    rows = np.zeros((len(turns), SAMPLES), np.float32)
    for row, turn in zip(rows, turns, strict=True):
        end = turn[-SAMPLES:]
        row[SAMPLES - len(end) :] = end
    return rows
