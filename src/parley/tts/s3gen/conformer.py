"""The flow's encoder: tokens in, one vector for each mel frame out.

A convolution that looks three tokens ahead, six conformer layers at the tokens' rate, upsampling
by two, four conformer layers at the frames' rate. "Conformer" is what upstream calls them; they
have no convolution inside: attention with relative positions (https://arxiv.org/abs/1901.02860)
and a feed-forward network.

Everything but the look-ahead and the attention looks only backwards, so the attention's masks
alone decide what a frame can depend on.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that everybody knows

LOOKAHEAD = 3
"""Tokens after a token that its vector depends on."""
FRAMES_PER_TOKEN = 2


class RelativeAttention(nn.Module):
    """Self-attention whose scores also depend on the distance between query and key."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.linear_q = nn.Linear(width, width)
        self.linear_k = nn.Linear(width, width)
        self.linear_v = nn.Linear(width, width)
        self.linear_out = nn.Linear(width, width)
        self.linear_pos = nn.Linear(width, width, bias=False)
        self.pos_bias_u = nn.Parameter(torch.zeros(heads, width // heads))
        self.pos_bias_v = nn.Parameter(torch.zeros(heads, width // heads))

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """Attend.

        Args:
            x: ``[B, T, width]``.
            positions: ``[2T-1, width]``, encodings of the distances T-1 ... -(T-1).
            mask: bool ``[B, 1, T, T]``, true where a query may see a key.
        """
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        query = self.linear_q(x).view(shape)
        key = self.linear_k(x).view(shape).transpose(1, 2)
        value = self.linear_v(x).view(shape).transpose(1, 2)
        distance = self.linear_pos(positions).view(-1, *shape[2:]).transpose(0, 1)  # [heads, 2T-1, d]
        by_distance = (query + self.pos_bias_v).transpose(1, 2) @ distance.transpose(1, 2)
        bias = _by_key(by_distance) / math.sqrt(shape[3])
        attended = F.scaled_dot_product_attention(
            (query + self.pos_bias_u).transpose(1, 2),
            key,
            value,
            attn_mask=bias.masked_fill(~mask, float("-inf")),
        )
        mixed: Tensor = self.linear_out(attended.transpose(1, 2).reshape(batch, length, width))
        return mixed


def _by_key(by_distance: Tensor) -> Tensor:
    """``[B, heads, T, 2T-1]`` by distance (T-1 first) to ``[B, heads, T, T]`` by key."""
    batch, heads, length, distances = by_distance.shape
    padded = F.pad(by_distance, (1, 0)).view(batch, heads, distances + 1, length)
    return padded[:, :, 1:].reshape(batch, heads, length, distances)[..., :length]


class FeedForward(nn.Module):
    """Two linear layers at each position."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w_1 = nn.Linear(width, hidden)
        self.w_2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, T, width]`` to the same."""
        changed: Tensor = self.w_2(F.silu(self.w_1(x)))
        return changed


class ConformerLayer(nn.Module):
    """Attention and feed-forward network, each on the normalised input and added to it."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.self_attn = RelativeAttention(width, heads)
        self.feed_forward = FeedForward(width, hidden)
        self.norm_ff = nn.LayerNorm(width, eps=1e-12)
        self.norm_mha = nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """``[B, T, width]`` to the same; see :class:`RelativeAttention`."""
        x = x + self.self_attn(self.norm_mha(x), positions, mask)
        changed: Tensor = x + self.feed_forward(self.norm_ff(x))
        return changed


class Embed(nn.Module):
    """A linear layer, normalised and scaled for what follows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.out = nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width, eps=1e-5))
        self.scale = math.sqrt(width)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, T, width]`` to the same."""
        embedded: Tensor = self.out(x) * self.scale
        return embedded


class Lookahead(nn.Module):
    """Mixes each token with the next three, and that with the two before."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(width, width, LOOKAHEAD + 1)
        self.conv2 = nn.Conv1d(width, width, 3)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, T, width]`` to the same; what lies after a row's end must be zero."""
        ahead = F.leaky_relu(self.conv1(F.pad(x.transpose(1, 2), (0, LOOKAHEAD))))
        changed: Tensor = x + self.conv2(F.pad(ahead, (2, 0))).transpose(1, 2)
        return changed


class Upsample(nn.Module):
    """Repeats each token for its frames and smooths with what came before."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(width, width, 2 * FRAMES_PER_TOKEN + 1)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, T, width]`` to ``[B, 2T, width]``."""
        repeated = x.repeat_interleave(FRAMES_PER_TOKEN, dim=1).transpose(1, 2)
        smooth: Tensor = self.conv(F.pad(repeated, (2 * FRAMES_PER_TOKEN, 0))).transpose(1, 2)
        return smooth


class Encoder(nn.Module):
    """See the module."""

    def __init__(self, width: int, heads: int, hidden: int, layers: int, up_layers: int) -> None:
        super().__init__()
        self.embed = Embed(width)
        self.pre_lookahead_layer = Lookahead(width)
        self.encoders = nn.ModuleList(ConformerLayer(width, heads, hidden) for _ in range(layers))
        self.up_layer = Upsample(width)
        self.up_embed = Embed(width)
        self.up_encoders = nn.ModuleList(ConformerLayer(width, heads, hidden) for _ in range(up_layers))
        self.after_norm = nn.LayerNorm(width, eps=1e-5)
        self.width = width

    def forward(self, tokens: Tensor, valid: Tensor, token_mask: Tensor, frame_mask: Tensor) -> Tensor:
        """Encode.

        Args:
            tokens: embedded tokens ``[B, T, width]``.
            valid: bool ``[B, T]``, false in the padding.
            token_mask: bool ``[B, 1, T, T]``.
            frame_mask: bool ``[B, 1, 2T, 2T]``.

        Returns:
            ``[B, 2T, width]``; without meaning in the padding.
        """
        # The padding is not zero after the linear layer's bias, and the look-ahead would see it.
        x = self.embed(tokens) * valid[..., None]
        x = self.pre_lookahead_layer(x)
        positions = distance_encodings(x.shape[1], self.width, x)
        for layer in self.encoders:
            x = layer(x, positions, token_mask)
        x = self.up_embed(self.up_layer(x))
        positions = distance_encodings(x.shape[1], self.width, x)
        for layer in self.up_encoders:
            x = layer(x, positions, frame_mask)
        encoded: Tensor = self.after_norm(x)
        return encoded


def distance_encodings(length: int, width: int, like: Tensor) -> Tensor:
    """Sine and cosine encodings of the distances ``length-1`` ... ``-(length-1)``: ``[2T-1, width]``."""
    distances = torch.arange(length - 1, -length, -1, device=like.device, dtype=torch.float32)
    rates = torch.exp(
        torch.arange(0, width, 2, device=like.device, dtype=torch.float32) * -(math.log(10_000.0) / width)
    )
    angles = distances[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=2).reshape(2 * length - 1, width).to(like.dtype)
