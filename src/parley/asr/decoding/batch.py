"""Greedy and beam decoding behind one door, with states that are plain arrays of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from parley.asr.checkpoint import Checkpoint
from parley.asr.decoding.beam import DEAD, BeamDecoder, BeamState, TokenColumns
from parley.asr.decoding.boosting import PhraseAutomaton
from parley.asr.decoding.greedy import JointNetwork, Tokens, TransducerDecoder, TransducerState
from parley.errors import InvalidInputError

Rows: TypeAlias = Mapping[str, NDArray[Any]]
"""A decoder's state by name; the first axis of every array is the row."""

_TAILS = ("tail_ids", "tail_frames", "tail_durations", "tail_confidences")


class RowDecoder(Protocol):
    """Turns pieces of encoded speech into tokens."""

    network: JointNetwork
    blank: int

    def initial(self, rows: int) -> Rows:
        """The state before the first piece."""
        ...

    def decode(
        self,
        encoded: NDArray[np.float32],
        lengths: NDArray[np.int64],
        state: Rows,
        boosting: Sequence[PhraseAutomaton] | None,
    ) -> tuple[list[Reading], Rows]:
        """Decode the next piece of every row.

        Args:
            encoded: f32 ``[B, D, T]``.
            lengths: i64 ``[B]``, how many of the ``T`` frames are real.
            state: what the previous piece left; not changed.
            boosting: each row's phrases; None: no row has any.

        Returns:
            What each row's new tokens may be, and the next state. A token's frame is negative if an
            earlier piece had not settled it.

        Raises:
            InferenceError: the network failed, or its scores cannot be used.
        """
        ...


class GreedyRows:
    """:class:`RowDecoder` that takes the best token at every step: every token is settled at once."""

    def __init__(self, decoder: TransducerDecoder) -> None:
        self._decoder = decoder
        self.network = decoder.network
        self.blank = decoder.blank

    def initial(self, rows: int) -> Rows:
        """See :meth:`RowDecoder.initial`."""
        return vars(self._decoder.initial_state(rows))

    def decode(
        self,
        encoded: NDArray[np.float32],
        lengths: NDArray[np.int64],
        state: Rows,
        boosting: Sequence[PhraseAutomaton] | None,
    ) -> tuple[list[Reading], Rows]:
        """See :meth:`RowDecoder.decode`."""
        tokens, after = self._decoder.decode(encoded, lengths, TransducerState(**state), boosting)
        return [Reading(own, []) for own in tokens], vars(after)


class BeamRows:
    """:class:`RowDecoder` by beam search: a piece settles what all readings have in common."""

    def __init__(self, decoder: BeamDecoder) -> None:
        self._decoder = decoder
        self.network = decoder.network
        self.blank = decoder.settings.blank

    def initial(self, rows: int) -> Rows:
        """See :meth:`RowDecoder.initial`."""
        return _beam_rows(self._decoder.initial_state(rows))

    def decode(
        self,
        encoded: NDArray[np.float32],
        lengths: NDArray[np.int64],
        state: Rows,
        boosting: Sequence[PhraseAutomaton] | None,
    ) -> tuple[list[Reading], Rows]:
        """See :meth:`RowDecoder.decode`."""
        open_tokens = TokenColumns(*(state[name] for name in _TAILS))
        others = {name: values for name, values in state.items() if name not in _TAILS}
        readings, after = self._decoder.decode(
            encoded, lengths, BeamState(tails=open_tokens, **others), boosting
        )
        return readings, _beam_rows(after)


def _beam_rows(state: BeamState) -> Rows:
    rows = {name: values for name, values in vars(state).items() if name != "tails"}
    return rows | dict(zip(_TAILS, state.tails.columns, strict=True))


def make_decoder(export: Checkpoint, network: JointNetwork, *, beam_size: int | None = None) -> RowDecoder:
    """The decoder of an export: by beam search, or greedy without a ``beam_size``."""
    if beam_size is not None:
        return BeamRows(BeamDecoder.of(export, network, beam_size=beam_size))
    return GreedyRows(TransducerDecoder.of(export, network))


def pack(state: Rows) -> NDArray[np.uint8]:
    """All arrays of a state as one: u8 ``[B, size]``."""
    rows = [np.ascontiguousarray(values).reshape(len(values), -1) for values in state.values()]
    return np.concatenate([values.view(np.uint8) for values in rows], axis=1)


def unpack(packed: NDArray[np.uint8], decoder: RowDecoder) -> Rows:
    """Undo :func:`pack`.

    Raises:
        InvalidInputError: it is not a state of this decoder.
    """
    template = decoder.initial(1)
    sizes = [values.nbytes for values in template.values()]
    if packed.ndim != 2 or packed.shape[1] != sum(sizes):
        raise InvalidInputError(f"STATE has shape {list(packed.shape)}; it must be [rows, {sum(sizes)}]")
    parts = np.split(packed, np.cumsum(sizes)[:-1], axis=1)
    state = {
        name: np.ascontiguousarray(part).view(values.dtype).reshape(len(packed), *values.shape[1:])
        for (name, values), part in zip(template.items(), parts, strict=True)
    }
    _check(state, decoder.blank)
    return state


def _check(state: Rows, blank: int) -> None:
    """Refuse numbers that would lead a decoder astray."""
    highest = {"targets": blank, "tail_ids": blank - 1}
    if "tail_counts" in state:
        highest["tail_counts"] = state["tail_ids"].shape[-1]
        if not (np.isfinite(state["scores"]).any(axis=1) & (state["scores"] < np.inf).all(axis=1)).all():
            raise InvalidInputError("STATE has no hypothesis")
    for name in ("targets", "skip", "phrase", "tail_ids", "tail_counts"):
        values = state.get(name, np.zeros(1, np.int32))
        if (values < 0).any() or (values > highest.get(name, np.iinfo(np.int32).max)).any():
            raise InvalidInputError(f"{name} of STATE is out of range")
    for name in ("hidden", "cell"):
        if not np.isfinite(state[name]).all():
            raise InvalidInputError(f"{name} of STATE has values that are not finite")


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
