"""Statistics of measurements: percentiles, intervals, and errors in words."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import jiwer
import numpy as np

from parley.turns.interruption import as_said

SHARES = (0.5, 0.95, 0.99)
_RESAMPLES = 2_000
_SEED = 1
_CONFIDENCE = 0.95
_NEAREST_RANK: Literal["inverted_cdf"] = "inverted_cdf"
_WORDS = re.compile(r"[a-z0-9']+")


@dataclass(frozen=True)
class Estimate:
    """A percentile, and the interval in which it lies with a confidence of 95 %."""

    value: float
    low: float
    high: float


@dataclass
class Share:
    """How many of how many, and which."""

    of: int = 0
    cases: list[str] = field(default_factory=list)
    """One line for each."""

    @property
    def count(self) -> int:
        """How many."""
        return len(self.cases)

    @property
    def share(self) -> float | None:
        """0-1; None: of none."""
        return self.count / self.of if self.of else None

    @property
    def rest(self) -> int:
        """How many do not count."""
        return self.of - self.count

    def note(self, case: str = "") -> None:
        """One more; ``case``: it counts, and why."""
        self.of += 1
        if case:
            self.cases.append(case)


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value below which ``share`` (0-1) of ``values`` lie, by nearest rank; None: no values."""
    return float(np.quantile(values, share, method=_NEAREST_RANK)) if len(values) else None


def percentiles(values: Sequence[float], shares: Sequence[float] = SHARES) -> tuple[float, ...]:
    """Those of ``shares`` by nearest rank; empty: no values."""
    return (
        tuple(float(value) for value in np.quantile(values, shares, method=_NEAREST_RANK))
        if len(values)
        else ()
    )


def p50_p95(values: Sequence[float]) -> tuple[float, float] | None:
    """Both percentiles; None: no values."""
    found = percentiles(values, SHARES[:2])
    return (found[0], found[1]) if found else None


def text_of(figures: Sequence[float] | None, digits: int = 0) -> str:
    """Figures of one table cell, as in ``410 / 605``; empty: there are none."""
    return " / ".join(f"{figure:.{digits}f}" for figure in figures or ())


def fewest(share: float) -> int:
    """How many values a percentile needs: so many that one of them is expected to lie beyond it.

    2 for the median, 20 for the 95th percentile, 100 for the 99th.
    """
    return math.ceil(round(1 / (1 - share), 6))


def estimate(values: Sequence[float], share: float) -> Estimate | None:
    """A percentile by nearest rank; None: there are too few values for it.

    The interval is that of the percentile bootstrap over turns, drawn with a fixed seed. Turns
    of one call are not independent of each other, so with few calls the interval is too narrow.
    """
    if len(values) < fewest(share):
        return None
    measured = np.asarray(values, np.float64)
    drawn = np.random.default_rng(_SEED).choice(measured, (_RESAMPLES, len(measured)))
    spread = np.quantile(drawn, share, axis=1, method=_NEAREST_RANK)
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(spread, [tail, 1 - tail])
    return Estimate(float(np.quantile(measured, share, method=_NEAREST_RANK)), float(low), float(high))


def ratio_estimate(parts: Sequence[tuple[float, float]]) -> Estimate | None:
    """The sum of the first numbers by that of the second, as a word error rate is; None: there is nothing."""
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


def spoken_words(text: str) -> list[str]:
    """The words that count: without case, punctuation and dashes, and with figures as words."""
    return as_said(_WORDS.findall(text.lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")))


def word_errors(said: Sequence[str], heard: Sequence[str]) -> int:
    """Words to replace, remove or add to get from one to the other."""
    found = jiwer.process_words(" ".join(said), " ".join(heard))
    return found.substitutions + found.deletions + found.insertions
