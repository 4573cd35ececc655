"""What vLLM reports of its steps, as metrics."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from parley.llm.engine_metrics import (
    ENGINE_CACHE,
    ENGINE_FAMILIES,
    ENGINE_PREEMPTIONS,
    ENGINE_REQUESTS,
    EngineMetrics,
)
from parley.metrics import MetricsRecorder


@pytest.fixture(scope="module")
def vllm_stats():
    """Imports vLLM, which takes seconds: not in every process that collects tests."""
    return pytest.importorskip("parley.llm.vllm_stats", exc_type=ImportError)


@pytest.fixture
def recorder():
    return MetricsRecorder(ENGINE_FAMILIES)


@pytest.fixture
def metrics(recorder):
    made = EngineMetrics(recorder, "qwen3", "qwen3_0")
    made.watch(lambda: True)
    return made


def test_statistics_of_vllm_are_recorded(vllm_stats, recorder, metrics):
    logger = vllm_stats.make_stat_logger(metrics)(vllm_config=None, engine_indexes=[0])
    scheduler = SimpleNamespace(
        num_running_reqs=2, num_waiting_reqs=3, num_skipped_waiting_reqs=1, kv_cache_usage=0.25
    )
    logger.record(scheduler, SimpleNamespace(num_preempted_reqs=1))
    logger.record(None, None)
    changes = recorder.drain()
    assert [value for (family, _), value in changes.counts.items() if family == ENGINE_PREEMPTIONS] == [1]
    assert {
        (family, dict(labels).get("state")): value for (family, labels), value in changes.values.items()
    } == {(ENGINE_REQUESTS, "running"): 2, (ENGINE_REQUESTS, "waiting"): 4, (ENGINE_CACHE, None): 0.25}
    logger.log_engine_initialized()
    logger.record_sleep_state(1, 1)
    logger.record_admission_rejection("full")


def test_figures_that_vllm_has_no_more_end_nothing(vllm_stats, metrics, caplog):
    logger = vllm_stats.make_stat_logger(metrics)(vllm_config=None, engine_indexes=[0])
    for _ in range(3):
        logger.record(SimpleNamespace(running=1), None)
    assert caplog.text.count("cannot be read") == 1
