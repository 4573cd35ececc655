"""Greedy decoding of transducers, many rows in lockstep.

At an encoder frame the joint network scores the next token; only a token changes the prediction
network's state. A token-and-duration transducer (TDT) scores as well how many frames to advance by;
a duration may point past the end of a piece, and the rest is carried into the next one. A
transducer without durations (RNN-T) stays at a frame after a token and leaves it after a blank.
Decoding a recording in pieces gives exactly what decoding it at once gives.

See https://arxiv.org/abs/1211.3711 (RNN-T), https://arxiv.org/abs/2304.06795 (TDT) and, for the
confidence, https://arxiv.org/abs/2212.08703.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from parley.asr.checkpoint import Checkpoint
from parley.asr.decoding.boosting import PhraseAutomaton, PhraseForest
from parley.errors import InferenceError
from parley.runtime.batching import check_rows

SCORES = "the joint network's scores are"
"""In errors about values that are not finite."""
CONFIDENCE_ALPHA = 0.33
"""Order of the Tsallis entropy, as in NeMo's recommended confidence settings."""
FRAMES_AHEAD = 8
"""Frames that a transducer without durations is asked about at once: most have nothing but a blank, and
after a blank it says the same as before."""


class JointNetwork(Protocol):
    """The prediction and joint networks, one symbol per row."""

    inputs: int
    """Size of an encoder frame."""
    layers: int
    """Layers of the prediction network's LSTM."""
    width: int
    """Units of each layer."""

    def step(
        self,
        frames: NDArray[np.float32],
        targets: NDArray[np.int32],
        hidden: NDArray[np.float32],
        cell: NDArray[np.float32],
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """Score what follows the last token at one encoder frame of each row.

        Args:
            frames: f32 ``[B, D]``.
            targets: i32 ``[B]``, each row's last token.
            hidden: f32 ``[layers, B, width]``.
            cell: f32 ``[layers, B, width]``.

        Returns:
            Logits f32 ``[B, tokens + 1 + durations]``, and the states after the target.
        """
        logits, hidden, cell = self.scan(frames[:, None], targets, hidden, cell)
        return logits[:, 0], hidden, cell

    def scan(
        self,
        frames: NDArray[np.float32],
        targets: NDArray[np.int32],
        hidden: NDArray[np.float32],
        cell: NDArray[np.float32],
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """The same as :meth:`step`, at each of several frames: f32 ``[B, T, D]`` to ``[B, T, ...]``."""
        ...


@dataclass(frozen=True)
class TransducerState:
    """Where decoding stands between two pieces; the first axis of every array is the row."""

    targets: NDArray[np.int32]
    """``[B]``: the last token, at first the blank."""
    hidden: NDArray[np.float32]
    """``[B, layers, width]``."""
    cell: NDArray[np.float32]
    """``[B, layers, width]``."""
    skip: NDArray[np.int32]
    """``[B]``: frames of the next piece that are already passed over."""
    phrase: NDArray[np.int32]
    """``[B]``: state of the row's :class:`~parley.asr.decoding.boosting.PhraseAutomaton`."""


@dataclass(frozen=True)
class Tokens:
    """What one row emitted, all arrays ``[n]``."""

    ids: NDArray[np.int32]
    frames: NDArray[np.int32]
    """Encoder frame within the piece at which each token was emitted."""
    durations: NDArray[np.int32]
    """Frames that each token said it lasts; 0 from a transducer without durations."""
    confidences: NDArray[np.float32]
    """0-1."""

    @classmethod
    def none(cls) -> Tokens:
        """No tokens."""
        numbers = np.zeros(0, np.int32)
        return cls(numbers, numbers, numbers, np.zeros(0, np.float32))

    @classmethod
    def joined(cls, pieces: Sequence[Tokens]) -> Tokens:
        """The tokens of several pieces, in order."""
        columns = zip(*(vars(piece).values() for piece in [cls.none(), *pieces]), strict=True)
        return cls(*(np.concatenate(column) for column in columns))

    def moved(self, frames: int) -> Tokens:
        """The same tokens, shifted by encoder frames."""
        return Tokens(self.ids, self.frames + np.int32(frames), self.durations, self.confidences)


def tsallis_confidence(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """How sure a distribution is, from its Tsallis entropy: 0 uniform, 1 one sure class.

    Args:
        logits: f32 ``[B, n]``, the scores of the tokens and the blank.

    Returns:
        f32 ``[B]``.
    """
    scores = logits.astype(np.float64)
    scores -= scores.max(axis=1, keepdims=True)
    log_probabilities = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    rest = 1.0 - CONFIDENCE_ALPHA
    powers = np.exp(log_probabilities * CONFIDENCE_ALPHA).sum(axis=1)
    uniform = np.exp((1.0 - logits.shape[1] ** rest) / rest)
    confidence = (np.exp((1.0 - powers) / rest) - uniform) / (1.0 - uniform)
    return np.asarray(np.clip(confidence, 0.0, 1.0), np.float32)


def check_scores(logits: NDArray[np.float32], blank: int, durations: int, rows: NDArray[np.int64]) -> None:
    """Refuse scores that no decoder can use.

    Args:
        logits: f32 ``[B, n]``.
        blank: number of tokens.
        durations: number of classes of durations.
        rows: i64 ``[B]``, of which row of the batch each is.

    Raises:
        RowsNotFiniteError: those of some rows are not finite.
        InferenceError: those of none of several rows are, or they are not of ``blank`` tokens, a blank and
            ``durations``.
    """
    classes = blank + 1 + durations
    if logits.shape[1] != classes:
        raise InferenceError(
            f"the joint network scores {logits.shape[1]} classes; "
            f"{blank} tokens, a blank and {durations} durations are {classes}"
        )
    check_rows(np.isfinite(logits).all(axis=1), SCORES, rows=rows)


class TransducerDecoder:
    """Greedy decoding with one run of the network per symbol for all rows that are not done."""

    def __init__(
        self, network: JointNetwork, *, blank: int, durations: Sequence[int], max_symbols: int
    ) -> None:
        """Bind a network to its token set.

        Args:
            network: scores symbols.
            blank: id of the blank; the tokens are ``0 .. blank - 1``.
            durations: frames that each duration class stands for; none for an RNN-T.
            max_symbols: tokens allowed at one frame, so that no input can loop for ever.
        """
        self.network = network
        self.blank = blank
        self._durations = np.array(durations, np.int32)
        self._max_symbols = max_symbols

    @classmethod
    def of(cls, checkpoint: Checkpoint, network: JointNetwork) -> TransducerDecoder:
        """The decoder of an export."""
        config = checkpoint.config
        return cls(
            network,
            blank=checkpoint.blank,
            durations=config.durations,
            max_symbols=config.max_tokens_per_step,
        )

    def initial_state(self, rows: int) -> TransducerState:
        """The state before the first piece."""
        shape = (rows, self.network.layers, self.network.width)
        return TransducerState(
            targets=np.full(rows, self.blank, np.int32),
            hidden=np.zeros(shape, np.float32),
            cell=np.zeros(shape, np.float32),
            skip=np.zeros(rows, np.int32),
            phrase=np.zeros(rows, np.int32),
        )

    def decode(
        self,
        encoded: NDArray[np.float32],
        lengths: NDArray[np.int64],
        state: TransducerState,
        boosting: Sequence[PhraseAutomaton] | None = None,
    ) -> tuple[list[Tokens], TransducerState]:
        """Decode the next piece of every row.

        A boosted phrase may win over other tokens, but not over a blank: what is not there is not
        written.

        Returns:
            Each row's new tokens, and the state for the next piece.

        Raises:
            InferenceError: the network's scores are not finite, or are those of another kind of
                transducer.
        """
        rows = len(lengths)
        ahead = 1 if len(self._durations) else FRAMES_AHEAD
        by_frame = np.ascontiguousarray(encoded.transpose(0, 2, 1))
        targets = state.targets.copy()
        # The network's first axis are the layers.
        hidden, cell = state.hidden.transpose(1, 0, 2).copy(), state.cell.transpose(1, 0, 2).copy()
        at, phrase = state.skip.astype(np.int64), state.phrase.copy()
        forest = PhraseForest(boosting, self.blank) if boosting else None
        symbols = np.zeros(rows, np.int64)
        emitted: list[tuple[NDArray[np.int64], ...]] = []
        confidences: list[NDArray[np.float32]] = []
        active = np.flatnonzero(at < lengths)
        while len(active):
            left = lengths[active] - at[active]
            places = np.minimum(np.arange(min(ahead, left.max())), left[:, None] - 1)
            scores, next_hidden, next_cell = self.network.scan(
                by_frame[active[:, None], at[active][:, None] + places],
                targets[active],
                hidden[:, active],
                cell[:, active],
            )
            check_scores(
                scores.reshape(-1, scores.shape[2]),
                self.blank,
                len(self._durations),
                np.repeat(active, scores.shape[1]),
            )
            logits, passed = self._until_token(scores, places)
            at[active] += passed
            symbols[active[passed > 0]] = 0
            token_scores = logits[:, : self.blank + 1]
            ids = token_scores.argmax(axis=1)
            speaks = ids != self.blank
            durations = self._durations_of(logits)
            rows_out = active[speaks]
            if len(rows_out):
                if forest is not None:
                    earned = forest.scores(rows_out, phrase[rows_out])
                    ids[speaks] = (token_scores[speaks, : self.blank] + earned).argmax(axis=1)
                    phrase[rows_out] = forest.advance(rows_out, phrase[rows_out], ids[speaks])
                emitted.append((rows_out, ids[speaks], at[rows_out], durations[speaks]))
                confidences.append(tsallis_confidence(token_scores[speaks]))
                targets[rows_out] = ids[speaks]
                hidden[:, rows_out] = next_hidden[:, speaks]
                cell[:, rows_out] = next_cell[:, speaks]
                symbols[rows_out] += 1
            stuck = (durations == 0) & (~speaks | (symbols[active] >= self._max_symbols))
            advance = np.where(stuck, 1, durations)
            symbols[active[advance > 0]] = 0
            at[active] += advance
            active = active[at[active] < lengths[active]]
        after = TransducerState(
            targets,
            hidden.transpose(1, 0, 2),
            cell.transpose(1, 0, 2),
            (at - lengths).astype(np.int32),
            phrase,
        )
        return _by_row(rows, emitted, confidences), after

    def _until_token(
        self, scores: NDArray[np.float32], places: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Pass over the frames at which there is only a blank, but for the last.

        Args:
            scores: f32 ``[n, T, classes]``.
            places: i64 ``[n, T]``, which frame each of them is of.

        Returns:
            The scores at the frame that is then reached, f32 ``[n, classes]``, and how many frames
            were passed over, i64 ``[n]``.
        """
        if scores.shape[1] == 1:
            return scores[:, 0], places[:, 0]
        speaks = scores[:, :, : self.blank + 1].argmax(axis=2) != self.blank
        first = np.where(speaks.any(axis=1), speaks.argmax(axis=1), -1)
        rows = np.arange(len(scores))
        return scores[rows, first], places[rows, first]

    def _durations_of(self, logits: NDArray[np.float32]) -> NDArray[np.int64]:
        """How many frames each row's scores advance by: i64 ``[B]``; 0 where there is no such score."""
        if not len(self._durations):
            return np.zeros(len(logits), np.int64)
        return np.asarray(self._durations[logits[:, self.blank + 1 :].argmax(axis=1)], np.int64)


def _by_row(
    rows: int, emitted: list[tuple[NDArray[np.int64], ...]], confidences: list[NDArray[np.float32]]
) -> list[Tokens]:
    """Sort what the steps emitted (row, id, frame, duration) into rows, keeping its order."""
    columns = [np.concatenate(column) for column in zip(*emitted, strict=True)]
    owner, ids, frames, durations = columns or [np.zeros(0, np.int64)] * 4
    certainty = np.concatenate(confidences) if confidences else np.zeros(0, np.float32)
    return [
        Tokens(
            ids[mine].astype(np.int32),
            frames[mine].astype(np.int32),
            durations[mine].astype(np.int32),
            certainty[mine],
        )
        for mine in (owner == row for row in range(rows))
    ]
