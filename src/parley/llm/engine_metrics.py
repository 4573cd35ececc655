"""Metrics of an engine: its queue, its cache, and the requests that it put back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from parley.llm.engine import EngineTimes
from parley.metrics import LATENCY_BUCKETS_S, Family, MetricsRecorder

ENGINE_REQUESTS = Family(
    "parley_engine_requests",
    "gauge",
    "Requests in the engine of a model, by state: running, waiting",
    ("model", "model_instance", "state"),
)
ENGINE_CACHE = Family(
    "parley_engine_kv_cache_ratio",
    "gauge",
    "Part of an engine's KV cache that its requests use, 0 to 1",
    ("model", "model_instance"),
)
ENGINE_QUEUE = Family(
    "parley_engine_queue_seconds",
    "histogram",
    "Time that a request waited in an engine before its first step, once it has ended",
    ("model",),
    LATENCY_BUCKETS_S,
)
ENGINE_PREEMPTIONS = Family(
    "parley_engine_preemptions_total",
    "counter",
    "Requests that an engine put back into its queue because its KV cache was full",
    ("model",),
)
ENGINE_FAMILIES = (ENGINE_REQUESTS, ENGINE_CACHE, ENGINE_QUEUE, ENGINE_PREEMPTIONS)


@dataclass(frozen=True)
class EngineLoad:
    """What an engine holds after a step."""

    running: int = 0
    waiting: int = 0
    cache: float = 0.0
    """Part of the KV cache that is in use, 0 to 1."""


class EngineMetrics:
    """Records what an engine reports with each step. Its methods may be called from any thread."""

    def __init__(self, recorder: MetricsRecorder, model: str, instance: str) -> None:
        self._recorder = recorder
        self._model = model
        self._instance = instance
        self._loads: dict[int, EngineLoad] = {}
        recorder.count(ENGINE_PREEMPTIONS, 0, model=model)

    def watch(self, busy: Callable[[], bool]) -> None:
        """Set the gauges before each write. ``busy``: whether the engine has requests.

        An engine reports no step after its last request was aborted.
        """
        self._recorder.collect_with(lambda: self._set(busy=busy()))

    def on_step(self, core: int, load: EngineLoad) -> None:
        """A step has ended in one of the engine's cores."""
        self._loads[core] = load

    def on_preempted(self, requests: int) -> None:
        """Requests were put back."""
        self._recorder.count(ENGINE_PREEMPTIONS, requests, model=self._model)

    def on_ended(self, times: EngineTimes) -> None:
        """A request has ended, by itself or early."""
        self._recorder.observe(ENGINE_QUEUE, times.begun_at - times.queued_at, model=self._model)

    def _set(self, *, busy: bool) -> None:
        loads = list(self._loads.values()) if busy else []
        names = {"model": self._model, "model_instance": self._instance}
        self._recorder.set(ENGINE_REQUESTS, sum(load.running for load in loads), state="running", **names)
        self._recorder.set(ENGINE_REQUESTS, sum(load.waiting for load in loads), state="waiting", **names)
        self._recorder.set(ENGINE_CACHE, max((load.cache for load in loads), default=0.0), **names)
