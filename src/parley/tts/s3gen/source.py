"""The harmonic source: what the vocoder's filter is excited with.

Nine harmonics of the pitch and a little noise where there is a voice, noise alone elsewhere. The
phase of the fundamental is carried from chunk to chunk; the harmonics' phases follow from it, each
with an offset that stays the same for the whole utterance. (Upstream draws new offsets on each
call and starts the phase anew: the known click between the chunks of its streamed audio. And it
draws noise for each harmonic, to sum it with the harmonics' weights; the sum of independent normal
noises is one of them, so one is drawn here.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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
    """What the source of one utterance remembers; chunks must follow each other.

    Args:
        seed: decides the noise and the harmonics' offsets.
    """

    def __init__(self, seed: int) -> None:
        self._noise = source_noise(seed)
        self.offsets = self._noise.uniform(-math.pi, math.pi, HARMONICS).astype(np.float32)
        """Of the harmonics' phases, in radians."""
        self.offsets[0] = 0.0
        self._phase = 0.0  # of the fundamental, in turns

    def advance(self, pitch: Tensor) -> Tensor:
        """The fundamental's phase in turns at the beginning of each frame, f64 ``[n]``.

        Args:
            pitch: of the next frames in hertz, f64 ``[n]``.
        """
        turns = torch.cumsum(pitch * (_HOP / _RATE), 0)
        begins = torch.cat([turns.new_zeros(1), turns])[:-1] + self._phase
        if len(pitch):
            self._phase = float(self._phase + turns[-1]) % 1.0
        return begins

    def draw(self, samples: int) -> Tensor:
        """Noise for the next samples."""
        return torch.from_numpy(self._noise.standard_normal(samples, np.float32))


def extend(sources: Sequence[HarmonicSource], pitches: Sequence[Tensor], mix: nn.Linear) -> list[Tensor]:
    """The next samples of many sources.

    Args:
        sources: each at most once.
        pitches: hertz of each one's next frames, f64 ``[n]``.
        mix: weights of the harmonics.

    Returns:
        For each ``[480 n]``.
    """
    frames = [len(pitch) for pitch in pitches]
    device = mix.weight.device
    pitch = torch.cat(list(pitches))
    begins = torch.cat([source.advance(part) for source, part in zip(sources, pitches, strict=True)])
    offsets = torch.from_numpy(np.stack([source.offsets for source in sources])).to(device)
    noise = torch.cat([source.draw(count * _HOP) for source, count in zip(sources, frames, strict=True)]).to(
        device
    )
    samples = torch.arange(1, _HOP + 1, device=device, dtype=torch.float64)
    # Turns need more digits than a float has after some seconds; whole turns are dropped early.
    turns = (begins[:, None] + pitch[:, None] * (samples / _RATE)) % 1.0
    angles = (2 * math.pi) * turns.float().reshape(-1)
    numbers = torch.arange(1, HARMONICS + 1, device=device)
    # One harmonic after the other: [9, samples].
    shifts = offsets.repeat_interleave(torch.tensor(frames, device=device), dim=0).T
    waves = (numbers[:, None] * angles).view(HARMONICS, -1, _HOP).add_(shifts[:, :, None]).sin_().flatten(1)
    voiced = (pitch > _VOICED_ABOVE).float().repeat_interleave(_HOP)
    level = voiced * _VOICED_NOISE + (1 - voiced) * _UNVOICED_NOISE
    tone = (mix.weight @ waves)[0] * (_AMPLITUDE * voiced)
    mixed = torch.tanh(tone + level * torch.linalg.vector_norm(mix.weight) * noise + mix.bias)
    return list(torch.split(mixed, [count * _HOP for count in frames]))
