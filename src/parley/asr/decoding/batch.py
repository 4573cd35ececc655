"""Greedy and beam decoding behind one API, with states that are plain arrays of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from parley.asr.checkpoint import Checkpoint
from parley.asr.decoding.beam import BeamDecoder
from parley.asr.decoding.boosting import PhraseAutomaton
from parley.asr.decoding.greedy import JointNetwork, TransducerDecoder, TransducerState
from parley.asr.decoding.hypotheses import BeamState, Reading

Rows: TypeAlias = Mapping[str, NDArray[Any]]
"""A decoder's state by name; the first axis of every array is the row."""


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


class DecoderRows:
    """:class:`RowDecoder` of a greedy decoder or a beam search.

    A greedy decoder settles every token at once, a beam search what all readings of a piece have in common.
    """

    def __init__(self, decoder: TransducerDecoder | BeamDecoder) -> None:
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
        if isinstance(self._decoder, BeamDecoder):
            readings, beam = self._decoder.decode(encoded, lengths, BeamState(**state), boosting)
            return readings, vars(beam)
        tokens, after = self._decoder.decode(encoded, lengths, TransducerState(**state), boosting)
        return [Reading(own, []) for own in tokens], vars(after)


def make_decoder(export: Checkpoint, network: JointNetwork, *, beam_size: int | None = None) -> RowDecoder:
    """The decoder of an export: by beam search, or greedy without a ``beam_size``."""
    if beam_size is not None:
        return DecoderRows(BeamDecoder.of(export, network, beam_size=beam_size))
    return DecoderRows(TransducerDecoder.of(export, network))
