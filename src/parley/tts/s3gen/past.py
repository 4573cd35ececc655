"""What the flow keeps of an utterance's past, so that a step costs only its new frames.

Everything in the flow looks backwards, in chunks, and the noise of a frame never changes; so what
the networks computed for earlier chunks stays true. Kept are the keys and values of every
attention (the estimator's once for each of its runs: the steps, twice if guided) and the two
frames before the next one at every convolution.

The voice's prompt is a past of its own. It sees nothing of the utterance and its noise is the same
for all, so that all utterances of a voice share it.

At the published size the estimator keeps 0.46 MB for each frame with two steps in single
precision (half of it in bfloat16) and ten times that when guided; the encoder 0.06 MB for each
token. ``Plan.past_tokens`` bounds the estimator's part.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name that everybody knows

from parley.tts.s3gen.conformer import FRAMES_PER_TOKEN
from parley.tts.s3gen.workspace import Workspace

ALWAYS = 1 << 40
"""Position of what is never too far back to be seen: the prompt."""
NEVER = -1
"""Position of padding."""


@dataclass(frozen=True)
class Past:
    """Of the prompt or of a piece of one utterance. Never changed, only replaced: it can be shared."""

    tokens: int
    """That are over."""
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
        """All of them."""
        return self.token_keys, self.frame_keys, self.step_keys, self.token_contexts, self.step_contexts

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def cut(self, frames: int) -> Past:
        """The same with only the last so many frames of what the estimator keeps."""
        kept = self.step_keys.shape[-2]
        if kept <= frames:
            return self
        return replace(self, step_keys=self.step_keys.narrow(-2, kept - frames, frames).clone())

    def blank(self, tokens: int) -> Past:
        """A past of zeros, if this is one of no tokens."""

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
        """Token of each frame of :attr:`step_keys`, i64 ``[m]``.

        Args:
            before: tokens of the utterance before this piece.
        """
        frames = self.step_keys.shape[-2]
        if self.prompt:
            return torch.full((frames,), ALWAYS)
        end = FRAMES_PER_TOKEN * (before + self.tokens)
        return torch.arange(end - frames, end) // FRAMES_PER_TOKEN


def bounded(pieces: Sequence[Past], tokens: int) -> tuple[Past, ...]:
    """Pieces of an utterance, with no more than so many tokens of what the estimator keeps."""
    left = FRAMES_PER_TOKEN * tokens
    kept: list[Past] = []
    for piece in reversed(pieces):
        kept.append(piece.cut(left))
        left -= kept[-1].step_keys.shape[-2]
    return tuple(reversed(kept))


@dataclass(frozen=True)
class PastBatch:
    """The pasts of B rows, padded on the left, and room behind them for what a run adds.

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
        """What a run has added for a row's piece of so many tokens, in memory of its own."""
        frames = FRAMES_PER_TOKEN * tokens

        def added(keys: Tensor, room: int, count: int) -> Tensor:
            begin = keys.shape[-2] - room
            return keys[..., index, :, begin : begin + count, :].clone()

        room = FRAMES_PER_TOKEN * self.room
        return Past(
            tokens=tokens,
            token_keys=added(self.token_keys, self.room, tokens),
            frame_keys=added(self.frame_keys, room, frames),
            step_keys=added(self.step_keys, room, frames),
            token_contexts=self.token_contexts[index].clone(),
            step_contexts=self.step_contexts[:, :, index].clone(),
        )


def side_by_side(
    rows: Sequence[Sequence[Past]], empty: Past, workspace: Workspace, *, room: int, frames: int = 0
) -> PastBatch:
    """Put pasts side by side, where ``empty`` is.

    Args:
        rows: of each row the pasts that follow each other, if any.
        empty: a past of no tokens.
        workspace: holds the largest part of the result.
        room: tokens that the run may add.
        frames: of the estimator's past to pad to; more if a row has more.
    """
    lasts = [row[-1] if row else empty for row in rows]
    known = [_positions([empty, *row]) for row in rows]
    length = max(frames, *(len(positions) for positions in known))
    positions = torch.stack([F.pad(own, (length - len(own), 0), value=NEVER) for own in known])
    space = FRAMES_PER_TOKEN * room
    device = empty.token_keys.device
    return PastBatch(
        token_keys=_aligned([[past.token_keys for past in row] for row in rows], empty.token_keys, room),
        frame_keys=_aligned([[past.frame_keys for past in row] for row in rows], empty.frame_keys, space),
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
    """:meth:`Past.positions` of pieces that follow each other."""
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
    batch = empty.new_empty(shape) if workspace is None else workspace.take(shape, empty)
    for index, row in enumerate(rows):
        end = length
        for keys in reversed(row):
            begin = end - keys.shape[-2]
            batch[..., index, :, begin:end, :] = keys
            end = begin
        batch[..., index, :, :end, :] = 0  # not to be seen, but a number
    return batch
