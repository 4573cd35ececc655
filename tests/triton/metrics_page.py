"""Triton's metrics page."""

from __future__ import annotations

import time
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from parley.triton.observability import PUBLISH_S


def read_page(server) -> str:
    """The page as it is now."""
    with urllib.request.urlopen(f"http://{server.endpoints.metrics}/metrics") as page:
        return page.read().decode()


def read_metrics(server) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample by name and sorted labels, with all that was recorded so far."""
    time.sleep(PUBLISH_S + 0.5)  # until every process has written
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(read_page(server))
        for sample in family.samples
    }
