"""The voice encoder: whose voice it is, for T3.

An LSTM over stretches of 1.6 s, whose directions are averaged (chatterbox-tts, MIT; the names of
the modules are those of the tensors in ``ve.safetensors``).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from parley.tts.voices.enrollment.spectra import RATE, encoder_mel

_FRAMES = 160
"""Of one stretch."""
_STEP = round(RATE / 1.3 / _FRAMES)
"""Frames from one stretch to the next: 1.3 stretches a second."""
_MIN_COVERAGE = 0.8
"""Of the last stretch by audio; below it, the stretch is left out."""
MIN_SAMPLES = 3_200


class VoiceEncoder(nn.Module):
    """See the module.

    Args:
        bands: of the spectrogram.
        width: of the LSTM.
        size: of the embedding.
        layers: of the LSTM.
    """

    def __init__(self, bands: int = 40, width: int = 256, size: int = 256, layers: int = 3) -> None:
        super().__init__()
        self.bands = bands
        self.lstm = nn.LSTM(bands, width, num_layers=layers, batch_first=True)
        self.proj = nn.Linear(width, size)

    def forward(self, audio: Tensor) -> Tensor:
        """The embedding of a recording.

        Args:
            audio: f32 ``[n]``, 16 kHz, trimmed; n at least :data:`MIN_SAMPLES`.

        Returns:
            f32 ``[256]``, of length 1.
        """
        mel = encoder_mel(audio, self.bands)
        count = _stretches(len(mel))
        missing = _FRAMES + (count - 1) * _STEP - len(mel)
        if missing > 0:
            mel = torch.cat([mel, mel.new_zeros(missing, self.bands)])
        stretches = mel.unfold(0, _FRAMES, _STEP)[:count].transpose(1, 2)
        _, (hidden, _) = self.lstm(stretches)
        directions = nn.functional.normalize(self.proj(hidden[-1]).relu(), dim=1)
        return nn.functional.normalize(directions.mean(dim=0), dim=0)


def _stretches(frames: int) -> int:
    """How many stretches a recording has."""
    count, rest = divmod(max(frames - _FRAMES + _STEP, 0), _STEP)
    if count == 0 or (rest + _FRAMES - _STEP) / _FRAMES >= _MIN_COVERAGE:
        count += 1
    return count
