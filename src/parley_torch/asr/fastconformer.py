"""FastConformer in torch: chunk by chunk with caches in rows of a pool, and over whole stretches.

Parameters have NeMo's names. Sizes are static for a batch of given rows and frames, nothing is read back
from the device, and no memory is allocated outside of torch: so both forms can be captured as CUDA graphs.

See https://arxiv.org/abs/2305.05084 and, for the caches, https://arxiv.org/abs/2312.17279.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from parley.errors import ModelLoadingError
from parley_torch.asr.weights import ENCODER, POSITION_SCALE, SCALE, SHIFT, layer_count

SUBSAMPLING = 8
"""Feature frames per encoder frame."""
HISTORY = 9
"""Feature frames of the past that go into a chunk again."""
_DROPPED = 2
"""Encoder frames that they make, and that are dropped."""
_STRIDES = 3
_NEVER = float("-inf")


@dataclass(frozen=True)
class EncoderSizes:
    """Sizes of a network, which its weights' shapes say."""

    bands: int
    width: int
    layers: int
    heads: int
    inner: int
    """Width inside of the feed-forward modules."""
    channels: int
    """Of the subsampling's convolutions."""
    kernel: int
    """Frames that a layer's convolution covers."""
    biased: bool
    """Whether products have biases."""
    normed: bool
    """Whether a layer's convolution is followed by layer normalisation; batch normalisation is part of it."""
    causal: bool
    """Whether convolutions see no later frames: so it is in models that stream."""

    @classmethod
    def of(cls, weights: Mapping[str, Tensor], *, bands: int, causal: bool) -> EncoderSizes:
        """Read them.

        Raises:
            ModelLoadingError: these are no weights of a FastConformer.
        """
        try:
            inner, width = weights[f"{ENCODER}layers.0.feed_forward1.linear1.weight"].shape
            return cls(
                bands=bands,
                width=width,
                layers=layer_count(weights, r"encoder\.layers\.(\d+)\."),
                heads=weights[f"{ENCODER}layers.0.self_attn.pos_bias_u"].shape[0],
                inner=inner,
                channels=weights[f"{ENCODER}pre_encode.conv.0.weight"].shape[0],
                kernel=weights[f"{ENCODER}layers.0.conv.depthwise_conv.weight"].shape[2],
                biased=f"{ENCODER}layers.0.self_attn.linear_q.bias" in weights,
                normed=f"{ENCODER}layers.0.conv.batch_norm.weight" in weights,
                causal=causal,
            )
        except KeyError as error:
            raise ModelLoadingError(f"the weights have no {error}: this is no FastConformer") from error

    @property
    def head(self) -> int:
        """Width of an attention head."""
        return self.width // self.heads

    def subsampled(self, frames: int) -> int:
        """Encoder frames of ``frames`` feature frames."""
        for _ in range(_STRIDES):
            frames = self._strided(frames)
        return frames

    def _strided(self, size: int) -> int:
        return (size + (3 if self.causal else 2) - 3) // 2 + 1


class _Subsampling(nn.Module):
    """Eight feature frames to one, by three convolutions of stride 2."""

    def __init__(self, sizes: EncoderSizes) -> None:
        super().__init__()
        channels = sizes.channels
        separable = [
            nn.Conv2d(channels, channels, 3, 2, groups=channels),
            nn.Conv2d(channels, channels, 1),
            nn.ReLU(),
        ]
        more = [
            nn.Conv2d(channels, channels, 3, 2, groups=channels),
            nn.Conv2d(channels, channels, 1),
            nn.ReLU(),
        ]
        self.conv = nn.Sequential(nn.Conv2d(1, channels, 3, 2), nn.ReLU(), *separable, *more)
        self.out = nn.Linear(channels * sizes.subsampled(sizes.bands), sizes.width)
        self._padding = (2, 1, 2, 1) if sizes.causal else (1, 1, 1, 1)

    def forward(self, features: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Features ``[B, T, bands]`` to frames ``[B, T', width]``, both with lengths if not all are real."""
        frames = features[:, None]
        for layer in self.conv:
            if isinstance(layer, nn.Conv2d) and layer.stride[0] > 1:
                frames = functional.pad(_cut(frames, lengths), self._padding)
                if lengths is not None:
                    lengths = (lengths + sum(self._padding[2:]) - 3) // 2 + 1
            frames = layer(frames)
        frames = _cut(frames, lengths)
        return self.out(frames.transpose(1, 2).flatten(2)), lengths


def _cut(frames: Tensor, lengths: Tensor | None) -> Tensor:
    """``[B, C, T, F]`` with zeros behind each row's end: convolutions must not see what padding became."""
    if lengths is None:
        return frames
    inside = torch.arange(frames.shape[2], device=frames.device) < lengths[:, None]
    return frames * inside[:, None, :, None]


class _FeedForward(nn.Module):
    def __init__(self, sizes: EncoderSizes) -> None:
        super().__init__()
        self.linear1 = nn.Linear(sizes.width, sizes.inner, bias=sizes.biased)
        self.linear2 = nn.Linear(sizes.inner, sizes.width, bias=sizes.biased)

    def forward(self, frames: Tensor) -> Tensor:
        return self.linear2(functional.silu(self.linear1(frames)))  # type: ignore[no-any-return]


class _Attention(nn.Module):
    """Multi-head attention with relative positions, as in Transformer-XL."""

    def __init__(self, sizes: EncoderSizes) -> None:
        super().__init__()
        width = sizes.width
        self.linear_q = nn.Linear(width, width, bias=sizes.biased)
        self.linear_k = nn.Linear(width, width, bias=sizes.biased)
        self.linear_v = nn.Linear(width, width, bias=sizes.biased)
        self.linear_out = nn.Linear(width, width, bias=sizes.biased)
        self.linear_pos = nn.Linear(width, width, bias=False)
        self.pos_bias_u = nn.Parameter(torch.zeros(sizes.heads, sizes.head))
        self.pos_bias_v = nn.Parameter(torch.zeros(sizes.heads, sizes.head))

    def heads(self, frames: Tensor) -> Tensor:
        """``[..., T, width]`` as ``[..., heads, T, head]``."""
        return frames.view(*frames.shape[:-1], *self.pos_bias_u.shape).transpose(-2, -3)

    def positions(self, table: Tensor) -> Tensor:
        """What the position table's rows ``[P, width]`` are to this layer's queries: ``[heads, head, P]``."""
        return self.heads(self.linear_pos(table)).transpose(1, 2).contiguous()

    def forward(
        self, queries: Tensor, keys: Tensor, values: Tensor, positions: Tensor, mask: Tensor
    ) -> Tensor:
        """Attend.

        Args:
            queries: ``[B, T, width]``, the normalised frames.
            keys: ``[B, heads, K, head]``, of which the last ``T`` are of the same frames.
            values: as ``keys``.
            positions: ``[heads, head, K + T - 1]``, the farthest past first.
            mask: bool, true where a key is not seen; broadcast to ``[B, 1, T, K]``.
        """
        queries = self.heads(self.linear_q(queries))
        rows, heads, count, head = queries.shape
        all_keys = keys.shape[2]
        scores = torch.matmul(queries + self.pos_bias_v[:, None], positions).contiguous()
        # Of query i and key j it is the distance that counts: a diagonal of the scores.
        width = scores.shape[3]
        scores = scores.as_strided(
            (rows, heads, count, all_keys),
            (heads * count * width, count * width, width - 1, 1),
            count - 1,
        )
        scores = (scores * head**-0.5).masked_fill(mask, _NEVER)
        found = functional.scaled_dot_product_attention(
            queries + self.pos_bias_u[:, None], keys, values, attn_mask=scores
        )
        return self.linear_out(found.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class _Convolution(nn.Module):
    def __init__(self, sizes: EncoderSizes) -> None:
        super().__init__()
        width = sizes.width
        self.pointwise_conv1 = nn.Linear(width, 2 * width, bias=sizes.biased)
        # Batch normalisation, which an export makes part of it, gives it a bias.
        self.depthwise_conv = nn.Conv1d(
            width, width, sizes.kernel, groups=width, bias=sizes.biased or not sizes.normed
        )
        self.batch_norm = nn.LayerNorm(width) if sizes.normed else nn.Identity()
        self.pointwise_conv2 = nn.Linear(width, width, bias=sizes.biased)

    def gated(self, frames: Tensor) -> Tensor:
        """``[B, T, width]`` to what is convolved, ``[B, width, T]``."""
        return functional.glu(self.pointwise_conv1(frames), dim=-1).transpose(1, 2)

    def forward(self, gated: Tensor) -> Tensor:
        """``[B, width, kernel - 1 + T]`` to ``[B, T, width]``."""
        frames = self.batch_norm(self.depthwise_conv(gated).transpose(1, 2))
        return self.pointwise_conv2(functional.silu(frames))  # type: ignore[no-any-return]


class _Layer(nn.Module):
    def __init__(self, sizes: EncoderSizes) -> None:
        super().__init__()
        self.norm_feed_forward1 = nn.LayerNorm(sizes.width)
        self.feed_forward1 = _FeedForward(sizes)
        self.norm_self_att = nn.LayerNorm(sizes.width)
        self.self_attn = _Attention(sizes)
        self.norm_conv = nn.LayerNorm(sizes.width)
        self.conv = _Convolution(sizes)
        self.norm_feed_forward2 = nn.LayerNorm(sizes.width)
        self.feed_forward2 = _FeedForward(sizes)
        self.norm_out = nn.LayerNorm(sizes.width)

    def step(self, frames: Tensor, past: _LayerPast, positions: Tensor, mask: Tensor) -> Tensor:
        """A chunk ``[B, T, width]`` of some streams."""
        frames = frames + 0.5 * self.feed_forward1(self.norm_feed_forward1(frames))
        normed = self.norm_self_att(frames)
        attention = self.self_attn
        keys = past.keep(past.keys, attention.heads(attention.linear_k(normed)), axis=2)
        values = past.keep(past.values, attention.heads(attention.linear_v(normed)), axis=2)
        frames = frames + attention(normed, keys, values, positions, mask)
        gated = past.keep(past.convolved, self.conv.gated(self.norm_conv(frames)), axis=2)
        return self._finish(frames + self.conv(gated))

    def whole(self, frames: Tensor, inside: Tensor, positions: Tensor, mask: Tensor, reach: int) -> Tensor:
        """Whole stretches ``[B, T, width]``; ``inside``: bool ``[B, T]``, which frames are real."""
        frames = frames + 0.5 * self.feed_forward1(self.norm_feed_forward1(frames))
        normed = self.norm_self_att(frames)
        attention = self.self_attn
        keys, values = (
            attention.heads(product(normed)) for product in (attention.linear_k, attention.linear_v)
        )
        frames = frames + attention(normed, keys, values, positions, mask)
        gated = self.conv.gated(self.norm_conv(frames)) * inside[:, None]
        return self._finish(frames + self.conv(functional.pad(gated, (reach, reach))))

    def _finish(self, frames: Tensor) -> Tensor:
        frames = frames + 0.5 * self.feed_forward2(self.norm_feed_forward2(frames))
        return self.norm_out(frames)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class EncoderPool:
    """What the encoder remembers of streams: rows of preallocated tensors on the device."""

    keys: Tensor
    """``[layers, rows, heads, left, head]``."""
    values: Tensor
    """As ``keys``."""
    convolved: Tensor
    """``[layers, rows, width, kernel - 1]``."""
    lengths: Tensor
    """i64 ``[rows]``: how many of the ``left`` frames are real; they are the last ones."""
    history: Tensor
    """f32 ``[rows, 9, bands]``: the last feature frames."""

    @classmethod
    def allocate(
        cls,
        sizes: EncoderSizes,
        *,
        rows: int,
        left: int,
        silence: float,
        dtype: torch.dtype,
        device: torch.device,
    ) -> EncoderPool:
        """Rows of streams that have not begun."""
        attention = (sizes.layers, rows, sizes.heads, left, sizes.head)
        return cls(
            torch.zeros(attention, dtype=dtype, device=device),
            torch.zeros(attention, dtype=dtype, device=device),
            torch.zeros((sizes.layers, rows, sizes.width, sizes.kernel - 1), dtype=dtype, device=device),
            torch.zeros(rows, dtype=torch.int64, device=device),
            torch.full((rows, HISTORY, sizes.bands), silence, device=device),
        )

    @staticmethod
    def row_bytes(sizes: EncoderSizes, *, left: int, dtype: torch.dtype) -> int:
        """Bytes of a row."""
        values = sizes.layers * sizes.width * (2 * left + sizes.kernel - 1)
        return values * dtype.itemsize + 8 + 4 * HISTORY * sizes.bands


@dataclass(frozen=True)
class _LayerPast:
    """A layer's part of the pool, and the rows of this step."""

    keys: Tensor
    values: Tensor
    convolved: Tensor
    sources: Tensor
    targets: Tensor

    def keep(self, cache: Tensor, new: Tensor, *, axis: int) -> Tensor:
        """Cached and new frames together; the last of them are written to the cache."""
        joined = torch.cat([cache.index_select(0, self.sources), new], dim=axis)
        kept = cache.shape[axis]
        cache.index_copy_(0, self.targets, joined.narrow(axis, joined.shape[axis] - kept, kept))
        return joined


class FastConformer(nn.Module):
    """The encoder.

    Args:
        sizes: of the network.
    """

    def __init__(self, sizes: EncoderSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.pre_encode = _Subsampling(sizes)
        self.layers = nn.ModuleList(_Layer(sizes) for _ in range(sizes.layers))
        self._shift = 0.0
        self._scale = 1.0
        self._input_scale = 1.0

    @classmethod
    def of(
        cls, weights: Mapping[str, Tensor], sizes: EncoderSizes, dtype: torch.dtype, device: torch.device
    ) -> FastConformer:
        """A network with these weights, for inference.

        Raises:
            ModelLoadingError: weights are missing, left over, or of other shapes.
        """
        with torch.device("meta"):
            network = cls(sizes).eval().requires_grad_(requires_grad=False)
        own = {
            name.removeprefix(ENCODER): tensor.to(device, dtype)
            for name, tensor in weights.items()
            if name.startswith(ENCODER) and name != POSITION_SCALE
        }
        try:
            network.load_state_dict(own, assign=True)
        except RuntimeError as error:
            raise ModelLoadingError(f"the weights are not of this FastConformer: {error}") from error
        for name, attribute in ((SHIFT, "_shift"), (SCALE, "_scale"), (POSITION_SCALE, "_input_scale")):
            if name in weights:
                setattr(network, attribute, float(weights[name]))
        return network

    @property
    def dtype(self) -> torch.dtype:
        """In which it computes."""
        return self.pre_encode.out.weight.dtype

    def positions(self, past: int, count: int) -> list[Tensor]:
        """For each layer what positions are to queries, see ``_Attention``; computed once for a size.

        Args:
            past: frames before the first query that are seen.
            count: queries.
        """
        keys = past + count
        device = self.pre_encode.out.weight.device
        distances = torch.arange(keys - 1, -count, -1, dtype=torch.float32, device=device)
        width = self.sizes.width
        rates = torch.exp(
            torch.arange(0, width, 2, dtype=torch.float32, device=device) * (-math.log(10_000.0) / width)
        )
        angles = distances[:, None] * rates
        table = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).to(self.dtype)
        return [layer.self_attn.positions(table) for layer in self.layers]  # type: ignore[operator,union-attr]

    def step(
        self, features: Tensor, pool: EncoderPool, sources: Tensor, targets: Tensor, positions: list[Tensor]
    ) -> Tensor:
        """Encode the next chunk of several streams.

        Args:
            features: f32 ``[B, chunk, bands]``.
            pool: what is remembered; changed.
            sources: i64 ``[B]``, the rows that are read.
            targets: i64 ``[B]``, the rows that are written; they differ, but for rows that are not read.
            positions: of :meth:`positions`.

        Returns:
            ``[B, T, width]``.
        """
        seen = torch.cat([pool.history.index_select(0, sources), features], dim=1)
        pool.history.index_copy_(0, targets, seen[:, -HISTORY:])
        frames, _ = self.pre_encode(self._prepared(seen), None)
        frames = frames[:, _DROPPED:] * self._input_scale
        count, left = frames.shape[1], pool.keys.shape[3]
        known = pool.lengths.index_select(0, sources)
        pool.lengths.index_copy_(0, targets, (known + count).clamp(max=left))
        mask = torch.arange(left + count, device=frames.device) < (left - known)[:, None]
        mask = mask[:, None, None]
        for index, layer in enumerate(self.layers):
            past = _LayerPast(pool.keys[index], pool.values[index], pool.convolved[index], sources, targets)
            frames = layer.step(frames, past, positions[index], mask)  # type: ignore[operator]
        found: Tensor = frames
        return found

    def forward(self, features: Tensor, lengths: Tensor, positions: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Encode padded stretches; a row's result does not depend on its padding.

        Args:
            features: f32 ``[B, T, bands]``.
            lengths: i64 ``[B]``, real frames of each, at least 1.
            positions: of :meth:`positions`, without a past.

        Returns:
            ``[B, T', width]``, and i64 ``[B]`` how many are real.
        """
        frames, counts = self.pre_encode(self._prepared(features), lengths)
        frames = frames * self._input_scale
        inside = torch.arange(frames.shape[1], device=frames.device) < counts[:, None]
        mask = ~inside[:, None, None]
        reach = (self.sizes.kernel - 1) // 2
        for index, layer in enumerate(self.layers):
            frames = layer.whole(frames, inside, positions[index], mask, reach)  # type: ignore[operator]
        return frames, counts

    def _prepared(self, features: Tensor) -> Tensor:
        prepared: Tensor = (features - self._shift) / self._scale
        return prepared.to(self.dtype)
