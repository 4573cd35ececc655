"""Metrics of an engine's queue and cache."""

from __future__ import annotations

import pytest

from parley.llm.engine_metrics import (
    ENGINE_CACHE,
    ENGINE_FAMILIES,
    ENGINE_PREEMPTIONS,
    ENGINE_REQUESTS,
    EngineLoad,
    EngineMetrics,
)
from parley.metrics import MetricsRecorder


class Recorded:
    """The metrics of one engine."""

    def __init__(self):
        self.busy = True
        self.recorder = MetricsRecorder(ENGINE_FAMILIES)
        self.metrics = EngineMetrics(self.recorder, "qwen3", "qwen3_0")
        self.metrics.watch(lambda: self.busy)

    def gauges(self):
        values = self.recorder.drain().values
        found = {
            dict(labels).get("state", family.name): value
            for (family, labels), value in values.items()
            if family in (ENGINE_REQUESTS, ENGINE_CACHE)
        }
        return found["running"], found["waiting"], found[ENGINE_CACHE.name]


@pytest.fixture
def recorded():
    return Recorded()


def test_the_load_is_that_of_the_last_step_of_all_cores(recorded):
    assert recorded.gauges() == (0, 0, 0.0)
    recorded.metrics.on_step(0, EngineLoad(3, 2, 0.5))
    recorded.metrics.on_step(0, EngineLoad(2, 1, 0.25))
    recorded.metrics.on_step(1, EngineLoad(1, 0, 0.75))
    assert recorded.gauges() == (3, 1, 0.75)


def test_an_engine_without_requests_holds_nothing(recorded):
    recorded.metrics.on_step(0, EngineLoad(1, 0, 0.5))
    recorded.busy = False  # the request was aborted, and no step follows
    assert recorded.gauges() == (0, 0, 0.0)


def test_preemptions_are_there_from_the_start(recorded):
    ((_, count),) = [(key, value) for key, value in recorded.recorder.drain().counts.items() if key[1]]
    assert count == 0
    recorded.metrics.on_preempted(2)
    assert [value for (family, _), value in recorded.recorder.drain().counts.items()] == [2]
    assert ENGINE_PREEMPTIONS.name.endswith("_total")
