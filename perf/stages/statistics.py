"""Percentiles, and how sure they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SHARES = (0.5, 0.95, 0.99)
_RESAMPLES = 2_000
_SEED = 1
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A percentile, and the interval in which it lies with a confidence of 95 %."""

    value: float
    low: float
    high: float


def fewest(share: float) -> int:
    """How many values a percentile needs: so many that one of them is expected to lie beyond it.

    2 for the median, 20 for the 95th percentile, 100 for the 99th.
    """
    return math.ceil(round(1 / (1 - share), 6))


def estimate(values: Sequence[float], share: float) -> Estimate | None:
    """A percentile by nearest rank; None: there are too few values for it.

    The interval is that of the percentile bootstrap over turns, drawn with a fixed seed. Turns
    of one call are not independent of each other, so with few calls the interval is too narrow.

    Args:
        values: one for each turn.
        share: 0-1.
    """
    if len(values) < fewest(share):
        return None
    measured = np.asarray(values, np.float64)
    drawn = np.random.default_rng(_SEED).choice(measured, (_RESAMPLES, len(measured)))
    spread = np.quantile(drawn, share, axis=1, method="inverted_cdf")
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(spread, [tail, 1 - tail])
    return Estimate(float(np.quantile(measured, share, method="inverted_cdf")), float(low), float(high))


def ratio_estimate(parts: Sequence[tuple[float, float]]) -> Estimate | None:
    """The sum of the first numbers by that of the second, as a word error rate is; None: there is nothing.

    Args:
        parts: one pair for each turn.
    """
    pairs = np.asarray(parts, np.float64).reshape(-1, 2)
    if not pairs[:, 1].sum():
        return None
    drawn = np.random.default_rng(_SEED).integers(len(pairs), size=(_RESAMPLES, len(pairs)))
    sums = pairs[drawn].sum(axis=1)
    ratios = sums[:, 0] / np.maximum(sums[:, 1], 1)
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(ratios, [tail, 1 - tail])
    above, below = pairs.sum(axis=0)
    return Estimate(float(above / below), float(low), float(high))
