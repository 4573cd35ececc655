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

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from parley.asr.checkpoint import Checkpoint
from parley.asr.decoding.beam_search import BeamSearch, BeamSettings
from parley.asr.decoding.boosting import PhraseAutomaton, PhraseForest
from parley.asr.decoding.hypotheses import DEAD, BeamState, TokenColumns
from parley.asr.decoding.readings import Reading
from parley.asr.decoding.transducer import JointNetwork


class BeamDecoder:
    """Beam search with one run of the network per step for all hypotheses that go on."""

    def __init__(
        self,
        network: JointNetwork,
        *,
        blank: int,
        durations: Sequence[int],
        max_symbols: int,
        beam_size: int,
        max_tail: int = 64,
        synchronous: bool = True,
    ) -> None:
        """Bind a network to its token set.

        Args:
            network: scores symbols.
            blank: id of the blank; the tokens are ``0 .. blank - 1``.
            durations: frames that each duration class stands for; none for an RNN-T.
            max_symbols: tokens allowed at one frame.
            beam_size: hypotheses kept per row.
            max_tail: tokens kept open; hypotheses that differ from the best before them are dropped.
            synchronous: whether hypotheses wait for those at earlier frames.
        """
        self.network = network
        self.settings = BeamSettings(
            blank=blank,
            durations=tuple(durations),
            max_symbols=max_symbols,
            beam_size=beam_size,
            max_tail=max_tail,
            synchronous=synchronous,
        )

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
        shape = (rows, self.settings.beam_size)
        scores = np.full(shape, DEAD)
        scores[:, 0] = 0.0
        zeros = np.zeros(shape, np.int32)
        network = np.zeros((*shape, self.network.layers, self.network.width), np.float32)
        return BeamState(
            scores=scores,
            targets=np.full(shape, self.settings.blank, np.int32),
            hidden=network,
            cell=network,
            skip=zeros,
            phrase=zeros,
            counts=zeros,
            hashes=np.zeros(shape, np.uint64),
            tail_counts=zeros,
            tails=TokenColumns.empty(*shape, self.settings.max_tail),
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

        Args:
            encoded: f32 ``[B, D, T]``, the encoder's output.
            lengths: i64 ``[B]``, how many of the ``T`` frames are real.
            state: what the previous piece left.
            boosting: each row's phrases; None: no row has any.

        Returns:
            Each row's reading, and the state for the next piece.

        Raises:
            InferenceError: the network's scores are not finite, or are those of another kind of
                transducer.
        """
        forest = PhraseForest(boosting, self.settings.blank) if boosting else None
        search = BeamSearch(self.settings, self.network, encoded, lengths, state=state, forest=forest)
        while search.advance():
            pass
        return search.finish()
