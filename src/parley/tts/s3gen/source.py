"""The harmonic source: what the vocoder's filter is excited with.

Nine harmonics of the pitch and a little noise where there is a voice, noise alone elsewhere. The
phase of the fundamental is carried from chunk to chunk; the harmonics' phases follow from it, each
with an offset that stays the same for the whole utterance. (Upstream draws new offsets on each
call and starts the phase anew: the known click between the chunks of its streamed audio.)
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from parley.tts.s3gen.noise import source_noise

HARMONICS = 9
_RATE = 24_000
_HOP = 480
_AMPLITUDE = 0.1
_VOICED_NOISE = 0.003
_UNVOICED_NOISE = _AMPLITUDE / 3
_VOICED_ABOVE = 10.0  # hertz


class HarmonicSource:
    """The source of one utterance; chunks must follow each other.

    Args:
        seed: decides the noise and the harmonics' offsets.
    """

    def __init__(self, seed: int) -> None:
        self._noise = source_noise(seed)
        offsets = self._noise.uniform(-math.pi, math.pi, HARMONICS)
        offsets[0] = 0.0
        self._offsets = offsets
        self._phase = 0.0  # of the fundamental, in turns

    def extend(self, pitch: Tensor, mix: nn.Linear) -> Tensor:
        """The next samples.

        Args:
            pitch: hertz, f64 ``[n]`` frames.
            mix: weights of the harmonics.

        Returns:
            ``[480 n]``.
        """
        device = pitch.device
        noise = torch.from_numpy(self._noise.standard_normal((len(pitch) * _HOP, HARMONICS), np.float32)).to(
            device
        )
        # Turns need more digits than a float has after some seconds; whole turns are dropped early.
        turns = torch.cumsum(pitch * (_HOP / _RATE), 0)
        begins = torch.cat([turns.new_zeros(1), turns])[:-1] + self._phase
        if len(pitch):
            self._phase = float(self._phase + turns[-1]) % 1.0
        samples = torch.arange(1, _HOP + 1, device=device, dtype=torch.float64)
        fundamental = (begins[:, None] + pitch[:, None] * (samples / _RATE)).reshape(-1, 1)
        numbers = torch.arange(1, HARMONICS + 1, device=device, dtype=torch.float64)
        angles = 2 * math.pi * ((fundamental * numbers) % 1.0).float()
        waves = _AMPLITUDE * torch.sin(angles + torch.from_numpy(self._offsets).to(device).float())
        voiced = (pitch > _VOICED_ABOVE).float().repeat_interleave(_HOP)[:, None]
        level = voiced * _VOICED_NOISE + (1 - voiced) * _UNVOICED_NOISE
        mixed: Tensor = torch.tanh(mix(waves * voiced + level * noise))
        return mixed[:, 0]
