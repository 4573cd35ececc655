"""The networks that analyse a speaker. The modules have the names of upstream's tensors.

The *speech tokenizer* makes 25 tokens a second of a recording: S3TokenizerV2 (FunAudioLLM; s3tokenizer,
Apache-2.0), a transformer whose attention has a filter over time beside it, then eight three-valued
numbers that make up one token. The *speaker encoder* identifies the voice for S3Gen: CAM++ (3D-Speaker,
Apache-2.0; Chatterbox's copy, MIT), a convolutional front, three blocks of densely connected dilated
layers with gates that see the average around them, and statistics over time. The *voice encoder*
identifies it for T3: an LSTM over stretches of 1.6 s, whose directions are averaged.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the usual name

from parley_torch.tts.voices.enrollment.spectra import RATE, encoder_mel, filter_bank, tokenizer_mel

HEAD_SIZE = 64
_LEVELS = 3
_DIGITS = 8
_ROTATION_BASE = 10_000.0
_ROUND_BELOW_ONE = 0.9990000128746033
"""Upstream's constant, so that the tanh's largest value is not rounded to another."""
BANDS = 80
DILATIONS = (1, 2, 2)
"""Dilations of the blocks."""
_SURROUNDINGS = 100
"""Frames whose average a gate sees, besides that of all."""
_STRETCH = 160
"""Frames of one stretch of the voice encoder."""
_STRETCH_STEP = round(RATE / 1.3 / _STRETCH)
"""Frames from one stretch to the next: 1.3 stretches a second."""
_MIN_COVERAGE = 0.8
"""Share of the last stretch that must be audio; with less, the stretch is left out."""


class _Attention(nn.Module):
    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.heads = width // HEAD_SIZE
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.fsmn_block = nn.Conv1d(width, width, kernel, groups=width, bias=False)

    def forward(self, rows: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """``[n, width]`` → ``[n, width]``."""
        value = self.value(rows)
        mixed = F.scaled_dot_product_attention(
            _rotate(self._split(self.query(rows)), rotation),
            _rotate(self._split(self.key(rows)), rotation),
            self._split(value),
        )
        kernel = self.fsmn_block.kernel_size[0]
        left = (kernel - 1) // 2
        filtered = self.fsmn_block(F.pad(value.T, (left, kernel - 1 - left))).T
        joined: Tensor = self.out(mixed.transpose(0, 1).reshape(rows.shape))
        remembered: Tensor = filtered + value
        return joined + remembered

    def _split(self, rows: Tensor) -> Tensor:
        """``[n, width]`` → ``[heads, n, 64]``."""
        return rows.reshape(len(rows), self.heads, HEAD_SIZE).transpose(0, 1)


class _Block(nn.Module):
    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.attn_ln = nn.LayerNorm(width)
        self.attn = _Attention(width, kernel)
        self.mlp_ln = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, rows: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """``[n, width]`` → ``[n, width]``."""
        rows = rows + self.attn(self.attn_ln(rows), rotation)
        changed: Tensor = rows + self.mlp(self.mlp_ln(rows))
        return changed


class _Encoder(nn.Module):
    def __init__(self, bands: int, width: int, layers: int, kernel: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(bands, width, 3, stride=2, padding=1)
        self.conv2 = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList([_Block(width, kernel) for _ in range(layers)])

    def forward(self, mel: Tensor) -> Tensor:
        """``[bands, m]`` → ``[ceil(m / 4), width]``."""
        rows: Tensor = F.gelu(self.conv2(F.gelu(self.conv1(mel)))).T
        rotation = _rotation(len(rows))
        for block in self.blocks:
            rows = block(rows, rotation)
        return rows


class _Codebook(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.project_down = nn.Linear(width, _DIGITS)

    def forward(self, rows: Tensor) -> Tensor:
        """``[n, width]`` → i64 ``[n]``."""
        digits = (self.project_down(rows).tanh() * _ROUND_BELOW_ONE).round() + 1
        places = _LEVELS ** torch.arange(_DIGITS, dtype=digits.dtype)
        tokens: Tensor = (digits * places).sum(dim=-1).long()
        return tokens


class _Quantizer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self._codebook = _Codebook(width)

    def forward(self, rows: Tensor) -> Tensor:
        """``[n, width]`` → i64 ``[n]``."""
        tokens: Tensor = self._codebook(rows)
        return tokens


class SpeechTokenizer(nn.Module):
    """The speech tokenizer.

    ``width`` is a multiple of 64; ``kernel`` is the length of the filters over time.
    """

    def __init__(self, bands: int = 128, width: int = 1280, layers: int = 6, kernel: int = 31) -> None:
        super().__init__()
        self.bands = bands
        self.encoder = _Encoder(bands, width, layers, kernel)
        self.quantizer = _Quantizer(width)

    def forward(self, audio: Tensor) -> Tensor:
        """Tokens 0 to 6560, i64 ``[ceil(n // 160 / 4)]``, of f32 ``[n]`` at 16 kHz, at most 30 s."""
        tokens: Tensor = self.quantizer(self.encoder(tokenizer_mel(audio, self.bands)))
        return tokens


def _rotation(length: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine of each position's angles, both ``[length, 64]``."""
    frequencies = _ROTATION_BASE ** (-torch.arange(0, HEAD_SIZE, 2).float() / HEAD_SIZE)
    angles = torch.outer(torch.arange(length).float(), frequencies).repeat(1, 2)
    return angles.cos(), angles.sin()


def _rotate(rows: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn each half of a head's channels against the other by its position's angle."""
    cosine, sine = rotation
    first, second = rows.chunk(2, dim=-1)
    return rows * cosine + torch.cat([-second, first], dim=-1) * sine


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
    """The speaker encoder.

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
        """The embedding, f32 ``[192]``, of f32 ``[n]`` at 16 kHz within ±1, n at least 1,000."""
        bank = filter_bank(audio, BANDS).T[None]
        embedding: Tensor = self.xvector(self.head(bank))[0]
        return embedding


class VoiceEncoder(nn.Module):
    """The voice encoder."""

    def __init__(self, bands: int = 40, width: int = 256, size: int = 256, layers: int = 3) -> None:
        super().__init__()
        self.bands = bands
        self.lstm = nn.LSTM(bands, width, num_layers=layers, batch_first=True)
        self.proj = nn.Linear(width, size)

    def forward(self, audio: Tensor) -> Tensor:
        """The embedding, f32 ``[256]`` of length 1, of trimmed f32 ``[n]`` at 16 kHz, n at least 3,200."""
        mel = encoder_mel(audio, self.bands)
        count = _stretches(len(mel))
        missing = _STRETCH + (count - 1) * _STRETCH_STEP - len(mel)
        if missing > 0:
            mel = torch.cat([mel, mel.new_zeros(missing, self.bands)])
        stretches = mel.unfold(0, _STRETCH, _STRETCH_STEP)[:count].transpose(1, 2)
        _, (hidden, _) = self.lstm(stretches)
        directions = F.normalize(self.proj(hidden[-1]).relu(), dim=1)
        return F.normalize(directions.mean(dim=0), dim=0)


def _stretches(frames: int) -> int:
    """Number of stretches in a recording of ``frames`` frames."""
    count, rest = divmod(max(frames - _STRETCH + _STRETCH_STEP, 0), _STRETCH_STEP)
    if count == 0 or (rest + _STRETCH - _STRETCH_STEP) / _STRETCH >= _MIN_COVERAGE:
        count += 1
    return count
