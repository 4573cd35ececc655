"""Metrics of a model process: recorded in memory, written to a metrics page by a publisher.

Recording is cheap and never waits, so that it may stand in code that runs for every chunk of audio.
:class:`parley.triton.observability.MetricsPublisher` writes what was recorded to Triton's page.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Labels: TypeAlias = tuple[tuple[str, str], ...]
"""Names and values, in the order of the family."""

LATENCY_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
"""From a token to a whole answer; the goals of 300 ms, 500 ms and 1 s are limits of buckets."""
MAX_SERIES = 128
"""Combinations of labels of one family; further ones are recorded with the value ``other`` everywhere."""
MAX_OBSERVATIONS = 4096
"""Observations that wait for the publisher; further ones are dropped and counted."""
_OTHER = "other"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Family:
    """One metric by name, with its series by labels."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    description: str
    labels: tuple[str, ...] = ()
    """Names of the labels that each record has."""
    buckets: tuple[float, ...] = ()
    """Upper limits, of a histogram."""
    from_start: tuple[tuple[str, ...], ...] = ()
    """Values of the labels of counters that exist from the start, at 0, so that the first increment is one
    to Prometheus too. A counter without labels always does."""


DROPPED = Family(
    "parley_metrics_dropped_total", "counter", "Observations that were not recorded because too many waited"
)


@dataclass(frozen=True)
class Changes:
    """What was recorded since the last time."""

    counts: dict[tuple[Family, Labels], float]
    """Increments."""
    values: dict[tuple[Family, Labels], float]
    """Of gauges."""
    observations: list[tuple[Family, Labels, float]]


class MetricsRecorder:
    """The metrics of one process. Thread-safe.

    Args:
        families: that are recorded; of others nothing is kept.
    """

    def __init__(self, families: Sequence[Family]) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[Family, Labels], float] = {}
        self._values: dict[tuple[Family, Labels], float] = {}
        self._observations: list[tuple[Family, Labels, float]] = []
        self._keys: dict[tuple[Family, tuple[str, ...]], Labels] = {}
        self._series: dict[Family, int] = {}
        self._collectors: list[Callable[[], None]] = []
        self._failed: list[Callable[[], None]] = []
        self.families = (*families, DROPPED) if families else ()
        self._known = frozenset(self.families)
        for family in self.families:
            if family.kind == "counter":
                for values in family.from_start or (() if family.labels else ((),)):
                    self.count(family, 0, **dict(zip(family.labels, values, strict=True)))

    def collect_with(self, collector: Callable[[], None]) -> None:
        """Call ``collector`` before each :meth:`drain`, to set gauges. It must not wait."""
        self._collectors.append(collector)

    def count(self, family: Family, amount: float = 1, /, **labels: str) -> None:
        """Add to a counter."""
        if family not in self._known:
            return
        with self._lock:
            key = family, self._key(family, labels)
            self._counts[key] = self._counts.get(key, 0) + amount

    def restore(self, family: Family, labels: Labels, amount: float) -> None:
        """Put an increment back that could not be written."""
        with self._lock:
            self._counts[family, labels] = self._counts.get((family, labels), 0) + amount

    def set(self, family: Family, value: float, /, **labels: str) -> None:
        """Set a gauge."""
        if family not in self._known:
            return
        with self._lock:
            self._values[family, self._key(family, labels)] = value

    def observe(self, family: Family, value: float, /, **labels: str) -> None:
        """Add an observation to a histogram."""
        if family not in self._known:
            return
        with self._lock:
            if len(self._observations) < MAX_OBSERVATIONS:
                self._observations.append((family, self._key(family, labels), value))
            else:
                key = DROPPED, self._key(DROPPED, {})
                self._counts[key] = self._counts.get(key, 0) + 1

    def drain(self) -> Changes:
        """Take what was recorded."""
        for collector in self._collectors:
            try:
                collector()
            except Exception:  # noqa: BLE001 - the other metrics are still written
                if collector not in self._failed:
                    self._failed.append(collector)
                    _log.exception("metrics could not be read; this is logged once")
        with self._lock:
            changes = Changes(self._counts, self._values, self._observations)
            self._counts, self._values, self._observations = {}, {}, []
        return changes

    def _key(self, family: Family, labels: dict[str, str]) -> Labels:
        values = tuple(labels[name] for name in family.labels)
        known = self._keys.get((family, values))
        if known is not None:
            return known
        number = self._series.get(family, 0)
        if number >= MAX_SERIES:
            return tuple((name, _OTHER) for name in family.labels)
        self._series[family] = number + 1
        key = self._keys[family, values] = tuple(zip(family.labels, values, strict=True))
        return key
