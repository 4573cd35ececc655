"""The speech tokenizer: 25 tokens a second out of a recording.

S3TokenizerV2 (FunAudioLLM; s3tokenizer, Apache-2.0): a transformer whose attention has a filter
over time beside it, then eight three-valued numbers that make up one token. The names of the
modules are those of the tensors under ``tokenizer.`` in S3Gen's checkpoint.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that everybody knows

from parley.tts.voices.enrollment.spectra import tokenizer_mel

HEAD_SIZE = 64
_LEVELS = 3
_DIGITS = 8
_ROTATION_BASE = 10_000.0
_ROUND_BELOW_ONE = 0.9990000128746033
"""As upstream, so that the tanh's largest value is not rounded to another."""
MAX_SECONDS = 30.0
"""Longer recordings would have to be cut; a voice needs none."""


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
    """See the module.

    Args:
        bands: of the spectrogram.
        width: of the transformer; a multiple of 64.
        layers: of the transformer.
        kernel: length of the filters over time.
    """

    def __init__(self, bands: int = 128, width: int = 1280, layers: int = 6, kernel: int = 31) -> None:
        super().__init__()
        self.bands = bands
        self.encoder = _Encoder(bands, width, layers, kernel)
        self.quantizer = _Quantizer(width)

    def forward(self, audio: Tensor) -> Tensor:
        """The tokens of a recording.

        Args:
            audio: f32 ``[n]``, 16 kHz, at most :data:`MAX_SECONDS`.

        Returns:
            i64 ``[ceil(n // 160 / 4)]``, 0 to 6560.
        """
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
