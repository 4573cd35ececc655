"""HiFT, the vocoder: mel spectrogram and harmonic source in, waveform out.

HiFTNet (https://arxiv.org/abs/2309.09493): convolutions upsample the spectrogram 120 times and
predict magnitude and phase of short spectra, whose inverse transform is the waveform; at each
level the spectra of the source are added. Upstream's weight normalisation is multiplied out when
a checkpoint is loaded.

Inside, signals are images of height 1: on a CPU that lets the channels lie together in memory,
with which its convolutions are up to three times as fast.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that everybody knows

from parley.tts.s3gen.estimator import MEL_BANDS
from parley.tts.s3gen.source import HARMONICS

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
_FFT, _FFT_HOP = 16, 4
_SLOPE = 0.1
_LIMIT = 0.99
_MAX_MAGNITUDE = 100.0
_EPSILON = 1e-9


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
        # In place, because the memory's speed is what limits it.
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

    In double precision: the source sums the pitch up to phases, and with it the rounding, which is
    another one for each length of the window. In single precision the waveforms of the same
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
    """See the module.

    Args:
        channels: width before the first upsampling; halved by each of the three.
        pitch_channels: width of the pitch predictor.
    """

    window: Tensor

    def __init__(self, channels: int, pitch_channels: int) -> None:
        super().__init__()
        bins = _FFT + 2  # real and imaginary parts, or magnitudes and phases
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
        self.register_buffer("window", torch.hann_window(_FFT), persistent=False)

    def forward(self, mel: Tensor, source: Tensor) -> Tensor:
        """Decode.

        Args:
            mel: ``[B, 80, M]``.
            source: ``[B, 480 M]``.

        Returns:
            The waveform ``[B, 480 M]``, within ±0.99.
        """
        layout = torch.channels_last if mel.device.type == "cpu" else torch.contiguous_format
        spectra = torch.stft(source, _FFT, _FFT_HOP, _FFT, self.window, return_complex=True)
        image = torch.cat([spectra.real, spectra.imag], dim=1)[:, :, None].contiguous(memory_format=layout)
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
        x = self.conv_post(F.leaky_relu_(x))[:, :, 0]
        magnitude, phase = x.split(_FFT // 2 + 1, dim=1)
        spectra = torch.polar(magnitude.exp().clamp(max=_MAX_MAGNITUDE), torch.sin(phase))
        waveform = torch.istft(spectra, _FFT, _FFT_HOP, _FFT, self.window)
        return waveform.clamp(-_LIMIT, _LIMIT)
