"""Beam search for transducers, all hypotheses of all rows in lockstep.

Each hypothesis stands at an encoder frame of its own. A step scores the next token (and, for a TDT,
its duration) of hypotheses, keeps the best extensions of each row and merges those that have the
same text and stand at the same frame by adding their probabilities. It is the modified
alignment-length synchronous search (https://ieeexplore.ieee.org/document/9053040) that NeMo calls
``malsd_batch``, with two differences:

- By default only those hypotheses of a row go on that stand at its earliest frame; the others wait
  for them. What is compared is then equally far, and decoding in pieces gives exactly what decoding
  at once gives. ``synchronous=False`` is NeMo's order: all go on, and wait at the end of a piece.
- A hypothesis with ``max_symbols`` tokens at a frame goes to the next frame as in greedy decoding,
  so that a beam of one is greedy decoding.

What all hypotheses of a row have in common is settled after each piece and given away; what they
do not is kept, up to ``max_tail`` tokens, so that memory does not grow with the recording.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from parley.asr.checkpoint import Checkpoint
from parley.asr.decoding.boosting import PhraseAutomaton, PhraseForest, share
from parley.asr.decoding.greedy import SCORES, JointNetwork, check_scores, tsallis_confidence
from parley.asr.decoding.hypotheses import (
    DEAD,
    NONE,
    BeamState,
    PrefixTree,
    Reading,
    TokenColumns,
    read_piece,
)
from parley.asr.decoding.topk import logsumexp, top_k
from parley.runtime.batching import RowsNotFiniteError


@dataclass(frozen=True)
class Expansion:
    """The best tokens after each of ``n`` hypotheses."""

    scores: NDArray[np.float64]
    """``[n, W]``: log probabilities with boosting, the best first."""
    labels: NDArray[np.int64]
    """``[n, W]``: tokens or the blank."""
    durations: NDArray[np.float32] | NDArray[np.float64]
    """``[n, durations]``: log probabilities of the durations."""
    confidences: Callable[[NDArray[np.int64]], NDArray[np.float32]]
    """How sure the network is after some of the hypotheses: f32 ``[m]`` for i64 ``[m]``."""
    hidden: NDArray[np.float32]
    """``[layers, n, width]``: the state if a token is taken."""
    cell: NDArray[np.float32]
    """``[layers, n, width]``."""


@runtime_checkable
class Expanding(Protocol):
    """A network that finds the best tokens where it runs, instead of giving away the scores of all."""

    def expand(
        self,
        frames: NDArray[np.float32],
        targets: NDArray[np.int32],
        hidden: NDArray[np.float32],
        cell: NDArray[np.float32],
        width: int,
    ) -> Expansion:
        """Find the ``width`` best after what :meth:`parley.asr.decoding.greedy.JointNetwork.step` takes.

        Raises:
            RowsNotFiniteError: scores of some rows are not finite.
        """
        ...


@dataclass(frozen=True)
class BeamDecoder:
    """Beam search with one run of the network per step for all hypotheses that go on."""

    network: JointNetwork
    _: KW_ONLY
    blank: int
    """Id of the blank; the tokens are ``0 .. blank - 1``."""
    durations: tuple[int, ...]
    """Frames that each duration class stands for; none for an RNN-T."""
    max_symbols: int
    beam_size: int
    max_tail: int = 64
    """Tokens kept open; hypotheses that differ from the best before them are dropped."""
    synchronous: bool = True
    """Whether hypotheses wait for those at earlier frames."""

    @classmethod
    def of(cls, checkpoint: Checkpoint, network: JointNetwork, *, beam_size: int) -> BeamDecoder:
        """The decoder of an export."""
        config = checkpoint.config
        return cls(
            network,
            blank=checkpoint.blank,
            durations=config.durations,
            max_symbols=config.max_tokens_per_step,
            beam_size=beam_size,
        )

    def initial_state(self, rows: int) -> BeamState:
        """The state before the first piece: one empty hypothesis for each row."""
        shape = (rows, self.beam_size)
        scores = np.full(shape, DEAD)
        scores[:, 0] = 0.0
        zeros = np.zeros(shape, np.int32)
        network = np.zeros((*shape, self.network.layers, self.network.width), np.float32)
        return BeamState(
            scores=scores,
            targets=np.full(shape, self.blank, np.int32),
            hidden=network,
            cell=network,
            skip=zeros,
            phrase=zeros,
            counts=zeros,
            hashes=np.zeros(shape, np.uint64),
            tail_counts=zeros,
            **TokenColumns.empty(*shape, self.max_tail).as_tails(),
        )

    def decode(
        self,
        encoded: NDArray[np.float32],
        lengths: NDArray[np.int64],
        state: BeamState,
        boosting: Sequence[PhraseAutomaton] | None = None,
    ) -> tuple[list[Reading], BeamState]:
        """Decode the next piece of every row.

        A phrase that is begun but not finished does not count in the order of the readings.

        Returns:
            Each row's reading, and the state for the next piece.

        Raises:
            InferenceError: the network's scores are not finite, or are those of another kind of
                transducer.
        """
        forest = PhraseForest(boosting, self.blank) if boosting else None
        search = BeamSearch(self, encoded, lengths, state=state, forest=forest)
        while search.advance():
            pass
        return search.finish()


_HASH_FACTOR = np.uint64(6364136223846793005)
_WAITS = -1
"""Label of a hypothesis that does not go on in a step."""


@dataclass(frozen=True)
class _Extensions:
    """The best ways on for each of ``n`` hypotheses."""

    scores: NDArray[np.float64]
    """``[n, W]``: log probabilities with boosting."""
    labels: NDArray[np.int64]
    """``[n, W]``: tokens or the blank."""
    steps: NDArray[np.int64]
    """``[n, W]``: frames to advance by."""
    confidences: Callable[[NDArray[np.int64]], NDArray[np.float32]]
    """See :class:`Expansion`."""
    hidden: NDArray[np.float32]
    """``[n, layers, width]``: the state if a token is taken."""
    cell: NDArray[np.float32]
    """``[n, layers, width]``."""


class BeamSearch:
    """All hypotheses of all rows within one piece."""

    def __init__(
        self,
        decoder: BeamDecoder,
        encoded: NDArray[np.float32],
        lengths: NDArray[np.int64],
        *,
        state: BeamState,
        forest: PhraseForest | None,
    ) -> None:
        """Begin where the last piece ended; see :meth:`parley.asr.decoding.beam.BeamDecoder.decode`."""
        self._settings = decoder
        self._network = decoder.network
        self._frames = np.ascontiguousarray(encoded.transpose(0, 2, 1))
        self._lengths = lengths
        self._before = state
        self._forest = forest
        self._tree = PrefixTree()
        self._scores = state.scores.copy()
        self._targets, self._hidden, self._cell = state.targets.copy(), state.hidden.copy(), state.cell.copy()
        self._at = state.skip.astype(np.int64)
        self._phrase, self._counts, self._hashes = (
            state.phrase.copy(),
            state.counts.copy(),
            state.hashes.copy(),
        )
        self._symbols = np.zeros(self._scores.shape, np.int64)
        self._nodes = np.full(self._scores.shape, NONE, np.int32)
        self._roots = np.tile(np.arange(decoder.beam_size, dtype=np.int32), (len(lengths), 1))

    def advance(self) -> bool:
        """Extend the hypotheses whose turn it is; False if all are past the end of the piece."""
        active = (self._scores > DEAD) & (self._at < self._lengths[:, None])
        if not active.any():
            return False
        if self._settings.synchronous:
            earliest = np.where(active, self._at, np.iinfo(np.int64).max).min(axis=1, keepdims=True)
            active &= self._at == earliest
        rows = np.flatnonzero(active.any(axis=1))
        row, place = np.nonzero(active)
        extensions = self._extensions(row, place)
        # Where in `extensions` each hypothesis of `rows` is.
        index = np.full(active.shape, -1)
        index[row, place] = np.arange(len(row))
        self._keep_best(rows, index[rows], extensions)
        self._merge(rows)
        return True

    def finish(self) -> tuple[list[Reading], BeamState]:
        """What was read, and the state for the next piece."""
        rows = np.arange(len(self._lengths))
        credit = np.zeros(self._scores.shape)
        if self._forest is not None:
            flat_rows = np.repeat(rows, self._settings.beam_size)
            credit[...] = self._forest.credit(flat_rows, self._phrase.reshape(-1)).reshape(credit.shape)
        piece = read_piece(
            (self._scores - credit) / (self._counts + 1),
            self._tree.paths(self._nodes),
            self._before,
            self._roots,
            self._lengths,
        )
        return piece.readings, BeamState(
            scores=np.where(piece.dropped, DEAD, self._scores),
            targets=self._targets,
            hidden=self._hidden,
            cell=self._cell,
            skip=np.maximum(self._at - self._lengths[:, None], 0).astype(np.int32),
            phrase=self._phrase,
            counts=self._counts,
            hashes=self._hashes,
            tail_counts=piece.tail_counts,
            **piece.tails.as_tails(),
        )

    def _extensions(self, row: NDArray[np.int64], place: NDArray[np.int64]) -> _Extensions:
        blank, durations = self._settings.blank, self._settings.durations
        width = min(self._settings.beam_size, blank + 1)
        inputs = (
            self._frames[row, self._at[row, place]],
            self._targets[row, place],
            np.ascontiguousarray(self._hidden[row, place].transpose(1, 0, 2)),
            np.ascontiguousarray(self._cell[row, place].transpose(1, 0, 2)),
        )
        if self._forest is None and isinstance(self._network, Expanding):
            try:
                found = self._network.expand(*inputs, width)
            except RowsNotFiniteError as error:
                # Its rows are hypotheses.
                raise RowsNotFiniteError(SCORES, np.unique(row[list(error.rows)]).tolist()) from error
        else:
            found = self._expand(row, place, inputs, width)
        if durations:
            scores, labels, steps = self._with_durations(found)
        else:
            scores, labels, steps = found.scores, found.labels, np.zeros_like(found.labels)
        steps = np.where((labels == blank) & (steps == 0), 1, steps)
        hidden, cell = found.hidden.transpose(1, 0, 2), found.cell.transpose(1, 0, 2)
        return _Extensions(scores, labels, steps, found.confidences, hidden, cell)

    def _expand(
        self,
        row: NDArray[np.int64],
        place: NDArray[np.int64],
        inputs: tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.float32], NDArray[np.float32]],
        width: int,
    ) -> Expansion:
        """The ``width`` best of all scores, with the bonus of phrases."""
        blank, durations = self._settings.blank, self._settings.durations
        logits, hidden, cell = self._network.step(*inputs)
        check_scores(logits, blank, len(durations), row)
        token_scores, duration_scores = np.split(logits, [blank + 1], axis=1)
        bonus = None
        if self._forest is not None:
            bonus = np.zeros_like(token_scores)
            earned = self._forest.scores(row, self._phrase[row, place])
            bonus[:, :blank] = share(token_scores[:, :blank], earned)
        scores, labels = top_k(token_scores, width, bonus)
        if durations:
            duration_scores = duration_scores - logsumexp(duration_scores)

        def confidences(source: NDArray[np.int64]) -> NDArray[np.float32]:
            return tsallis_confidence(token_scores[source])

        return Expansion(scores, labels, duration_scores, confidences, hidden, cell)

    def _with_durations(
        self, found: Expansion
    ) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
        """The best pairs of the best labels with all durations: all ``[n, W]``."""
        pairs = found.scores[:, :, None] + found.durations[:, None, :]
        flat = pairs.reshape(len(pairs), -1)
        best = np.argsort(-flat, axis=1, kind="stable")[:, : self._settings.beam_size]
        label, duration = np.divmod(best, pairs.shape[2])
        return (
            np.take_along_axis(flat, best, axis=1),
            np.take_along_axis(found.labels, label, axis=1),
            np.array(self._settings.durations, np.int64)[duration],
        )

    def _keep_best(self, rows: NDArray[np.int64], index: NDArray[np.int64], extensions: _Extensions) -> None:
        """Replace each row's hypotheses by the best of their extensions and of those that wait."""
        blank, size = self._settings.blank, self._settings.beam_size
        waits = index < 0
        width = extensions.scores.shape[1]
        scores = np.where(waits[:, :, None], DEAD, self._scores[rows, :, None] + extensions.scores[index])
        scores[:, :, 0] = np.where(waits, self._scores[rows], scores[:, :, 0])
        flat = scores.reshape(len(rows), -1)
        best = np.argsort(-flat, axis=1, kind="stable")[:, :size]
        parent, way = np.divmod(best, width)
        source = np.take_along_axis(index, parent, axis=1)
        label = np.where(source < 0, _WAITS, extensions.labels[source, way])
        step = np.where(source < 0, 0, extensions.steps[source, way])
        speaks = (label != _WAITS) & (label != blank)
        self._move(rows, parent)
        self._scores[rows] = np.take_along_axis(flat, best, axis=1)
        row, place = np.nonzero(speaks)
        self._speak((rows[row], place), source[row, place], label[row, place], step[row, place], extensions)
        stuck = speaks & (step == 0) & (self._symbols[rows] >= self._settings.max_symbols)
        step = np.where(stuck, 1, step)
        self._at[rows] += step
        self._symbols[rows] = np.where(step > 0, 0, self._symbols[rows])

    def _move(self, rows: NDArray[np.int64], parent: NDArray[np.int64]) -> None:
        """Put each hypothesis's parent in its place."""
        for values in (
            self._targets,
            self._hidden,
            self._cell,
            self._at,
            self._phrase,
            self._counts,
            self._hashes,
            self._symbols,
            self._nodes,
            self._roots,
        ):
            values[rows] = values[rows[:, None], parent]

    def _speak(
        self,
        where: tuple[NDArray[np.int64], NDArray[np.int64]],
        source: NDArray[np.int64],
        label: NDArray[np.int64],
        duration: NDArray[np.int64],
        extensions: _Extensions,
    ) -> None:
        """Add tokens to ``n`` hypotheses (row, place), before they advance; all other arguments ``[n]``."""
        if not len(label):
            return
        if self._forest is not None:
            self._phrase[where] = self._forest.advance(where[0], self._phrase[where], label)
        confidences = extensions.confidences(source)
        self._nodes[where] = self._tree.add(self._nodes[where], label, self._at[where], duration, confidences)
        self._targets[where] = label
        self._hidden[where] = extensions.hidden[source]
        self._cell[where] = extensions.cell[source]
        self._counts[where] += 1
        self._hashes[where] = self._hashes[where] * _HASH_FACTOR + (label + 1).astype(np.uint64)
        self._symbols[where] += 1

    def _merge(self, rows: NDArray[np.int64]) -> None:
        """Give the probability of hypotheses with the same text at the same frame to the best of them."""
        same = np.ones((len(rows), self._settings.beam_size, self._settings.beam_size), bool)
        for values in (self._hashes, self._counts, self._targets, self._at):
            same &= values[rows, :, None] == values[rows, None, :]
        scores = self._scores[rows]
        same &= (scores > DEAD)[:, None, :]
        total = np.logaddexp.reduce(np.where(same, scores[:, None, :], DEAD), axis=2)
        # The scores are in order here, so that the first of equal hypotheses is the best.
        is_first = same.argmax(axis=2) == np.arange(self._settings.beam_size)
        self._scores[rows] = np.where(is_first & (scores > DEAD), total, DEAD)
