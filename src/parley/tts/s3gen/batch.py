"""Rows of the flow, and how they lie side by side in one run.

A row is a piece of an utterance: all of it, or what follows what was done before. Pieces are padded
on the right and pasts on the left, so that a piece follows its past without a gap. Masks keep the
padding out of everything: a row is what it would be alone (to rounding), whatever stands beside it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parley.tts.s3gen.conformer import FRAMES_PER_TOKEN, LOOKAHEAD
from parley.tts.s3gen.estimator import MEL_BANDS
from parley.tts.s3gen.past import ALWAYS, NEVER, Past, PastBatch, side_by_side
from parley.tts.s3gen.workspace import Workspace

_ANY_CHUNK = 1 << 40  # of queries in the padding: they see everything, so that no attention is empty


@dataclass(frozen=True)
class AudioVoice:
    """What the flow must know of a speaker."""

    embedding: NDArray[np.float32]
    """``[192]``."""
    tokens: NDArray[np.int64]
    """Of the reference speech, ``[P]``."""
    mel: NDArray[np.float32]
    """Of the reference speech, ``[2P, 80]``."""

    @cached_property
    def digest(self) -> bytes:
        """The same for voices that sound the same."""
        digest = hashlib.blake2b(digest_size=16)
        for array in (self.embedding, self.tokens, self.mel):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.digest()


@dataclass(frozen=True)
class FlowRow:
    """A piece of one utterance."""

    voice: AudioVoice
    tokens: NDArray[np.int64]
    """``[n + ahead]``, those of the prompt first where they belong to the piece."""
    ahead: int
    """How many tokens at the end only serve as look-ahead; 0 where the utterance ends."""
    chunks: NDArray[np.int64]
    """Number of each token's chunk, ``[n + ahead]``: 0 for the prompt, and for all with full attention."""
    firsts: NDArray[np.int64]
    """The first token of the utterance that each of them may see, beside the prompt; ``[n + ahead]``."""
    noise: NDArray[np.float32]
    """``[2n, 80]``."""
    prompt: int = 0
    """How many tokens are the prompt's."""
    past: tuple[Past, ...] = ()
    """What came before the piece."""

    @property
    def length(self) -> int:
        """Tokens n whose frames are made."""
        return len(self.tokens) - self.ahead

    @property
    def frames(self) -> int:
        """Frames that are made, the prompt's included."""
        return FRAMES_PER_TOKEN * self.length

    @property
    def begin(self) -> int:
        """Number of the first token of the piece within the utterance."""
        return sum(past.tokens for past in self.past if not past.prompt)


@dataclass(frozen=True)
class FlowBatch:
    """B rows of T tokens as tensors."""

    tokens: Tensor
    """i64 ``[B, T+3]``."""
    ahead: Tensor
    """Bool ``[B, T, 4]``: whether a token may see itself and each of the next three."""
    lengths: Tensor
    """Tokens of each row without padding and look-ahead, i64 ``[B]``."""
    masks: tuple[Tensor, Tensor, Tensor]
    """Of tokens, frames and the estimator's frames: ``[B, 1, queries, past + queries]``, 0 or -inf."""
    speakers: Tensor
    """``[B, 192]``."""
    prompts: Tensor
    noise: Tensor
    """``[B, 80, 2T]``, zero outside."""
    past: PastBatch


@dataclass(frozen=True)
class Padding:
    """To what sizes the estimator's input is padded, in frames."""

    piece: Callable[[int], int] = lambda frames: frames
    past: Callable[[int], int] = lambda frames: frames


def pack(
    rows: Sequence[FlowRow],
    empty: Past,
    workspace: Workspace,
    *,
    padding: Padding = Padding(),
    keep: bool,
) -> FlowBatch:
    """Put rows side by side, where ``empty``, a past of no tokens, is.

    Args:
        rows: of equal or unequal lengths.
        empty: a past of no tokens.
        workspace: holds the largest part of the result.
        padding: to what sizes.
        keep: whether there is to be room for what the rows add to their pasts.
    """
    size = -(-padding.piece(max(row.frames for row in rows)) // FRAMES_PER_TOKEN)
    tokens = np.zeros((len(rows), size + LOOKAHEAD), np.int64)
    part = np.full_like(tokens, -1)  # 0 for the prompt's, 1 for the utterance's
    chunks = np.full((len(rows), size), _ANY_CHUNK)
    firsts, positions = np.zeros_like(chunks), np.full_like(chunks, NEVER)
    prompts = np.zeros((len(rows), MEL_BANDS, FRAMES_PER_TOKEN * size), np.float32)
    noise = np.zeros_like(prompts)
    for index, row in enumerate(rows):
        n, prompt = row.length, row.prompt
        tokens[index, : len(row.tokens)] = row.tokens
        # The prompt must not look into the utterance, except where everything sees everything.
        part[index, : len(row.tokens)] = row.chunks > 0
        chunks[index, :n], firsts[index, :n] = row.chunks[:n], row.firsts[:n]
        positions[index, :prompt] = ALWAYS
        positions[index, prompt:n] = np.arange(row.begin, row.begin + n - prompt)
        prompts[index, :, : FRAMES_PER_TOKEN * prompt] = row.voice.mel[: FRAMES_PER_TOKEN * prompt].T
        noise[index, :, : row.frames] = row.noise.T
    device = empty.token_keys.device
    kept = max(sum(past.step_keys.shape[-2] for past in row.past) for row in rows)
    past = side_by_side(
        [row.past for row in rows],
        empty,
        workspace,
        room=size if keep else 0,
        frames=padding.past(kept) if keep else 0,
    )

    def put(array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(device)

    return FlowBatch(
        tokens=put(tokens),
        ahead=_same_part(put(part)),
        lengths=put(np.array([row.length for row in rows])),
        masks=_masks(put(chunks), put(firsts), put(positions), past),
        speakers=put(np.stack([row.voice.embedding for row in rows])),
        prompts=put(prompts),
        noise=put(noise),
        past=past,
    )


def _same_part(part: Tensor) -> Tensor:
    """Whether each token and its followers belong to the same part: bool ``[B, T, 4]``."""
    followers = part.unfold(1, LOOKAHEAD + 1, 1)
    return followers == followers[..., :1]


def _masks(
    chunks: Tensor, firsts: Tensor, positions: Tensor, past: PastBatch
) -> tuple[Tensor, Tensor, Tensor]:
    """See :attr:`FlowBatch.masks`; all arguments but the past are i64 ``[B, T]``."""
    columns = past.token_keys.shape[-2] - past.room
    begin = columns - past.tokens[:, None]
    in_past = torch.arange(columns, device=chunks.device) >= begin
    # The encoder sees all of the past: what it keeps is small, and its positions have no gaps.
    tokens = _visible(chunks, torch.zeros_like(firsts), positions, torch.where(in_past, ALWAYS, NEVER))
    frames = tokens.repeat_interleave(FRAMES_PER_TOKEN, 2).repeat_interleave(FRAMES_PER_TOKEN, 3)
    chunks, firsts, positions = (
        x.repeat_interleave(FRAMES_PER_TOKEN, dim=1) for x in (chunks, firsts, positions)
    )
    return tokens, frames, _visible(chunks, firsts, positions, past.positions)


def _visible(chunks: Tensor, firsts: Tensor, positions: Tensor, past: Tensor) -> Tensor:
    """``[B, 1, T, P+T]``: 0 where a query (third axis) may see a key (fourth axis), else -inf.

    Args:
        chunks: of the piece, ``[B, T]``.
        firsts: the first token that each of the piece may see, ``[B, T]``.
        positions: token of each of the piece, ``[B, T]``.
        past: token of each of the past, ``[B, P]``; all belong to earlier chunks.
    """
    in_piece = (chunks[:, None] <= chunks[:, :, None]) & (positions[:, None] >= firsts[:, :, None])
    in_past = past[:, None] >= firsts[:, :, None]
    seen = torch.cat([in_past, in_piece], dim=2)[:, None]
    # Numbers, because each layer's attention would make them of truth values anew.
    return torch.zeros(seen.shape, device=seen.device).masked_fill_(~seen, float("-inf"))
