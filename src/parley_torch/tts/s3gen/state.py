"""The flow's state between steps, so that a step costs only its new frames.

A piece of a row comes out as in the whole row if every convolution has the frames before the piece,
and every attention the keys and values that it may see. Everything in the flow looks backwards, in
chunks, and the noise of a frame never changes; so the results of earlier chunks stay valid. The
state holds the keys and values of every attention (the estimator's once for each of its runs: the
steps, twice if guided) and the last two frames at every convolution.

The voice's prompt has a past of its own. It sees nothing of the utterance and its noise is always
the same, so that all utterances of a voice share it.

At the published size the estimator's state takes 0.46 MB per frame with two steps in single
precision (half of it in bfloat16) and ten times that when guided; the encoder's 0.06 MB per token.
``Plan.past_tokens`` bounds the estimator's part.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the usual name

FRAMES_PER_TOKEN = 2
CONTEXT = 2
"""Frames before a frame that every convolution sees."""
ALWAYS = 1 << 40
"""Position of the prompt, which every frame sees however far back it is."""
NEVER = -1
"""Position of padding."""


class LayerState:
    """Reads the state of a network's layers, in their order, and collects the next one.

    Args:
        keys: keys and values of the past, and behind them room for those of the piece,
            ``[layers, 2, B, heads, P+T, d]``; None without a past if no state is to be kept.
        contexts: inputs of all convolutions before the piece, ``[B, C, 2]`` with C the sum of their
            channels; zero at the beginning of a row.
        lengths: of the piece, without padding; i64 ``[B]``.
    """

    def __init__(self, keys: Tensor | None, contexts: Tensor, lengths: Tensor) -> None:
        self._keys = keys
        self._contexts = contexts
        self._last = lengths[:, None, None] + torch.arange(CONTEXT, device=lengths.device)
        self._ends: list[Tensor] = []
        self._layer = 0
        self._channel = 0

    def extend_input(self, x: Tensor) -> Tensor:
        """Put the two frames before it in front of a convolution's input ``[B, C, T]``: ``[B, C, 2+T]``."""
        channels = x.shape[1]
        joined = torch.cat([self._contexts[:, self._channel : self._channel + channels], x], dim=2)
        self._channel += channels
        if self._keys is not None:
            self._ends.append(joined.gather(2, self._last.expand(-1, channels, -1)))
        return joined

    def extend_keys(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Put keys and values ``[B, heads, T, d]`` behind those of the past: ``[B, heads, P+T, d]``."""
        if self._keys is None:
            return key, value
        known = self._keys[self._layer]
        self._layer += 1
        length = key.shape[2]
        known[0, :, :, -length:] = key
        known[1, :, :, -length:] = value
        return known[0], known[1]

    def new_contexts(self) -> Tensor:
        """The contexts after the piece, ``[B, C, 2]``."""
        return torch.cat(self._ends, dim=1) if self._ends else self._contexts


@dataclass(frozen=True)
class Past:
    """State after the prompt or after a piece of one utterance. Immutable, so that it can be shared."""

    tokens: int
    """Tokens of the prompt or the piece."""
    token_keys: Tensor
    """``[layers, 2, heads, tokens, d]``."""
    frame_keys: Tensor
    """``[layers, 2, heads, 2 tokens, d]``."""
    step_keys: Tensor
    """``[steps, layers, 2, branches, heads, m, d]`` of the last m frames."""
    token_contexts: Tensor
    """``[C, 2]``."""
    step_contexts: Tensor
    """``[steps, branches, C, 2]``."""
    prompt: bool = False

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors."""
        return self.token_keys, self.frame_keys, self.step_keys, self.token_contexts, self.step_contexts

    def cut(self, frames: int) -> Past:
        """The same with at most the last ``frames`` frames of the estimator's keys."""
        length = self.step_keys.shape[-2]
        if length <= frames:
            return self
        return replace(self, step_keys=self.step_keys.narrow(-2, length - frames, frames).clone())

    def blank(self, tokens: int) -> Past:
        """A past of zeros with the sizes of this one, which must have no tokens."""

        def longer(keys: Tensor, length: int) -> Tensor:
            return keys.new_zeros((*keys.shape[:-2], length, keys.shape[-1]))

        frames = FRAMES_PER_TOKEN * tokens
        return replace(
            self,
            tokens=tokens,
            token_keys=longer(self.token_keys, tokens),
            frame_keys=longer(self.frame_keys, frames),
            step_keys=longer(self.step_keys, frames),
        )

    def positions(self, before: int) -> Tensor:
        """Token of each frame of :attr:`step_keys`, i64 ``[m]``, after ``before`` tokens of the utterance."""
        frames = self.step_keys.shape[-2]
        if self.prompt:
            return torch.full((frames,), ALWAYS)
        end = FRAMES_PER_TOKEN * (before + self.tokens)
        return torch.arange(end - frames, end) // FRAMES_PER_TOKEN


def bounded(pieces: Sequence[Past], tokens: int) -> tuple[Past, ...]:
    """Pieces of an utterance with the estimator's keys of the last ``tokens`` tokens."""
    left = FRAMES_PER_TOKEN * tokens
    cut: list[Past] = []
    for piece in reversed(pieces):
        cut.append(piece.cut(left))
        left -= cut[-1].step_keys.shape[-2]
    return tuple(reversed(cut))


@dataclass(frozen=True)
class PastBatch:
    """The pasts of B rows, padded on the left, and room behind them for a run's results.

    A run writes its keys into the room and its contexts over those of the past.
    """

    token_keys: Tensor
    """``[layers, 2, B, heads, P+T, d]``."""
    frame_keys: Tensor
    """``[layers, 2, B, heads, 2(P+T), d]``."""
    step_keys: Tensor
    """``[steps, layers, 2, branches, B, heads, M+2T, d]``."""
    token_contexts: Tensor
    """``[B, C, 2]``."""
    step_contexts: Tensor
    """``[steps, branches, B, C, 2]``."""
    tokens: Tensor
    """Length of each row's past, i64 ``[B]``."""
    positions: Tensor
    """Token of each frame of the estimator's past, i64 ``[B, M]``; see :data:`ALWAYS`, :data:`NEVER`."""
    room: int
    """T."""

    def row(self, index: int, tokens: int) -> Past:
        """A copy of the state that a run has added for a row's piece of ``tokens`` tokens."""

        def added(keys: Tensor, room: int, count: int) -> Tensor:
            begin = keys.shape[-2] - room
            return keys[..., index, :, begin : begin + count, :].clone()

        frames, room = FRAMES_PER_TOKEN * tokens, FRAMES_PER_TOKEN * self.room
        return Past(
            tokens=tokens,
            token_keys=added(self.token_keys, self.room, tokens),
            frame_keys=added(self.frame_keys, room, frames),
            step_keys=added(self.step_keys, room, frames),
            token_contexts=self.token_contexts[index].clone(),
            step_contexts=self.step_contexts[:, :, index].clone(),
        )


class Workspace:
    """Reusable memory for one large tensor at a time.

    A CPU's allocator returns large blocks to the system, and allocating them again costs more than
    filling them.
    """

    def __init__(self) -> None:
        self._memory = torch.zeros(0)
        self._fixed = False

    def fix(self) -> None:
        """Keep the memory where it is: graphs hold its address. What needs more gets memory for one call."""
        self._fixed = True

    def allocate(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """A tensor of ``like``'s type and device with any content, valid until the next call."""
        size = math.prod(shape)
        if self._fixed and len(self._memory) < size:
            return like.new_zeros(shape)
        if len(self._memory) < size or self._memory.dtype != like.dtype or self._memory.device != like.device:
            self._memory = torch.zeros(0)  # freed first, so that both never exist at once
            self._memory = like.new_zeros(size)
        return self._memory[:size].view(shape)


def batch_pasts(
    rows: Sequence[Sequence[Past]],
    empty: Past,
    workspace: Workspace,
    *,
    room: int,
    tokens: int = 0,
    frames: int = 0,
) -> PastBatch:
    """Batch the pasts of rows, on the device of ``empty``.

    Each row has consecutive pasts or none; ``empty`` has no tokens. The run may add ``room`` tokens. The
    encoder's past is padded to ``tokens``, the estimator's to ``frames``, or both to the longest row.
    """
    lasts = [row[-1] if row else empty for row in rows]
    known = [_positions([empty, *row]) for row in rows]
    length = max(frames, *(len(positions) for positions in known))
    positions = torch.stack([F.pad(own, (length - len(own), 0), value=NEVER) for own in known])
    space = FRAMES_PER_TOKEN * room
    device = empty.token_keys.device
    return PastBatch(
        token_keys=_aligned(
            [[past.token_keys for past in row] for row in rows], empty.token_keys, room, tokens
        ),
        frame_keys=_aligned(
            [[past.frame_keys for past in row] for row in rows],
            empty.frame_keys,
            space,
            FRAMES_PER_TOKEN * tokens,
        ),
        step_keys=_aligned(
            [[past.step_keys for past in row] for row in rows], empty.step_keys, space, length, workspace
        ),
        token_contexts=torch.stack([past.token_contexts for past in lasts]),
        step_contexts=torch.stack([past.step_contexts for past in lasts], dim=2),
        tokens=torch.tensor([sum(past.tokens for past in row) for row in rows], device=device),
        positions=positions.to(device),
        room=room,
    )


def _positions(pieces: Sequence[Past]) -> Tensor:
    """:meth:`Past.positions` of consecutive pieces."""
    before = itertools.accumulate((0 if past.prompt else past.tokens for past in pieces), initial=0)
    return torch.cat([past.positions(tokens) for past, tokens in zip(pieces, before, strict=False)])


def _aligned(
    rows: Sequence[Sequence[Tensor]],
    empty: Tensor,
    room: int,
    length: int = 0,
    workspace: Workspace | None = None,
) -> Tensor:
    """Keys ``[..., heads, n, d]`` of each row's pasts as ``[..., B, heads, P+room, d]``, zero on the left."""
    length = max(length, *(sum(keys.shape[-2] for keys in row) for row in rows))
    *outer, heads, _, size = empty.shape
    shape = (*outer, len(rows), heads, length + room, size)
    batch = empty.new_empty(shape) if workspace is None else workspace.allocate(shape, empty)
    for index, row in enumerate(rows):
        end = length
        for keys in reversed(row):
            begin = end - keys.shape[-2]
            batch[..., index, :, begin:end, :] = keys
            end = begin
        batch[..., index, :, :end, :] = 0  # masked, but it must be a finite number
    return batch
