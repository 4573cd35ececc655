"""The networks of the flow: the encoder of tokens, and the estimator of the flow's direction.

The encoder turns tokens into one vector for each mel frame: a convolution that looks three tokens
ahead, six conformer layers at the tokens' rate, upsampling by two, four conformer layers at the
frames' rate. "Conformer" is upstream's name; the layers have no convolution inside: attention with
relative positions (https://arxiv.org/abs/1901.02860) and a feed-forward network. Everything but the
look-ahead and the attention looks only backwards, so the masks of those two alone decide on what a
frame can depend.

The estimator says in which direction a noisy spectrogram should move: one U-shaped level at the frames'
rate (upstream uses no other) of convolutions that look only backwards, and transformer blocks without
positions, for which the convolutions stand in. Padding on the right needs no masks but the
attention's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the usual name

from parley_torch.tts.s3gen.state import CONTEXT, FRAMES_PER_TOKEN, LayerState

LOOKAHEAD = 3
"""Tokens after a token that its vector depends on."""
MEL_BANDS = 80
HEAD_SIZE = 64
"""Channels of an attention head; a checkpoint's shapes do not show it."""
_INPUTS = 4 * MEL_BANDS  # noise, encoded tokens, speaker, prompt
_TIME_SCALE = 1000


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

        self.distances = torch.zeros(heads, 0, width // heads)
        """The encodings that were computed last; see :meth:`_encoded_distances`."""

    def forward(self, x: Tensor, mask: Tensor, state: LayerState) -> Tensor:
        """``[B, T, width]`` to the same.

        ``mask`` is ``[B, 1, T, P+T]``, 0 where a query may see a key and -inf elsewhere; ``state`` has the
        keys and values of the P positions before ``x``.
        """
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        query = self.linear_q(x).view(shape)
        key, value = state.extend_keys(
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

        They are the same for all inputs and therefore cached; the longest row bounds them.
        """
        zero = self.distances.shape[1] // 2  # where distance 0 is
        if zero < keys:
            zero = 2 ** math.ceil(math.log2(keys + 1)) - 1
            encodings = distance_encodings(zero + 1, self.linear_pos.in_features, self.linear_pos.weight)
            encoded = self.linear_pos(encodings).view(2 * zero + 1, self.heads, -1)
            self.distances = encoded.transpose(0, 1).contiguous()
        return self.distances[:, zero - keys + 1 : zero + queries]


def _by_key(by_distance: Tensor, keys: int) -> Tensor:
    """``[B, heads, T, keys+T-1]`` by distance (the longest first) as ``[B, heads, T, keys]`` by key.

    Each query finds the keys one place further to the left than the query before it: a view whose
    rows are one number closer together than those of ``by_distance``.
    """
    batch, heads, length, _ = by_distance.shape
    *outer, row, place = by_distance.stride()
    first = by_distance.storage_offset() + (length - 1) * place
    return by_distance.as_strided((batch, heads, length, keys), (*outer, row - place, place), first)


def distance_encodings(length: int, width: int, like: Tensor) -> Tensor:
    """Sine and cosine encodings of the distances ``length-1`` ... ``-(length-1)``: ``[2T-1, width]``."""
    distances = torch.arange(length - 1, -length, -1, device=like.device, dtype=torch.float32)
    rates = torch.exp(
        torch.arange(0, width, 2, device=like.device, dtype=torch.float32) * -(math.log(10_000.0) / width)
    )
    angles = distances[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=2).reshape(2 * length - 1, width).to(like.dtype)


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

    def forward(self, x: Tensor, mask: Tensor, state: LayerState) -> Tensor:
        """``[B, T, width]`` to the same; for ``mask`` see :class:`RelativeAttention`."""
        x = x + self.self_attn(self.norm_mha(x), mask, state)
        changed: Tensor = x + self.feed_forward(self.norm_ff(x))
        return changed


class Embed(nn.Module):
    """A linear layer, normalised and scaled."""

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

    def forward(self, x: Tensor, ahead: Tensor, state: LayerState) -> Tensor:
        """``[B, T+3, width]`` to ``[B, T, width]``.

        ``ahead``, bool ``[B, T, 4]``: whether a token may see itself and each of the next three.
        """
        windows = x.unfold(1, LOOKAHEAD + 1, 1) * ahead[:, :, None]
        mixed = F.leaky_relu(F.linear(windows.flatten(2), self.conv1.weight.flatten(1), self.conv1.bias))
        changed: Tensor = self.conv2(state.extend_input(mixed.transpose(1, 2))).transpose(1, 2)
        return x[:, :-LOOKAHEAD] + changed


class Upsample(nn.Module):
    """Repeats each token for its frames and smooths over the frames before."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(width, width, CONTEXT * FRAMES_PER_TOKEN + 1)

    def forward(self, x: Tensor, state: LayerState) -> Tensor:
        """``[B, T, width]`` to ``[B, 2T, width]``."""
        repeated = state.extend_input(x.transpose(1, 2)).repeat_interleave(FRAMES_PER_TOKEN, dim=2)
        smooth: Tensor = self.conv(repeated).transpose(1, 2)
        return smooth


class TokenEncoder(nn.Module):
    """Tokens to one vector for each frame."""

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
        """Channels of all convolutions that look back."""
        return 2 * self.width

    def forward(
        self,
        tokens: Tensor,
        ahead: Tensor,
        masks: tuple[Tensor, Tensor],
        states: tuple[LayerState, LayerState],
    ) -> Tensor:
        """Encode.

        Args:
            tokens: embedded tokens ``[B, T+3, width]``; the last three are only look-ahead.
            ahead: bool ``[B, T, 4]``; see :class:`Lookahead`.
            masks: ``[B, 1, T, P+T]`` of the tokens, and ``[B, 1, 2T, 2(P+T)]`` of the frames.
            states: of the layers at the tokens' rate, and of those at the frames'.

        Returns:
            ``[B, 2T, width]``; without meaning in the padding.
        """
        x = self.pre_lookahead_layer(self.embed(tokens), ahead, states[0])
        for layer in self.encoders:
            x = layer(x, masks[0], states[0])
        x = self.up_embed(self.up_layer(x, states[0]))
        for layer in self.up_encoders:
            x = layer(x, masks[1], states[1])
        encoded: Tensor = self.after_norm(x)
        return encoded


class CausalConv(nn.Conv1d):
    """A convolution of three frames that ends at the current one."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__(channels_in, channels_out, CONTEXT + 1)

    def continue_from(self, x: Tensor, state: LayerState) -> Tensor:
        """``[B, C, T]`` to ``[B, C', T]``."""
        convolved: Tensor = self(state.extend_input(x))
        return convolved


class CausalBlock(nn.Module):
    """Convolution, normalisation over channels, Mish."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        # Upstream's numbering: two transpositions and the activation are modules there.
        self.block = nn.ModuleDict(
            {"0": CausalConv(channels_in, channels_out), "2": nn.LayerNorm(channels_out)}
        )

    def forward(self, x: Tensor, state: LayerState) -> Tensor:
        """``[B, C, T]`` to ``[B, C', T]``."""
        conv = self.block["0"]
        assert isinstance(conv, CausalConv)
        x = conv.continue_from(x, state)
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
        """The time's ``[1, time_width]`` summand of every frame: ``[1, C', 1]``."""
        shift: Tensor = self.mlp["1"](F.mish(time))[:, :, None]
        return shift

    def forward(self, x: Tensor, state: LayerState, shift: Tensor) -> Tensor:
        """``[B, C, T]`` to ``[B, C', T]``."""
        changed: Tensor = self.block2(self.block1(x, state) + shift, state) + self.res_conv(x)
        return changed


class Attention(nn.Module):
    """Plain self-attention."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.to_q = nn.Linear(width, inner, bias=False)
        self.to_k = nn.Linear(width, inner, bias=False)
        self.to_v = nn.Linear(width, inner, bias=False)
        self.to_out = nn.ModuleList([nn.Linear(inner, width)])

    def forward(self, x: Tensor, mask: Tensor, state: LayerState) -> Tensor:
        """``[B, T, width]`` to the same; ``mask`` is ``[B, 1, T, P+T]``."""
        batch, length, _ = x.shape
        query, key, value = (
            layer(x).view(batch, length, -1, HEAD_SIZE).transpose(1, 2)
            for layer in (self.to_q, self.to_k, self.to_v)
        )
        keys, values = state.extend_keys(key, value)
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

    def forward(self, x: Tensor, mask: Tensor, state: LayerState) -> Tensor:
        """``[B, T, width]`` to the same."""
        x = x + self.attn1(self.norm1(x), mask, state)
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
        """The time's ``[1, time_width]`` summand of every frame: ``[1, width, 1]``."""
        block = self[0]
        assert isinstance(block, ResidualBlock)
        return block.shift(time)

    def forward(self, x: Tensor, mask: Tensor, state: LayerState, shift: Tensor) -> Tensor:
        """``[B, C, T]`` to ``[B, width, T]``, before the convolution."""
        x = self[0](x, state, shift).transpose(1, 2)
        blocks = self[1]
        assert isinstance(blocks, Iterable)
        for block in blocks:
            x = block(x, mask, state)
        return x.transpose(1, 2)

    def smooth(self, x: Tensor, state: LayerState) -> Tensor:
        """The convolution at the end."""
        conv = self[2]
        assert isinstance(conv, CausalConv)
        return conv.continue_from(x, state)


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
    """The direction of the flow at each frame.

    Args:
        width: channels inside.
        inner: channels of the attention, a multiple of 64.
        blocks: transformer blocks of each level.
        mid_levels: levels between the two ends of the U.
        meanflow: whether it was distilled to large steps; it then takes the end of a step as well.
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
        """Channels of all causal convolutions."""
        return sum(module.in_channels for module in self.modules() if isinstance(module, CausalConv))

    @property
    def attentions(self) -> int:
        """Number of attention layers."""
        return sum(isinstance(module, Attention) for module in self.modules())

    @property
    def heads(self) -> int:
        """Heads of each attention."""
        return next(m for m in self.modules() if isinstance(m, Attention)).to_q.out_features // HEAD_SIZE

    def shifts(self, step: Tensor) -> Tensor:
        """Each level's summand of every frame, ``[levels, 1, width, 1]``, at a step's two times ``[2]``."""
        times = self.time_mlp(step)
        time = times[:1] if self.time_embed_mixer is None else self.time_embed_mixer(times.reshape(1, -1))
        levels = (*self.down_blocks, *self.mid_blocks, *self.up_blocks)
        return torch.stack([level.shift(time) for level in levels if isinstance(level, AudioLevel)])

    def forward(  # noqa: PLR0917 - a module's arguments are positional
        self,
        x: Tensor,
        inputs: Tensor,
        mask: Tensor,
        shifts: Tensor,
        past: tuple[Tensor | None, Tensor],
        lengths: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """The direction of the flow.

        Args:
            x: noisy spectrogram ``[B, 80, T]``.
            inputs: encoded tokens, speaker and prompt ``[B, 240, T]``.
            mask: ``[B, 1, T, P+T]``, 0 where a frame may see another and -inf elsewhere.
            shifts: of the step; see :meth:`shifts`.
            past: keys and contexts; see :class:`LayerState`.
            lengths: frames of each row without padding, i64 ``[B]``.

        Returns:
            ``[B, 80, T]``, without meaning in the padding; and the new contexts.
        """
        state = LayerState(*past, lengths)
        down, up = self.down_blocks[0], self.up_blocks[0]
        assert isinstance(down, AudioLevel)
        assert isinstance(up, AudioLevel)
        skip = down(torch.cat([x, inputs], dim=1), mask, state, shifts[0])
        x = down.smooth(skip, state)
        for number, level in enumerate(self.mid_blocks, 1):
            x = level(x, mask, state, shifts[number])
        x = up(torch.cat([x, skip], dim=1), mask, state, shifts[-1])
        x = self.final_block(up.smooth(x, state), state)
        return self.final_proj(x), state.new_contexts()
