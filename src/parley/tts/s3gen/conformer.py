"""The flow's encoder: tokens in, one vector for each mel frame out.

A convolution that looks three tokens ahead, six conformer layers at the tokens' rate, upsampling
by two, four conformer layers at the frames' rate. "Conformer" is what upstream calls them; they
have no convolution inside: attention with relative positions (https://arxiv.org/abs/1901.02860)
and a feed-forward network.

Everything but the look-ahead and the attention looks only backwards, so the masks of those two
alone decide what a frame can depend on.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that everybody knows

from parley.tts.s3gen.carry import CONTEXT, Carry

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

        self._distances = torch.zeros(heads, 0, width // heads)

    def forward(self, x: Tensor, mask: Tensor, carry: Carry) -> Tensor:
        """Attend.

        Args:
            x: ``[B, T, width]``.
            mask: ``[B, 1, T, P+T]``, 0 where a query may see a key and -inf elsewhere.
            carry: holds the keys and values of the P positions just before ``x``.
        """
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        query = self.linear_q(x).view(shape)
        key, value = carry.attend(
            self.linear_k(x).view(shape).transpose(1, 2), self.linear_v(x).view(shape).transpose(1, 2)
        )
        distances = self._encoded_distances(key.shape[2], length)
        by_distance = (query + self.pos_bias_v).transpose(1, 2) @ distances.transpose(1, 2)
        bias = torch.add(mask, _by_key(by_distance, key.shape[2]), alpha=1 / math.sqrt(shape[3]))
        attended = F.scaled_dot_product_attention(
            (query + self.pos_bias_u).transpose(1, 2),
            key,
            value,
            attn_mask=bias,
        )
        mixed: Tensor = self.linear_out(attended.transpose(1, 2).reshape(batch, length, width))
        return mixed

    def _encoded_distances(self, keys: int, queries: int) -> Tensor:
        """Of the distances ``keys-1`` ... ``-(queries-1)``: ``[heads, keys+queries-1, d]``.

        They are the same for all inputs, so they are kept; the longest row ever seen bounds them.
        """
        zero = self._distances.shape[1] // 2  # where distance 0 is
        if zero < keys:
            zero = 2 ** math.ceil(math.log2(keys + 1)) - 1
            encodings = distance_encodings(zero + 1, self.linear_pos.in_features, self.linear_pos.weight)
            encoded = self.linear_pos(encodings).view(2 * zero + 1, self.heads, -1)
            self._distances = encoded.transpose(0, 1).contiguous()
        return self._distances[:, zero - keys + 1 : zero + queries]


def _by_key(by_distance: Tensor, keys: int) -> Tensor:
    """``[B, heads, T, keys+T-1]`` by distance (the longest first) as ``[B, heads, T, keys]`` by key.

    Each query sees the keys one place further to the left than the query before it: a view whose
    rows lie one number closer together than the ones of ``by_distance``.
    """
    batch, heads, length, _ = by_distance.shape
    *outer, row, place = by_distance.stride()
    first = by_distance.storage_offset() + (length - 1) * place
    return by_distance.as_strided((batch, heads, length, keys), (*outer, row - place, place), first)


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

    def forward(self, x: Tensor, mask: Tensor, carry: Carry) -> Tensor:
        """``[B, T, width]`` to the same; see :class:`RelativeAttention`."""
        x = x + self.self_attn(self.norm_mha(x), mask, carry)
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
        self.conv2 = nn.Conv1d(width, width, CONTEXT + 1)

    def forward(self, x: Tensor, ahead: Tensor, carry: Carry) -> Tensor:
        """``[B, T+3, width]`` to ``[B, T, width]``.

        Args:
            x: the tokens and three more.
            ahead: bool ``[B, T, 4]``, whether a token may see itself and each of the next three.
            carry: holds the context of what is mixed with the tokens before.
        """
        windows = x.unfold(1, LOOKAHEAD + 1, 1) * ahead[:, :, None]
        mixed = F.leaky_relu(F.linear(windows.flatten(2), self.conv1.weight.flatten(1), self.conv1.bias))
        changed: Tensor = self.conv2(carry.before(mixed.transpose(1, 2))).transpose(1, 2)
        return x[:, :-LOOKAHEAD] + changed


class Upsample(nn.Module):
    """Repeats each token for its frames and smooths with what came before."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(width, width, CONTEXT * FRAMES_PER_TOKEN + 1)

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        """``[B, T, width]`` to ``[B, 2T, width]``."""
        repeated = carry.before(x.transpose(1, 2)).repeat_interleave(FRAMES_PER_TOKEN, dim=2)
        smooth: Tensor = self.conv(repeated).transpose(1, 2)
        return smooth


class TokenEncoder(nn.Module):
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
        self.heads = heads

    @property
    def context_channels(self) -> int:
        """Of all convolutions that look back."""
        return 2 * self.width

    def forward(
        self,
        tokens: Tensor,
        ahead: Tensor,
        masks: tuple[Tensor, Tensor],
        carries: tuple[Carry, Carry],
    ) -> Tensor:
        """Encode.

        Args:
            tokens: embedded tokens ``[B, T+3, width]``, of which the last three are only looked at.
            ahead: bool ``[B, T, 4]``; see :class:`Lookahead`.
            masks: ``[B, 1, T, P+T]`` of the tokens, and ``[B, 1, 2T, 2(P+T)]`` of the frames.
            carries: of the layers at the tokens' rate, and of those at the frames'.

        Returns:
            ``[B, 2T, width]``; without meaning in the padding.
        """
        x = self.pre_lookahead_layer(self.embed(tokens), ahead, carries[0])
        for layer in self.encoders:
            x = layer(x, masks[0], carries[0])
        x = self.up_embed(self.up_layer(x, carries[0]))
        for layer in self.up_encoders:
            x = layer(x, masks[1], carries[1])
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
