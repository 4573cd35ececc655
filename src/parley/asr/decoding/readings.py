"""What a beam search answers at the end of a piece."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.asr.decoding.greedy import Tokens
from parley.asr.decoding.hypotheses import DEAD, BeamState, TokenColumns


@dataclass(frozen=True)
class Hypothesis:
    """One reading of what is not settled."""

    tokens: Tokens
    """Frames count from the beginning of the piece: negative ones lie in an earlier piece."""
    score: float
    """Log probability of all its tokens since the beginning, divided by their number and one."""


@dataclass(frozen=True)
class Reading:
    """What a row's search found."""

    settled: Tokens
    """What all hypotheses have in common and no later piece will change."""
    nbest: list[Hypothesis]
    """What may follow, best first, no two with the same tokens; none from greedy decoding, which
    settles everything."""

    @property
    def best(self) -> Tokens:
        """All tokens of the best reading that were not settled by earlier pieces."""
        if not self.nbest:
            return self.settled
        pairs = zip(vars(self.settled).values(), vars(self.nbest[0].tokens).values(), strict=True)
        return Tokens(*(np.concatenate(pair) for pair in pairs))


@dataclass(frozen=True)
class Piece:
    """What is known at the end of a piece."""

    readings: list[Reading]
    dropped: NDArray[np.bool_]
    """``[B, K]``: hypotheses that differ from the best too far back to be kept."""
    tail_counts: NDArray[np.int32]
    """``[B, K]``."""
    tails: TokenColumns
    """``[B, K, max_tail]``, frames counted from the beginning of the next piece."""


def read_piece(
    ranks: NDArray[np.float64],
    paths: tuple[TokenColumns, NDArray[np.int32]],
    before: BeamState,
    roots: NDArray[np.int32],
    lengths: NDArray[np.int64],
) -> Piece:
    """Settle what all hypotheses have in common, and keep the rest.

    Args:
        ranks: f64 ``[B, K]``, the higher the better; -inf where there is no hypothesis.
        paths: tokens of this piece ``[B, K, P]`` and their counts ``[B, K]``.
        before: the state before the piece.
        roots: i32 ``[B, K]``, the place in ``before`` that each hypothesis descends from.
        lengths: i64 ``[B]``, frames of the piece.
    """
    rows = np.arange(len(ranks))
    max_tail = before.tails.ids.shape[-1]
    tails = TokenColumns(*(column[rows[:, None], roots] for column in before.tails.columns))
    open_before = before.tail_counts[rows[:, None], roots]
    counts = open_before + paths[1]
    tokens = _joined(tails, open_before, paths[0], max(int(counts.max(initial=0)), 1))

    order = np.argsort(-ranks, axis=1, kind="stable")
    best = order[:, 0]
    alive = ranks > DEAD
    agreed = _agreement(tokens, counts, best)
    common = np.where(alive, agreed, np.iinfo(np.int32).max).min(axis=1)
    excess = np.where(alive, counts, 0).max(axis=1) - max_tail
    settled = np.maximum(common, np.minimum(excess, counts[rows, best]))
    dropped = alive & ((agreed < settled[:, None]) | (counts - settled[:, None] > max_tail))
    kept = alive & ~dropped
    readings = [
        Reading(
            settled=tokens.of_row(row).tokens(int(best[row]), 0, int(settled[row])),
            nbest=_nbest(
                tokens.of_row(row), counts[row], ranks[row], order[row][kept[row, order[row]]], settled[row]
            ),
        )
        for row in rows.tolist()
    ]
    tail_counts = np.where(kept, counts - settled[:, None], 0).astype(np.int32)
    places = np.arange(max_tail)
    tails = TokenColumns(*(_taken(column, places + settled[:, None, None]) for column in tokens.columns))
    tails.frames[...] -= lengths[:, None, None]
    for column in tails.columns:
        column[places >= tail_counts[:, :, None]] = 0
    return Piece(readings, dropped, tail_counts, tails)


def _joined(
    tails: TokenColumns, tail_counts: NDArray[np.int32], paths: TokenColumns, width: int
) -> TokenColumns:
    """Each hypothesis's open tokens followed by those of this piece: ``[B, K, width]``."""
    places = np.arange(width)
    of_path = places - tail_counts[:, :, None]
    return TokenColumns(
        *(
            np.where(of_path < 0, _taken(tail, places[None, None]), _taken(path, of_path))
            for tail, path in zip(tails.columns, paths.columns, strict=True)
        )
    )


def _taken(column: NDArray[Any], places: NDArray[np.int64]) -> NDArray[Any]:
    """Elements ``places`` of the last axis; anything where there is no such element."""
    if column.shape[-1] == 0:
        return np.zeros(np.broadcast_shapes((*column.shape[:-1], 1), places.shape), column.dtype)
    places = np.clip(places, 0, column.shape[-1] - 1)
    return np.take_along_axis(
        column, np.broadcast_to(places, (*column.shape[:-1], places.shape[-1])), axis=-1
    )


def _agreement(tokens: TokenColumns, counts: NDArray[np.int32], best: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many first tokens each hypothesis has in common with its row's best: i64 ``[B, K]``.

    Their times must be the same too, so that words never overlap with what is settled.
    """
    rows = np.arange(len(best))
    places = np.arange(tokens.ids.shape[-1])
    equal = places < np.minimum(counts, counts[rows, best][:, None])[:, :, None]
    for column in (tokens.ids, tokens.frames, tokens.durations):
        equal &= column == column[rows, best][:, None]
    return np.asarray(np.logical_and.accumulate(equal, axis=2).sum(axis=2))


def _nbest(
    tokens: TokenColumns,
    counts: NDArray[np.int32],
    ranks: NDArray[np.float64],
    order: NDArray[np.int64],
    start: int,
) -> list[Hypothesis]:
    """A row's hypotheses from token ``start`` on, in the given order and without repetitions.

    The arrays are those of one row: tokens ``[K, n]``, all others ``[K]``.
    """
    found: dict[bytes, Hypothesis] = {}
    for place in order.tolist():
        read = tokens.tokens(place, int(start), int(counts[place]))
        found.setdefault(read.ids.tobytes(), Hypothesis(read, float(ranks[place])))
    return list(found.values())
