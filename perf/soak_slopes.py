"""Whether something grows: the slope of samples that depend on those before them, with an interval.

The samples of a resource are not independent: an allocator keeps what a busy minute has taken, for the next
ones too. Least squares would take the drift of such a series for a slope and be sure of it. So the slope is
the median of the slopes between medians of ten minutes (Theil and Sen), and its interval the one that
Kendall's statistic gives for such medians, pooled over segments that have a level of their own (Hirsch,
Slack and Smith 1982), with its exact distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BLOCK_S = 600.0
"""Of which one median is taken, about: longer than samples depend on each other. A shorter segment, between
two interruptions, is two blocks: its slope is one observation, and the segments are independent."""
CONFIDENCE = 0.99
"""Of the interval. Some eighty slopes are judged in one run: of 95 % intervals, four would leave out zero by
chance."""
_FEWEST = 4
"""Samples of a segment that is used."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Segment:
    """Samples of one process between two interruptions."""

    times_s: Floats
    """Shape [n], ascending."""
    values: Floats
    """Shape [n]."""


@dataclass(frozen=True)
class Slope:
    """Growth in an hour."""

    estimate: float
    low: float
    high: float
    blocks: int
    """It is made of."""
    hours: float
    """From the first to the last sample of every segment, added up."""


def fit(segments: Sequence[Segment]) -> Slope | None:
    """The slope that all segments share.

    Returns:
        None if there are too few samples for an interval.
    """
    slopes: list[Floats] = []
    chances = np.ones(1)
    blocks, hours = 0, 0.0
    for segment in segments:
        if len(segment.times_s) < _FEWEST:
            continue
        times, values = _medians(segment)
        first, second = np.triu_indices(len(times), 1)
        slopes.append((values[second] - values[first]) / (times[second] - times[first]))
        chances = np.convolve(chances, _inversions(len(times)))
        blocks += len(times)
        hours += float(segment.times_s[-1] - segment.times_s[0]) / 3600
    ordered = np.sort(np.concatenate([np.zeros(0), *slopes]))
    # So many slopes lie below the true one with a chance of less than half of what is left to error.
    below = int(np.searchsorted(np.cumsum(chances), (1 - CONFIDENCE) / 2, side="right"))
    if not below:
        return None
    low, high = float(ordered[below - 1]), float(ordered[-below])
    return Slope(float(np.median(ordered)), low, high, blocks, hours)


def _inversions(count: int) -> Floats:
    """How probable each number of pairs in the wrong order is, in a random order of ``count`` values."""
    chances = np.ones(1)
    for place in range(2, count + 1):
        chances = np.convolve(chances, np.full(place, 1 / place))
    return chances


def _medians(segment: Segment) -> tuple[Floats, Floats]:
    """Times (hours) and values of the medians of blocks of equal length: shapes [blocks]."""
    times = segment.times_s
    count = max(2, round((times[-1] - times[0]) / BLOCK_S))
    edges = np.linspace(times[0], times[-1], count + 1)
    numbers = np.clip(np.searchsorted(edges, times, side="right") - 1, 0, count - 1)
    found = [each for number in range(count) if (each := numbers == number).any()]
    return (
        np.array([times[each].mean() for each in found]) / 3600,
        np.array([np.median(segment.values[each]) for each in found]),
    )
