"""Metrics of an engine's queue and cache."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from parley.llm.engine_metrics import (
    ENGINE_CACHE,
    ENGINE_FAMILIES,
    ENGINE_PREEMPTIONS,
    ENGINE_QUEUE,
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


def test_what_vllm_reports_is_recorded(recorded):
    stats = pytest.importorskip("parley.llm.vllm_stats", exc_type=ImportError)
    logger = stats.make_stat_logger(recorded.metrics)(vllm_config=None, engine_indexes=[0])
    scheduler = SimpleNamespace(
        num_running_reqs=2, num_waiting_reqs=3, num_skipped_waiting_reqs=1, kv_cache_usage=0.25
    )
    ended = [SimpleNamespace(queued_time=0.5)]
    logger.record(scheduler, SimpleNamespace(num_preempted_reqs=1, finished_requests=ended))
    logger.record(None, None)
    changes = recorded.recorder.drain()
    assert [(family, value) for family, _, value in changes.observations] == [(ENGINE_QUEUE, 0.5)]
    assert [value for (family, _), value in changes.counts.items() if family == ENGINE_PREEMPTIONS] == [1]
    assert recorded.gauges() == (2, 4, 0.25)
    logger.log_engine_initialized()
    logger.record_sleep_state(1, 1)
    logger.record_admission_rejection("full")


def test_figures_that_vllm_has_no_more_end_nothing(recorded, caplog):
    stats = pytest.importorskip("parley.llm.vllm_stats", exc_type=ImportError)
    logger = stats.make_stat_logger(recorded.metrics)(vllm_config=None, engine_indexes=[0])
    for _ in range(3):
        logger.record(SimpleNamespace(running=1), None)
    assert caplog.text.count("cannot be read") == 1
