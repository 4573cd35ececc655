"""Counters on Triton's metrics page."""

from __future__ import annotations

from typing import Any


class Counter:
    """A number that only grows, for each combination of labels that occurs.

    The caller sees to it that labels have few values: each combination is kept for ever.
    """

    def __init__(self, pb_utils: Any, name: str, description: str) -> None:
        """Register the counter.

        Args:
            pb_utils: Triton's module.
            name: as it appears on the page.
            description: what is counted.
        """
        self._family = pb_utils.MetricFamily(
            name=name, description=description, kind=pb_utils.MetricFamily.COUNTER
        )
        self._metrics: dict[tuple[tuple[str, str], ...], Any] = {}

    def count(self, number: int = 1, /, **labels: str) -> None:
        """Add one, or another number."""
        key = tuple(sorted(labels.items()))
        if key not in self._metrics:
            self._metrics[key] = self._family.Metric(labels=labels)
        self._metrics[key].increment(number)
