"""What vLLM reports of its steps, as metrics of the project. Imports vLLM."""

from __future__ import annotations

import logging
from typing import Any

from parley.llm.engine_metrics import EngineLoad, EngineMetrics
from parley.llm.vllm_api import PrometheusStatLogger

_log = logging.getLogger(__name__)


def make_stat_logger(metrics: EngineMetrics) -> type[Any]:
    """A class of vLLM's stat loggers, which vLLM makes an object of.

    vLLM adds its own logger for Prometheus unless one of those it is given is a kind of it. Nothing would
    read the hundred metrics that it sets with each step.
    """

    class StepRecorder(PrometheusStatLogger):  # type: ignore[misc] # vLLM has no types here
        """Records a few figures of each step."""

        def __init__(self, vllm_config: Any, engine_indexes: list[int] | None = None) -> None:
            """Make none of the metrics of the base class."""
            del vllm_config, engine_indexes
            self._failed = False

        def record(
            self,
            scheduler_stats: Any,
            iteration_stats: Any,
            mm_cache_stats: Any = None,
            engine_idx: int = 0,
        ) -> None:
            """Record a step. An error would end the engine, and vLLM may change what it reports."""
            del mm_cache_stats
            try:
                _record(metrics, scheduler_stats, iteration_stats, engine_idx)
            except Exception:  # noqa: BLE001 - logged once; requests go on
                if not self._failed:
                    self._failed = True
                    _log.exception("vLLM's figures cannot be read; this is logged once")

        def record_admission_rejection(self, reason: str) -> None:
            """Record nothing: the services refuse requests, not vLLM."""

        def record_sleep_state(self, sleep: int = 0, level: int = 0) -> None:
            """Record nothing: the engine never sleeps."""

        def log_engine_initialized(self) -> None:
            """Record nothing."""

    return StepRecorder


def _record(metrics: EngineMetrics, scheduler: Any, iteration: Any, core: int) -> None:
    if scheduler is not None:
        waiting = scheduler.num_waiting_reqs + scheduler.num_skipped_waiting_reqs
        load = EngineLoad(scheduler.num_running_reqs, waiting, scheduler.kv_cache_usage)
        metrics.on_step(core, load)
    if iteration is not None and iteration.num_preempted_reqs:
        metrics.on_preempted(iteration.num_preempted_reqs)
