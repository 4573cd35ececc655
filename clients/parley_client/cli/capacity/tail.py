"""The 95th percentile of waits, and how sure it is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

SHARE = 0.95
FEWEST = 59
"""With fewer waits the interval has no upper end."""
CONFIDENCE = 0.9
"""Of the interval, two-sided: each end is wrong once in twenty times."""


@dataclass(frozen=True)
class Tail:
    """The 95th percentile of waits, and the interval in which it lies; all may be infinite."""

    value: float
    low: float
    high: float
    count: int
    """Of the waits."""


def tail_of(waits: Sequence[float]) -> Tail:
    """The percentile by nearest rank, with an interval of order statistics.

    The interval assumes nothing about the waits' distribution but that they are independent, and it takes the
    largest of a few waits for no bound, as a bootstrap would: below 59 waits the upper end is infinite.

    Args:
        waits: at least one; infinite where there was no answer.
    """
    ordered = sorted(waits)
    count = len(ordered)
    side = (1 - CONFIDENCE) / 2
    # The number of waits beyond the true percentile is binomial: at least `fewest`, and at most `most`, each
    # with a probability of 1 - side.
    fewest = most = 0
    below = 0.0
    for beyond, probability in enumerate(_binomial(count, 1 - SHARE)):
        if below + probability <= side:
            fewest = beyond + 1
        if below < 1 - side:
            most = beyond
        below += probability
    return Tail(
        value=ordered[math.ceil(round(count * SHARE, 6)) - 1],
        low=ordered[count - most - 1] if most < count else 0.0,
        high=ordered[count - fewest] if fewest else math.inf,
        count=count,
    )


def _binomial(trials: int, chance: float) -> Iterator[float]:
    """The probability of 0, 1, 2 … successes."""
    probability = (1 - chance) ** trials
    for successes in range(trials + 1):
        yield probability
        probability *= (trials - successes) / (successes + 1) * chance / (1 - chance)
