"""Which utterances share the next run of the flow.

The networks are busy with one batch at a time, so a batch is all that is decided: nothing is
queued beyond it. The listener who would run dry first comes first. Everyone else joins whose work
makes the run little longer and costs no more there than in a run of its own: all rows of a run are
as long as its longest. On a GPU further rows are nearly free up to ``max_batch``, on a CPU only the
start of a run is shared. Nobody starves: a deadline is a time, it does not move while its utterance
waits, and utterances that come later have later ones.

Nothing here reads a clock or knows a network; times are seconds of the caller's clock.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class S3GenLimits:
    """Of one batch."""

    max_batch: int = 8
    """Rows."""
    max_frames: int = 8_192
    """Rows times the length to which all are padded: bounds memory."""
    stretch: float = 1.5
    """How much longer than the most urgent row others may make the run."""
    overhead: int = 64
    """Frames that take as long as starting a run."""
    row_cost: float = 0.1
    """What each further row costs, of the first one: near 0 on a GPU, 1 on a CPU."""

    def cost(self, rows: int, frames: int) -> float:
        """Of a run, in frames of one row."""
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
    """When a listener runs dry.

    The audio of an utterance is taken to be played from the moment at which its first piece is
    sent, without a break: whoever relays it may hold it back, never speed it up. Before that, the
    listener has been waiting since the utterance was opened.

    Args:
        now: when the utterance was opened.
    """

    def __init__(self, now: float) -> None:
        self._dry_at = now

    @property
    def deadline(self) -> float:
        """When the audio sent so far will have been played."""
        return self._dry_at

    def sent(self, seconds: float, now: float) -> None:
        """So much more audio is on its way."""
        # After a gap the listener hears the new piece from now on.
        self._dry_at = max(self._dry_at, now) + seconds

    def ahead(self, now: float) -> float:
        """Seconds of audio that the listener still has; negative while waiting."""
        return self._dry_at - now


def choose(ready: Sequence[Work[Key]], limits: S3GenLimits) -> list[Work[Key]]:
    """The next batch, most urgent first; empty only if nothing is ready.

    Args:
        ready: what can be made now, at most once for each utterance.
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
