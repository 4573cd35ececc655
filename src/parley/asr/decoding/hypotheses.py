"""What a beam search remembers."""

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
    """Token sequences of many hypotheses; what is beyond a hypothesis's length means nothing."""

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
        """Columns full of nothing."""
        numbers = np.zeros(shape, np.int32)
        return cls(numbers, numbers.copy(), numbers.copy(), np.zeros(shape, np.float32))

    @property
    def columns(self) -> tuple[NDArray[Any], ...]:
        """All arrays, in the order of the fields."""
        return self.ids, self.frames, self.durations, self.confidences

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
    """Where the search stands between two pieces; axes: row, place in the beam, others."""

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
    tails: TokenColumns
    """``[B, K, max_tail]``: these tokens, their frames counted from the beginning of the next piece."""
