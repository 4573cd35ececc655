"""Decoding what a streaming encoder brings, with the state of every stream in a row of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from parley.asr.decoding.boosting import PhraseAutomaton
from parley.asr.decoding.transducer import Tokens, TransducerDecoder, TransducerState
from parley.asr.streaming.slots import Rows


class StreamingDecoder(Protocol):
    """Turns pieces of encoded speech into tokens."""

    initial: Rows
    """The state before the first piece: one row, without the axis of the streams."""

    def decode(
        self,
        encoded: NDArray[np.float32],
        lengths: NDArray[np.int64],
        state: Rows,
        boosting: Sequence[PhraseAutomaton],
    ) -> tuple[list[Tokens], Rows]:
        """Decode the next piece of several streams.

        Args:
            encoded: f32 ``[B, D, T]``.
            lengths: i64 ``[B]``, how many of the ``T`` frames are real.
            state: a row for every stream; not changed.
            boosting: each stream's phrases.

        Returns:
            Each stream's new tokens, and the next state.

        Raises:
            InferenceError: the network failed.
        """
        ...


class GreedyStreamingDecoder:
    """:class:`StreamingDecoder` that takes the best token at every step."""

    def __init__(self, decoder: TransducerDecoder) -> None:
        """Use ``decoder``, which keeps nothing itself."""
        self._decoder = decoder
        self._names = tuple(field.name for field in fields(TransducerState))
        first = decoder.initial_state(1)
        self.initial: Rows = {name: getattr(first, name)[0] for name in self._names}

    def decode(
        self,
        encoded: NDArray[np.float32],
        lengths: NDArray[np.int64],
        state: Rows,
        boosting: Sequence[PhraseAutomaton],
    ) -> tuple[list[Tokens], Rows]:
        """See :meth:`StreamingDecoder.decode`."""
        before = TransducerState(**{name: state[name] for name in self._names})
        # Where nobody expects a phrase, nothing is looked up.
        phrases = boosting if any(len(own.arcs) for own in boosting) else None
        tokens, after = self._decoder.decode(encoded, lengths, before, phrases)
        return tokens, {name: getattr(after, name) for name in self._names}
