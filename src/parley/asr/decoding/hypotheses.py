"""The state of a beam search, and the readings that it returns at the end of a piece."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.asr.decoding.greedy import Tokens

NONE = -1
"""The node before the first token of a piece."""
DEAD = -np.inf
"""Score of a place in the beam where there is no hypothesis."""


@dataclass(frozen=True)
class TokenColumns:
    """Token sequences of many hypotheses; values beyond a hypothesis's length are undefined."""

    ids: NDArray[np.int32]
    """``[..., n]``."""
    frames: NDArray[np.int32]
    """``[..., n]``."""
    durations: NDArray[np.int32]
    """``[..., n]``."""
    confidences: NDArray[np.float32]
    """``[..., n]``."""

    @classmethod
    def empty(cls, *shape: int) -> TokenColumns:
        """Columns of zeros."""
        numbers = np.zeros(shape, np.int32)
        return cls(numbers, numbers.copy(), numbers.copy(), np.zeros(shape, np.float32))

    @property
    def columns(self) -> tuple[NDArray[Any], ...]:
        """All arrays, in the order of the fields."""
        return self.ids, self.frames, self.durations, self.confidences

    def as_tails(self) -> dict[str, NDArray[Any]]:
        """The fields of :class:`BeamState` that have these columns."""
        return {f"tail_{name}": column for name, column in vars(self).items()}

    def of_row(self, row: int) -> TokenColumns:
        """The columns of one row: without the first axis."""
        return TokenColumns(*(column[row] for column in self.columns))

    def tokens(self, place: int, start: int, end: int) -> Tokens:
        """A stretch of one hypothesis's tokens, of columns ``[K, n]``."""
        return Tokens(*(column[place, start:end] for column in self.columns))


class PrefixTree:
    """The tokens that all hypotheses of a piece emitted, each stored once with its predecessor.

    It grows by one node for each token that is tried, and lives as long as the piece.
    """

    def __init__(self) -> None:
        self._size = 0
        self._parents = np.zeros(256, np.int32)
        self._depths = np.zeros(256, np.int32)
        self._stored = TokenColumns.empty(256)

    def add(
        self,
        parents: NDArray[np.int32],
        ids: NDArray[np.int64],
        frames: NDArray[np.int64],
        durations: NDArray[np.int64],
        confidences: NDArray[np.float32],
    ) -> NDArray[np.int32]:
        """Store ``n`` tokens, all arrays ``[n]``; return their nodes, i32 ``[n]``."""
        end = self._size + len(parents)
        if end > len(self._parents):
            self._grow(2 * end)
        new = slice(self._size, end)
        self._parents[new] = parents
        self._depths[new] = np.where(parents == NONE, 0, self._depths[parents]) + 1
        values = (ids, frames, durations, confidences)
        for column, value in zip(self._stored.columns, values, strict=True):
            column[new] = value
        self._size = end
        return np.arange(new.start, end, dtype=np.int32)

    def paths(self, nodes: NDArray[np.int32]) -> tuple[TokenColumns, NDArray[np.int32]]:
        """The tokens from the beginning of the piece to each node: ``[..., n]``, and their counts."""
        counts = np.where(nodes == NONE, 0, self._depths[nodes]).astype(np.int32)
        paths = TokenColumns.empty(*nodes.shape, int(counts.max(initial=0)))
        nodes = nodes.copy()
        for depth in range(paths.ids.shape[-1], 0, -1):
            here = np.nonzero(counts >= depth)
            at = nodes[here]
            for path, column in zip(paths.columns, self._stored.columns, strict=True):
                path[(*here, depth - 1)] = column[at]
            nodes[here] = self._parents[at]
        return paths, counts

    def _grow(self, size: int) -> None:
        more = size - len(self._parents)
        self._parents = np.pad(self._parents, (0, more))
        self._depths = np.pad(self._depths, (0, more))
        self._stored = TokenColumns(*(np.pad(column, (0, more)) for column in self._stored.columns))


@dataclass(frozen=True)
class BeamState:
    """The state of the search between two pieces; axes: row, place in the beam, others."""

    scores: NDArray[np.float64]
    """``[B, K]``: log probabilities with boosting; -inf where there is no hypothesis."""
    targets: NDArray[np.int32]
    """``[B, K]``: the last token, at first the blank."""
    hidden: NDArray[np.float32]
    """``[B, K, layers, width]``."""
    cell: NDArray[np.float32]
    """``[B, K, layers, width]``."""
    skip: NDArray[np.int32]
    """``[B, K]``: frames of the next piece that are already passed over."""
    phrase: NDArray[np.int32]
    """``[B, K]``: state of the row's :class:`~parley.asr.decoding.boosting.PhraseAutomaton`."""
    counts: NDArray[np.int32]
    """``[B, K]``: tokens since the beginning of the recording."""
    hashes: NDArray[np.uint64]
    """``[B, K]``: of these tokens."""
    tail_counts: NDArray[np.int32]
    """``[B, K]``: tokens that are not settled."""
    tail_ids: NDArray[np.int32]
    """``[B, K, max_tail]``: these tokens."""
    tail_frames: NDArray[np.int32]
    """``[B, K, max_tail]``, counted from the beginning of the next piece."""
    tail_durations: NDArray[np.int32]
    """``[B, K, max_tail]``."""
    tail_confidences: NDArray[np.float32]
    """``[B, K, max_tail]``."""

    @property
    def tails(self) -> TokenColumns:
        """The tokens that are not settled."""
        return TokenColumns(self.tail_ids, self.tail_frames, self.tail_durations, self.tail_confidences)


@dataclass(frozen=True)
class Hypothesis:
    """One reading of what is not settled."""

    tokens: Tokens
    """Frames count from the beginning of the piece: negative ones lie in an earlier piece."""
    score: float
    """Log probability of all its tokens since the beginning, divided by their number and one."""


@dataclass(frozen=True)
class Reading:
    """The result of a row's search."""

    settled: Tokens
    """Tokens that all hypotheses have in common and no later piece changes."""
    nbest: list[Hypothesis]
    """What may follow, best first, no two with the same tokens; empty after greedy decoding, which settles
    all tokens."""

    @property
    def best(self) -> Tokens:
        """All tokens of the best reading that were not settled by earlier pieces."""
        if not self.nbest:
            return self.settled
        return Tokens.joined([self.settled, self.nbest[0].tokens])


@dataclass(frozen=True)
class Piece:
    """The outcome of one piece of all rows."""

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
