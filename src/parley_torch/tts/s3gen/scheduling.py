"""What a step makes: the chunks of an utterance, and the utterances that share a run of the flow.

The networks run one batch at a time, so only the next batch is decided: nothing is queued beyond it.
The utterance whose playout would run dry first comes first. Others join if their work makes the run
little longer and costs no more there than in a run of its own: all rows of a run are
as long as its longest. On a GPU further rows are nearly free up to ``max_batch``, on a CPU only the
start of a run is shared. No utterance starves: a deadline is a time, it does not move while its utterance
waits, and later utterances have later ones.

Nothing here reads a clock or imports PyTorch; times are seconds of the caller's clock.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from parley.errors import ModelLoadingError

Key = TypeVar("Key", bound=Hashable)

# The first chunk of 12 tokens is 24 frames, of which 17 are held back: 140 ms of first audio.
DEFAULT_CHUNKS = (12, 13, 25, 50, 100)


@dataclass(frozen=True)
class ChunkSchedule:
    """The sizes of an utterance's chunks in tokens: small at first, then larger; the last one repeats.

    Where the chunks end does not depend on when tokens arrive: the same tokens always become
    the same audio.
    """

    sizes: tuple[int, ...] = DEFAULT_CHUNKS

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1:
            raise ModelLoadingError(f"chunk sizes {self.sizes} must be positive numbers of tokens")

    @classmethod
    def parse(cls, text: str) -> ChunkSchedule:
        """Read ``"10,15,25"``.

        Raises:
            ModelLoadingError: that is not a list of positive numbers.
        """
        try:
            return cls(tuple(int(size) for size in text.split(",")))
        except ValueError as error:
            raise ModelLoadingError(f"chunk sizes {text!r} must look like 10,15,25") from error

    def ends(self, tokens: int) -> list[int]:
        """The ends of the whole chunks within the first ``tokens`` tokens."""
        sizes = itertools.chain(self.sizes, itertools.repeat(self.sizes[-1]))
        return list(itertools.takewhile(lambda end: end <= tokens, itertools.accumulate(sizes)))

    def chunks(self, tokens: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For each token the number of its chunk, from 1 (0 is the prompt's), and the chunk's first token."""
        starts = np.array([0, *self.ends(tokens)], np.int64)
        numbers = np.searchsorted(starts, np.arange(tokens), side="right")
        return numbers, starts[numbers - 1]


@dataclass(frozen=True)
class S3GenLimits:
    """Limits of one batch."""

    max_batch: int = 8
    """Rows."""
    max_frames: int = 8_192
    """Rows times the length to which all are padded: bounds memory."""
    stretch: float = 1.5
    """How much longer than the most urgent row others may make the run."""
    overhead: int = 64
    """Frames that take as long as starting a run."""
    row_cost: float = 0.1
    """Cost of each further row as a share of the first one: near 0 on a GPU, 1 on a CPU."""

    def cost(self, rows: int, frames: int) -> float:
        """Cost of a run, in frames of one row."""
        return self.overhead + frames * (1 + (rows - 1) * self.row_cost)


@dataclass(frozen=True)
class Work(Generic[Key]):
    """An utterance for which frames can be made now."""

    key: Key
    frames: int
    """Length of its row in the flow, as padded."""
    deadline: float
    """See :class:`PlayoutSchedule`."""


class PlayoutSchedule:
    """The time at which the playout of an utterance runs dry.

    Audio counts as played without a break from the moment at which its first piece is sent: a relay
    may hold it back, never speed it up. Before that, playout waits since the utterance was opened.

    Args:
        now: when the utterance was opened.
    """

    def __init__(self, now: float) -> None:
        self.deadline = now
        """When the audio sent so far will have been played."""

    def on_sent(self, duration_s: float, now: float) -> None:
        """Count a piece of audio as sent."""
        # After a gap the new piece plays from now on.
        self.deadline = max(self.deadline, now) + duration_s


def choose_batch(ready: Sequence[Work[Key]], limits: S3GenLimits) -> list[Work[Key]]:
    """The next batch, most urgent first; empty only if nothing is ready.

    Args:
        ready: at most once for each utterance.
        limits: of the batch.
    """
    by_deadline = sorted(ready, key=lambda work: work.deadline)
    batch = by_deadline[:1]
    for work in by_deadline[1:]:
        if len(batch) == limits.max_batch:
            break
        before = max(other.frames for other in batch)
        longest = max(work.frames, before)
        rows = len(batch) + 1
        longer = limits.cost(1, work.frames) / limits.cost(1, batch[0].frames)
        apart = limits.cost(rows - 1, before) + limits.cost(1, work.frames)
        together = limits.cost(rows, longest)
        if longest * rows <= limits.max_frames and longer <= limits.stretch and together <= apart:
            batch.append(work)
    return batch
