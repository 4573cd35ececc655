"""How many calls the machine holds: the same calls, with more and more of them at once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from simulate.running import Job
from simulate.scenario import Scenario
from simulate.scores import Scores, Share, p50_p95

TAG = "ladder"
"""Of the scenarios that are held if no others are asked for."""
_EACH = 2
"""Calls that each caller makes, at least."""
_LOST = 0.05
"""So many turns may be missed, and answers have gaps."""


@dataclass(frozen=True)
class Rung:
    """What came of so many calls at once."""

    parallel: int
    scores: Scores

    def holds(self, latency_ms: tuple[float, float]) -> bool:
        """Whether the answers came in time and whole."""
        times, scores = p50_p95(self.scores.latency), self.scores
        if times is None or scores.broken or scores.not_staged:
            return False
        fast = all(time <= limit for time, limit in zip(times, latency_ms, strict=True))
        return fast and _few(scores.missed) and _few(scores.gaps)


def parse_rungs(written: str) -> list[int]:
    """Read ``1,2,4``.

    Raises:
        ValueError: not numbers from 1 on, each higher than the one before.
    """
    rungs = [int(part) for part in written.split(",")]
    if rungs[0] < 1 or any(high <= low for low, high in itertools.pairwise(rungs)):
        raise ValueError(written)
    return rungs


def jobs_of(scenarios: Sequence[Scenario], parallel: int) -> list[Job]:
    """All scenarios in turn, and as many calls for each of the callers."""
    rounds = max(_EACH, -(-len(scenarios) // parallel))
    return [
        Job(scenarios[number % len(scenarios)], number // len(scenarios))
        for number in range(rounds * parallel)
    ]


def held(rungs: Sequence[Rung], latency_ms: tuple[float, float]) -> int:
    """The largest number of calls that holds; 0: none.

    Fewer calls have fewer turns, of which a single late one already counts.
    """
    return max((rung.parallel for rung in rungs if rung.holds(latency_ms)), default=0)


def _few(share: Share) -> bool:
    return share.share is not None and share.share <= _LOST
