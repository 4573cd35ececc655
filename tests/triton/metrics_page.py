"""Triton's metrics page."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable

from prometheus_client.parser import text_string_to_metric_families

from parley.triton.observability import PUBLISH_S

Metrics = dict[tuple[str, tuple[tuple[str, str], ...]], float]
"""Samples by name and sorted labels."""
_WRITTEN_S = 60.0


def read_page(server) -> str:
    """The page as it is now."""
    with urllib.request.urlopen(f"http://{server.endpoints.metrics}/metrics") as page:
        return page.read().decode()


def until_metrics(server, condition: Callable[[Metrics], bool]) -> Metrics:
    """The page as soon as it fulfils a condition, or as it is after a minute.

    Each process writes by itself what it has recorded, and does so later on a busy machine.
    """
    end = time.monotonic() + _WRITTEN_S
    while not condition(metrics := read_metrics(server)) and time.monotonic() < end:
        pass
    return metrics


def total(metrics: Metrics, name: str) -> float:
    """The sum of a metric over its labels."""
    return sum(value for (other, _), value in metrics.items() if other == name)


def read_metrics(server) -> Metrics:
    """Every sample, after the interval in which each process writes once."""
    time.sleep(PUBLISH_S + 0.5)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(read_page(server))
        for sample in family.samples
    }
