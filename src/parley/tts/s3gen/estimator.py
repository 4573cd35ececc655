"""The flow's estimator: which way a noisy spectrogram should move.

One U-shaped level at the frames' rate (upstream uses no other): convolutions that look only
backwards, and transformer blocks without positions, for which the convolutions stand in. Padding
on the right needs no masks but the attention's: nothing else looks ahead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that everybody knows

from parley.tts.s3gen.carry import CONTEXT, Carry

MEL_BANDS = 80
HEAD_SIZE = 64
"""Channels of an attention head; a checkpoint's shapes do not show it."""
_INPUTS = 4 * MEL_BANDS  # noise, encoded tokens, speaker, prompt
_TIME_SCALE = 1000


class CausalConv(nn.Conv1d):
    """A convolution of three frames that ends at the current one."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__(channels_in, channels_out, CONTEXT + 1)

    def follow(self, x: Tensor, carry: Carry) -> Tensor:
        """``[B, C, T]`` to ``[B, C', T]``."""
        followed: Tensor = self(carry.before(x))
        return followed


class CausalBlock(nn.Module):
    """Convolution, normalisation over channels, Mish."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        # Upstream's numbering: two transpositions and the activation are modules there.
        self.block = nn.ModuleDict(
            {"0": CausalConv(channels_in, channels_out), "2": nn.LayerNorm(channels_out)}
        )

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        """``[B, C, T]`` to ``[B, C', T]``."""
        conv = self.block["0"]
        assert isinstance(conv, CausalConv)
        x = conv.follow(x, carry)
        return F.mish(self.block["2"](x.transpose(1, 2)).transpose(1, 2))


class ResidualBlock(nn.Module):
    """Two causal blocks around the time's embedding."""

    def __init__(self, channels_in: int, channels_out: int, time_width: int) -> None:
        super().__init__()
        self.mlp = nn.ModuleDict({"1": nn.Linear(time_width, channels_out)})
        self.block1 = CausalBlock(channels_in, channels_out)
        self.block2 = CausalBlock(channels_out, channels_out)
        self.res_conv = nn.Conv1d(channels_in, channels_out, 1)

    def shift(self, time: Tensor) -> Tensor:
        """What the time ``[1, time_width]`` adds to every frame: ``[1, C', 1]``."""
        shift: Tensor = self.mlp["1"](F.mish(time))[:, :, None]
        return shift

    def forward(self, x: Tensor, carry: Carry, shift: Tensor) -> Tensor:
        """``[B, C, T]`` to ``[B, C', T]``."""
        changed: Tensor = self.block2(self.block1(x, carry) + shift, carry) + self.res_conv(x)
        return changed


class Attention(nn.Module):
    """Plain self-attention."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.to_q = nn.Linear(width, inner, bias=False)
        self.to_k = nn.Linear(width, inner, bias=False)
        self.to_v = nn.Linear(width, inner, bias=False)
        self.to_out = nn.ModuleList([nn.Linear(inner, width)])

    def forward(self, x: Tensor, mask: Tensor, carry: Carry) -> Tensor:
        """``[B, T, width]`` to the same; ``mask`` is ``[B, 1, T, P+T]``."""
        batch, length, _ = x.shape
        query, key, value = (
            layer(x).view(batch, length, -1, HEAD_SIZE).transpose(1, 2)
            for layer in (self.to_q, self.to_k, self.to_v)
        )
        keys, values = carry.attend(key, value)
        attended = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
        mixed: Tensor = self.to_out[0](attended.transpose(1, 2).reshape(batch, length, -1))
        return mixed


class _Project(nn.Module):
    """A linear layer one level deeper, where upstream's key names have it."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.proj(x))


class TransformerBlock(nn.Module):
    """Attention and feed-forward network, each on the normalised input and added to it."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn1 = Attention(width, inner)
        self.norm3 = nn.LayerNorm(width)
        self.ff = nn.ModuleDict(
            {"net": nn.ModuleDict({"0": _Project(width, 4 * width), "2": nn.Linear(4 * width, width)})}
        )

    def forward(self, x: Tensor, mask: Tensor, carry: Carry) -> Tensor:
        """``[B, T, width]`` to the same."""
        x = x + self.attn1(self.norm1(x), mask, carry)
        layers = self.ff["net"]
        assert isinstance(layers, nn.ModuleDict)
        changed: Tensor = x + layers["2"](layers["0"](self.norm3(x)))
        return changed


class AudioLevel(nn.ModuleList):
    """A residual block, transformer blocks and, at the ends of the U, a convolution."""

    def __init__(
        self, channels_in: int, width: int, inner: int, time_width: int, blocks: int, *, conv: bool
    ) -> None:
        parts: list[nn.Module] = [
            ResidualBlock(channels_in, width, time_width),
            nn.ModuleList(TransformerBlock(width, inner) for _ in range(blocks)),
        ]
        super().__init__([*parts, CausalConv(width, width)] if conv else parts)

    def shift(self, time: Tensor) -> Tensor:
        """What the time ``[1, time_width]`` adds to every frame: ``[1, width, 1]``."""
        block = self[0]
        assert isinstance(block, ResidualBlock)
        return block.shift(time)

    def forward(self, x: Tensor, mask: Tensor, carry: Carry, shift: Tensor) -> Tensor:
        """``[B, C, T]`` to ``[B, width, T]``, before the convolution."""
        x = self[0](x, carry, shift).transpose(1, 2)
        blocks = self[1]
        assert isinstance(blocks, Iterable)
        for block in blocks:
            x = block(x, mask, carry)
        return x.transpose(1, 2)

    def smooth(self, x: Tensor, carry: Carry) -> Tensor:
        """The convolution at the end."""
        conv = self[2]
        assert isinstance(conv, CausalConv)
        return conv.follow(x, carry)


class TimeEmbedding(nn.Module):
    """The time within the flow, 0 to 1, as a vector."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(_INPUTS, width)
        self.linear_2 = nn.Linear(width, width)

    def forward(self, time: Tensor) -> Tensor:
        """``[n]`` to ``[n, width]``."""
        half = _INPUTS // 2
        rates = torch.exp(
            torch.arange(half, device=time.device, dtype=torch.float32) * -(math.log(10_000) / (half - 1))
        )
        angles = _TIME_SCALE * time.float()[:, None] * rates
        waves = torch.cat([angles.sin(), angles.cos()], dim=1).to(self.linear_1.weight.dtype)
        embedded: Tensor = self.linear_2(F.silu(self.linear_1(waves)))
        return embedded


class Estimator(nn.Module):
    """See the module.

    Args:
        width: channels inside.
        inner: channels of the attention, a multiple of 64.
        blocks: transformer blocks of each level.
        mid_levels: levels between the two ends of the U.
        meanflow: whether it was distilled to large steps, whose end it then is told too.
    """

    def __init__(self, width: int, inner: int, blocks: int, mid_levels: int, *, meanflow: bool) -> None:
        super().__init__()
        time_width = 4 * width
        self.time_mlp = TimeEmbedding(time_width)
        self.time_embed_mixer = nn.Linear(2 * time_width, time_width, bias=False) if meanflow else None
        self.down_blocks = nn.ModuleList([AudioLevel(_INPUTS, width, inner, time_width, blocks, conv=True)])
        self.mid_blocks = nn.ModuleList(
            AudioLevel(width, width, inner, time_width, blocks, conv=False) for _ in range(mid_levels)
        )
        self.up_blocks = nn.ModuleList([AudioLevel(2 * width, width, inner, time_width, blocks, conv=True)])
        self.final_block = CausalBlock(width, width)
        self.final_proj = nn.Conv1d(width, MEL_BANDS, 1)

    @property
    def meanflow(self) -> bool:
        """Whether it was distilled to large steps."""
        return self.time_embed_mixer is not None

    @property
    def context_channels(self) -> int:
        """Of all causal convolutions."""
        return sum(module.in_channels for module in self.modules() if isinstance(module, CausalConv))

    @property
    def attentions(self) -> int:
        """Number of attention layers."""
        return sum(isinstance(module, Attention) for module in self.modules())

    @property
    def heads(self) -> int:
        """Of each attention."""
        return next(m for m in self.modules() if isinstance(m, Attention)).to_q.out_features // HEAD_SIZE

    def shifts(self, step: Tensor) -> Tensor:
        """What a step's times add to every frame of each level, ``[levels, 1, width, 1]``.

        Args:
            step: when it begins and ends, ``[2]``; only a distilled estimator looks at the end.
        """
        times = self.time_mlp(step)
        time = times[:1] if self.time_embed_mixer is None else self.time_embed_mixer(times.reshape(1, -1))
        levels = (*self.down_blocks, *self.mid_blocks, *self.up_blocks)
        return torch.stack([level.shift(time) for level in levels if isinstance(level, AudioLevel)])

    def forward(  # noqa: PLR0917 - compiled: all are given by place
        self,
        x: Tensor,
        inputs: Tensor,
        mask: Tensor,
        shifts: Tensor,
        past: tuple[Tensor | None, Tensor],
        lengths: Tensor,
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """The direction of the flow.

        Args:
            x: noisy spectrogram ``[B, 80, T]``.
            inputs: encoded tokens, speaker and prompt ``[B, 240, T]``.
            mask: ``[B, 1, T, P+T]``, 0 where a frame may see another and -inf elsewhere.
            shifts: of the step; see :meth:`shifts`.
            past: keys and contexts; see :class:`parley.tts.s3gen.carry.Carry`.
            lengths: frames of each row without padding, i64 ``[B]``.

        Returns:
            ``[B, 80, T]``, without meaning in the padding; and the carry's new keys and contexts.
        """
        carry = Carry(*past, lengths)
        down, up = self.down_blocks[0], self.up_blocks[0]
        assert isinstance(down, AudioLevel)
        assert isinstance(up, AudioLevel)
        skip = down(torch.cat([x, inputs], dim=1), mask, carry, shifts[0])
        x = down.smooth(skip, carry)
        for number, level in enumerate(self.mid_blocks, 1):
            x = level(x, mask, carry, shifts[number])
        x = up(torch.cat([x, skip], dim=1), mask, carry, shifts[-1])
        x = self.final_block(up.smooth(x, carry), carry)
        return self.final_proj(x), carry.new_keys(), carry.new_contexts()
