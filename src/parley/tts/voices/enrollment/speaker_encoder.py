"""The speaker encoder: whose voice it is, for S3Gen.

CAM++ (3D-Speaker, Apache-2.0; Chatterbox's copy, MIT): a convolutional front, three blocks of
densely connected dilated layers that are gated by their surroundings, and statistics over time. The
names of the modules are those of the tensors under ``speaker_encoder.`` in S3Gen's checkpoint.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that everybody knows

from parley.tts.voices.enrollment.spectra import filter_bank

BANDS = 80
DILATIONS = (1, 2, 2)
"""Of the blocks."""
_SURROUNDINGS = 100
"""Frames whose average a gate sees, beside that of all."""


class _Residual(nn.Module):
    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride=(stride, 1), padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, channels, 1, stride=(stride, 1), bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, image: Tensor) -> Tensor:
        """``[1, inputs, bands, n]`` → ``[1, channels, bands / stride, n]``."""
        changed = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(image)))))
        return F.relu(changed + self.shortcut(image))


class _Front(nn.Module):
    """Convolutions over bands and time; an eighth of the bands is left."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.layer1 = nn.Sequential(_Residual(channels, channels, 2), _Residual(channels, channels, 1))
        self.layer2 = nn.Sequential(_Residual(channels, channels, 2), _Residual(channels, channels, 1))
        self.conv2 = nn.Conv2d(channels, channels, 3, stride=(2, 1), padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.out_channels = channels * (BANDS // 8)

    def forward(self, bank: Tensor) -> Tensor:
        """``[1, bands, n]`` → ``[1, out_channels, n]``."""
        image = F.relu(self.bn1(self.conv1(bank[:, None])))
        image = F.relu(self.bn2(self.conv2(self.layer2(self.layer1(image)))))
        return image.flatten(1, 2)


def _normalised(channels: int) -> nn.Sequential:
    return nn.Sequential(OrderedDict(batchnorm=nn.BatchNorm1d(channels), relu=nn.ReLU()))


class _TimeLayer(nn.Module):
    def __init__(self, inputs: int, channels: int) -> None:
        super().__init__()
        self.linear = nn.Conv1d(inputs, channels, 5, stride=2, padding=2, bias=False)
        self.nonlinear = _normalised(channels)

    def forward(self, rows: Tensor) -> Tensor:
        """``[1, inputs, n]`` → ``[1, channels, ceil(n / 2)]``."""
        changed: Tensor = self.nonlinear(self.linear(rows))
        return changed


class _GatedLayer(nn.Module):
    def __init__(self, inputs: int, channels: int, dilation: int) -> None:
        super().__init__()
        self.linear_local = nn.Conv1d(inputs, channels, 3, padding=dilation, dilation=dilation, bias=False)
        self.linear1 = nn.Conv1d(inputs, inputs // 2, 1)
        self.linear2 = nn.Conv1d(inputs // 2, channels, 1)

    def forward(self, rows: Tensor) -> Tensor:
        """``[1, inputs, n]`` → ``[1, channels, n]``."""
        context = rows.mean(-1, keepdim=True) + _surroundings(rows)
        gate = self.linear2(F.relu(self.linear1(context))).sigmoid()
        gated: Tensor = self.linear_local(rows) * gate
        return gated


def _surroundings(rows: Tensor) -> Tensor:
    """The average of each hundred frames, at every frame."""
    means = F.avg_pool1d(rows, _SURROUNDINGS, stride=_SURROUNDINGS, ceil_mode=True)
    return means.repeat_interleave(_SURROUNDINGS, dim=-1)[..., : rows.shape[-1]]


class _DenseLayer(nn.Module):
    def __init__(self, inputs: int, channels: int, inner: int, dilation: int) -> None:
        super().__init__()
        self.nonlinear1 = _normalised(inputs)
        self.linear1 = nn.Conv1d(inputs, inner, 1, bias=False)
        self.nonlinear2 = _normalised(inner)
        self.cam_layer = _GatedLayer(inner, channels, dilation)

    def forward(self, rows: Tensor) -> Tensor:
        """``[1, inputs, n]`` → ``[1, channels, n]``."""
        changed: Tensor = self.cam_layer(self.nonlinear2(self.linear1(self.nonlinear1(rows))))
        return changed


class _DenseBlock(nn.Module):
    """Each layer sees the block's input and what all layers before it made."""

    def __init__(self, inputs: int, layers: int, growth: int, inner: int, dilation: int) -> None:
        super().__init__()
        for number in range(layers):
            layer = _DenseLayer(inputs + number * growth, growth, inner, dilation)
            self.add_module(f"tdnnd{number + 1}", layer)

    def forward(self, rows: Tensor) -> Tensor:
        """``[1, inputs, n]`` → ``[1, inputs + layers * growth, n]``."""
        for layer in self.children():
            rows = torch.cat([rows, layer(rows)], dim=1)
        return rows


class _Transit(nn.Module):
    def __init__(self, inputs: int, channels: int) -> None:
        super().__init__()
        self.nonlinear = _normalised(inputs)
        self.linear = nn.Conv1d(inputs, channels, 1, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        """``[1, inputs, n]`` → ``[1, channels, n]``."""
        changed: Tensor = self.linear(self.nonlinear(rows))
        return changed


class _Statistics(nn.Module):
    def forward(self, rows: Tensor) -> Tensor:
        """``[1, channels, n]`` → ``[1, 2 * channels]``: mean and deviation over time."""
        return torch.cat([rows.mean(-1), rows.std(-1)], dim=-1)


class _Embedding(nn.Module):
    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.linear = nn.Conv1d(inputs, size, 1, bias=False)
        self.nonlinear = nn.Sequential(OrderedDict(batchnorm=nn.BatchNorm1d(size, affine=False)))

    def forward(self, rows: Tensor) -> Tensor:
        """``[1, inputs]`` → ``[1, size]``."""
        embedding: Tensor = self.nonlinear(self.linear(rows[..., None])[..., 0])
        return embedding


class SpeakerEncoder(nn.Module):
    """See the module.

    Args:
        front: channels of the convolutions.
        first: channels of the first block's input.
        growth: channels that each dense layer adds.
        inner: channels within a dense layer.
        layers: dense layers of the blocks.
        size: of the embedding.
    """

    def __init__(
        self,
        *,
        front: int = 32,
        first: int = 128,
        growth: int = 32,
        inner: int = 128,
        layers: Sequence[int] = (12, 24, 16),
        size: int = 192,
    ) -> None:
        super().__init__()
        self.head = _Front(front)
        modules: OrderedDict[str, nn.Module] = OrderedDict(tdnn=_TimeLayer(self.head.out_channels, first))
        channels = first
        for number, (count, dilation) in enumerate(zip(layers, DILATIONS, strict=True), start=1):
            modules[f"block{number}"] = _DenseBlock(channels, count, growth, inner, dilation)
            channels += count * growth
            modules[f"transit{number}"] = _Transit(channels, channels // 2)
            channels //= 2
        modules["out_nonlinear"] = _normalised(channels)
        modules["stats"] = _Statistics()
        modules["dense"] = _Embedding(2 * channels, size)
        self.xvector = nn.Sequential(modules)

    def forward(self, audio: Tensor) -> Tensor:
        """The embedding of a recording.

        Args:
            audio: f32 ``[n]``, 16 kHz within ±1, n at least 1,000.

        Returns:
            f32 ``[192]``.
        """
        bank = filter_bank(audio, BANDS).T[None]
        embedding: Tensor = self.xvector(self.head(bank))[0]
        return embedding
