"""HiFT, the vocoder: its networks, and the harmonic source that excites it.

HiFTNet (https://arxiv.org/abs/2309.09493): convolutions upsample the spectrogram 120 times and
predict magnitude and phase of short spectra, whose inverse transform is the waveform; at each
level the spectra of the source are added. Upstream's weight normalisation is multiplied out when
a checkpoint is loaded. Inside, signals are images of height 1: on a CPU that lets the channels lie
together in memory, with which its convolutions are up to three times as fast.

The harmonic source excites the vocoder: nine harmonics of the pitch and a little noise where there is
a voice, noise alone elsewhere. The phase of the fundamental continues from chunk to chunk; the
harmonics' phases follow from it, each with an offset that stays the same for the whole utterance.
(Upstream draws new offsets on each call and starts the phase anew: the known click between the
chunks of its streamed audio. And it draws noise for each harmonic, to sum it with the harmonics'
weights; the sum of independent normal noises is one of them, so one is drawn here.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the usual name

from parley_torch.tts.s3gen.networks import MEL_BANDS
from parley_torch.tts.s3gen.spectra import BINS, ShortTimeTransform

SAMPLE_RATE = 24_000
HOP = 480
"""Samples per frame."""
F0_CONTEXT = 5
"""Frames on either side on which a frame's pitch depends."""

_RATES = (8, 5, 3)
_KERNELS = (16, 11, 7)
_RESIDUAL_KERNELS = (3, 7, 11)
_SOURCE_KERNELS = (7, 7, 11)
_SOURCE_STRIDES = (15, 3, 1)
_DILATIONS = (1, 3, 5)
_SLOPE = 0.1
_LIMIT = 0.99
_MAX_MAGNITUDE = 100.0
_EPSILON = 1e-9
HARMONICS = 9
_NOISE_STREAM = 1  # of random numbers; 0 and 2 are the flow's
_AMPLITUDE = 0.1
_VOICED_NOISE = 0.003
_UNVOICED_NOISE = _AMPLITUDE / 3
_VOICED_ABOVE_HZ = 10.0


class HarmonicSource:
    """Phases and noise of one utterance's source; chunks must be consecutive."""

    def __init__(self, seed: int) -> None:
        self._noise = np.random.default_rng((_NOISE_STREAM, seed))
        self.offsets = self._noise.uniform(-math.pi, math.pi, HARMONICS).astype(np.float32)
        """Offsets of the harmonics' phases, in radians."""
        self.offsets[0] = 0.0
        self._phase: Tensor | None = None  # of the fundamental, in turns, f64 [1], where the pitch is

    def advance(self, pitch: Tensor) -> Tensor:
        """The fundamental's phase in turns at the beginning of the next frames; both f64 ``[n]``.

        The host never reads it.
        """
        begin = pitch.new_zeros(1) if self._phase is None else self._phase
        turns = torch.cumsum(torch.cat([begin, pitch * (HOP / SAMPLE_RATE)]), 0)
        self._phase = turns[-1:] % 1.0
        return turns[:-1]

    def next_noise(self, samples: int) -> NDArray[np.float32]:
        """Noise for the next samples."""
        return self._noise.standard_normal(samples, np.float32)


def extend_sources(
    sources: Sequence[HarmonicSource], pitches: Sequence[Tensor], mix: nn.Linear
) -> list[Tensor]:
    """The next samples of many sources, each ``[480 n]``; the host does not wait for the device.

    Each source is given once, with the ``pitches`` of its next frames in hertz, f64 ``[n]``; ``mix`` has the
    weights of the harmonics.
    """
    frames = [len(pitch) for pitch in pitches]
    device = mix.weight.device
    pitch = torch.cat(list(pitches))
    begins = torch.cat([source.advance(part) for source, part in zip(sources, pitches, strict=True)])
    # Offsets are known on the host for each frame: the device would have to tell it the number of all frames.
    offsets = np.repeat(np.stack([source.offsets for source in sources]), frames, axis=0)
    shifts = _to_device(offsets, device).T
    noises = [source.next_noise(count * HOP) for source, count in zip(sources, frames, strict=True)]
    noise = _to_device(np.concatenate(noises), device)
    samples = torch.arange(1, HOP + 1, device=device, dtype=torch.float64)
    # After some seconds turns need more digits than a float has; whole turns are dropped early.
    turns = (begins[:, None] + pitch[:, None] * (samples / SAMPLE_RATE)) % 1.0
    angles = (2 * math.pi) * turns.float().reshape(-1)
    numbers = torch.arange(1, HARMONICS + 1, device=device)
    # One harmonic after the other: [9, samples].
    waves = (numbers[:, None] * angles).view(HARMONICS, len(pitch), HOP)
    waves = waves.add_(shifts[:, :, None]).sin_().flatten(1)
    voiced = (pitch > _VOICED_ABOVE_HZ).float().repeat_interleave(HOP)
    level = voiced * _VOICED_NOISE + (1 - voiced) * _UNVOICED_NOISE
    tone = (mix.weight @ waves)[0] * (_AMPLITUDE * voiced)
    mixed = torch.tanh(tone + level * torch.linalg.vector_norm(mix.weight) * noise + mix.bias)
    return list(torch.split(mixed, [count * HOP for count in frames]))


def _to_device(values: NDArray[np.float32], device: torch.device) -> Tensor:
    tensor = torch.from_numpy(values)
    # From pinned memory a copy waits for nothing that the device has still to do.
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


class Conv(nn.Conv1d):
    """A convolution of an image of height 1."""

    def forward(self, x: Tensor) -> Tensor:
        """``[B, C, 1, T]`` to ``[B, C', 1, T']``."""
        (stride,), (dilation,) = self.stride, self.dilation
        assert not isinstance(self.padding, str)
        return F.conv2d(
            x,
            self.weight[:, :, None],
            self.bias,
            stride=(1, stride),
            padding=(0, *self.padding),
            dilation=(1, dilation),
        )


class Upsampling(nn.ConvTranspose1d):
    """A transposed convolution of an image of height 1."""

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        """``[B, C, 1, T]`` to ``[B, C', 1, T']``."""
        assert output_size is None
        assert not isinstance(self.padding, str)
        return F.conv_transpose2d(
            x, self.weight[:, :, None], self.bias, stride=(1, *self.stride), padding=(0, *self.padding)
        )


class Snake(nn.Module):
    """x + sin²(ax)/a with an own a for each channel (https://arxiv.org/abs/2006.08195)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """``[B, C, 1, T]`` to the same."""
        alpha = self.alpha[:, None, None]
        # In place, because memory bandwidth limits it.
        return (x * alpha).sin_().square_().div_(alpha + _EPSILON).add_(x)


class ResidualStack(nn.Module):
    """Three pairs of convolutions, the first of each pair dilated."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()

        def conv(dilation: int) -> nn.Conv1d:
            return Conv(channels, channels, kernel, dilation=dilation, padding=(kernel - 1) * dilation // 2)

        self.convs1 = nn.ModuleList(conv(dilation) for dilation in _DILATIONS)
        self.convs2 = nn.ModuleList(conv(1) for _ in _DILATIONS)
        self.activations1 = nn.ModuleList(Snake(channels) for _ in _DILATIONS)
        self.activations2 = nn.ModuleList(Snake(channels) for _ in _DILATIONS)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, C, 1, T]`` to the same."""
        for first, dilated, second, plain in zip(
            self.activations1, self.convs1, self.activations2, self.convs2, strict=True
        ):
            x = plain(second(dilated(first(x)))).add_(x)
        return x


class PitchPredictor(nn.Module):
    """Fundamental frequency of each frame from the spectrogram around it.

    In double precision: the source sums the pitch to phases, and with it the rounding, which differs
    with the length of the window. In single precision the waveforms of the same
    spectrogram in pieces and in one piece drift apart by 2e-4 within 12 s; in double by 1e-6.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        # Even numbers, because upstream counts the activations between.
        self.condnet = nn.ModuleDict(
            {
                str(2 * layer): nn.Conv1d(MEL_BANDS if layer == 0 else channels, channels, 3, padding=1)
                for layer in range(F0_CONTEXT)
            }
        )
        self.classifier = nn.Linear(channels, 1)
        self.double()

    def forward(self, mel: Tensor) -> Tensor:
        """Spectrogram ``[B, 80, M]`` to hertz, f64 ``[B, M]``."""
        x = mel.double()
        for conv in self.condnet.values():
            x = F.elu(conv(x))
        pitch: Tensor = self.classifier(x.transpose(1, 2))[..., 0].abs()
        return pitch


class _Source(nn.Module):
    """The weights with which harmonics are summed."""

    def __init__(self) -> None:
        super().__init__()
        self.l_linear = nn.Linear(HARMONICS, 1)


class Vocoder(nn.Module):
    """Spectrogram and source to waveform.

    Args:
        channels: width before the first upsampling; halved by each of the three.
        pitch_channels: width of the pitch predictor.
    """

    def __init__(self, channels: int, pitch_channels: int) -> None:
        super().__init__()
        bins = 2 * BINS  # real and imaginary parts, or magnitudes and phases
        widths = [channels >> level for level in range(len(_RATES) + 1)]
        self.m_source = _Source()
        self.conv_pre = Conv(MEL_BANDS, channels, 7, padding=3)
        self.ups = nn.ModuleList(
            Upsampling(wide, narrow, kernel, rate, padding=(kernel - rate) // 2)
            for wide, narrow, kernel, rate in zip(widths, widths[1:], _KERNELS, _RATES, strict=False)
        )
        self.source_downs = nn.ModuleList(
            Conv(bins, width, 1 if stride == 1 else 2 * stride, stride, padding=stride // 2)
            for width, stride in zip(widths[1:], _SOURCE_STRIDES, strict=True)
        )
        self.source_resblocks = nn.ModuleList(
            ResidualStack(width, kernel) for width, kernel in zip(widths[1:], _SOURCE_KERNELS, strict=True)
        )
        self.resblocks = nn.ModuleList(
            ResidualStack(width, kernel) for width in widths[1:] for kernel in _RESIDUAL_KERNELS
        )
        self.conv_post = Conv(widths[-1], bins, 7, padding=3)
        self.f0_predictor = PitchPredictor(pitch_channels)
        self.transform = ShortTimeTransform()

    def forward(self, mel: Tensor, source: Tensor) -> Tensor:
        """Decode ``mel`` ``[B, 80, M]`` and ``source`` ``[B, 480 M]`` to ``[B, 480 M]``, within ±0.99."""
        layout = torch.channels_last if mel.device.type == "cpu" else torch.contiguous_format
        image = self.transform(source).transpose(1, 2)[:, :, None].contiguous(memory_format=layout)
        x = self.conv_pre(mel[:, :, None].contiguous(memory_format=layout))
        for level, up in enumerate(self.ups):
            x = up(F.leaky_relu_(x, _SLOPE))
            if level == len(self.ups) - 1:
                x = torch.cat([x[..., 1:2], x], dim=3)  # as upstream reflects it
            x += self.source_resblocks[level](self.source_downs[level](image))
            first = level * len(_RESIDUAL_KERNELS)
            stacks = [self.resblocks[first + index](x) for index in range(len(_RESIDUAL_KERNELS))]
            for stack in stacks[1:]:
                stacks[0] += stack
            x = stacks[0].div_(len(stacks))
        x = self.conv_post(F.leaky_relu_(x))[:, :, 0].transpose(1, 2)
        magnitude, phase = x.split(BINS, dim=2)
        magnitude, phase = magnitude.exp().clamp_(max=_MAX_MAGNITUDE), torch.sin(phase)
        spectra = torch.cat([magnitude * torch.cos(phase), magnitude * torch.sin(phase)], dim=2)
        return self.transform.inverse(spectra).clamp_(-_LIMIT, _LIMIT)
