"""A transducer whose prediction network sees the last tokens alone, for the shared decoder of transducers."""

from __future__ import annotations

import copy

import numpy as np
from numpy.typing import NDArray

from parley.asr.decoding.boosting import PhraseAutomaton
from parley.asr.decoding.greedy import JointNetwork
from parley.asr.frames.network import UNBOUNDED, OnnxNetwork
from parley.errors import InferenceError, ModelLoadingError
from parley.runtime.onnx import Stop

BLANK = 0
"""Icefall's class of the blank; that of the shared decoder comes after all tokens."""
_LOWEST = np.finfo(np.float32).min


class StatelessJoint(JointNetwork):
    """:class:`JointNetwork` by icefall's ``decoder`` and ``joiner``.

    The shared decoder's token ``n`` is ``n + 1`` of the vocabulary. What it keeps as the state of a recurrent
    network are here the tokens before the last one; zeros are those before the first.

    Args:
        decoder: last tokens to a vector.
        joiner: that vector and an encoder frame to scores.
        context: tokens that the decoder sees.
        tokens: size of the vocabulary, the blank included.
        unknown: the token for what the vocabulary cannot spell, which is never written; None: there is none.

    Raises:
        ModelLoadingError: decoder or joiner takes a fixed number of rows.
    """

    layers = 1

    def __init__(
        self, decoder: OnnxNetwork, joiner: OnnxNetwork, *, context: int, tokens: int, unknown: int | None
    ) -> None:
        self._decoder = decoder
        self._joiner = joiner
        size = joiner.inputs[0].shape[1]
        if min(decoder.most_rows, joiner.most_rows) != UNBOUNDED or not isinstance(size, int):
            raise ModelLoadingError("decoder and joiner must take any number of rows, of a fixed size")
        self.inputs = size
        self.width = context - 1
        self._tokens = tokens
        self._unknown = unknown
        self._stop = Stop()

    def stopped_by(self, stop: Stop) -> StatelessJoint:
        """The same networks, whose :meth:`scan` raises ``StoppedError`` once ``stop`` was requested."""
        twin = copy.copy(self)
        twin._stop = stop  # noqa: SLF001 - same class
        return twin

    def scan(
        self,
        frames: NDArray[np.float32],
        targets: NDArray[np.int32],
        hidden: NDArray[np.float32],
        cell: NDArray[np.float32],
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """See :class:`JointNetwork`."""
        rows, length, _ = frames.shape
        last = (targets.astype(np.int64) + 1) % self._tokens
        # Before the first token the decoder is given -1, which it passes over.
        context = np.concatenate([hidden[0].astype(np.int64) - 1, last[:, None]], axis=1)
        (predicted,) = self._decoder.run(self._stop, context)[:1]
        (logits,) = self._joiner.run(
            self._stop,
            frames.reshape(rows * length, -1),
            np.repeat(predicted.reshape(rows, -1), length, axis=0),
        )[:1]
        if logits.shape != (rows * length, self._tokens):
            raise InferenceError(
                f"the joiner's scores are {list(logits.shape)}; expected are {[rows * length, self._tokens]}"
            )
        if self._unknown is not None:
            logits[:, BLANK] = np.maximum(logits[:, BLANK], logits[:, self._unknown])
            logits[:, self._unknown] = _LOWEST
        scores = np.concatenate([logits[:, BLANK + 1 :], logits[:, : BLANK + 1]], axis=1)
        after = (context[:, 1:] + 1).astype(np.float32)
        return scores.reshape(rows, length, -1), after[None], cell


def shifted(boosting: PhraseAutomaton) -> PhraseAutomaton:
    """The phrases in tokens of the shared decoder."""
    return PhraseAutomaton(
        boosting.arcs - np.array([0, BLANK + 1, 0], np.int32), boosting.bonus, boosting.fallback
    )
