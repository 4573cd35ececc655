"""Times of spoken utterances, and how they are printed.

Apart because :mod:`eval_voices` measures without the networks that :mod:`bench_tts` needs.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spoken:
    """One utterance; times in seconds from its beginning."""

    first: float
    """When its first audio came."""
    seconds: float
    """When its last audio came."""
    audio: float
    """How long it is."""


def percentiles(seconds: Sequence[float]) -> str:
    """Median and 95th percentile in milliseconds."""
    several = list(seconds) * 2 if len(seconds) == 1 else seconds
    p95 = statistics.quantiles(several, n=20, method="inclusive")[-1]
    return f"{1000 * statistics.median(several):5.0f} / {1000 * p95:5.0f}"
