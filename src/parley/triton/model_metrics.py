"""Metrics that every model of the repository has: requests, first responses, batches, its start."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from parley.errors import ModelLoadingError
from parley.metrics import LATENCY_BUCKETS_S, Family, MetricsRecorder
from parley.runtime.parameters import Parameters
from parley.triton.observability import MetricsPublisher

REQUESTS = Family(
    "parley_requests",
    "gauge",
    "Requests that a model with a queue of its own is answering",
    ("model", "model_instance"),
)
FIRST_RESPONSE = Family(
    "parley_first_response_seconds",
    "histogram",
    "From a request to a model with a queue of its own to its first response",
    ("model",),
    LATENCY_BUCKETS_S,
)
REQUEST_ERRORS = Family(
    "parley_request_errors_total",
    "counter",
    "Requests to a model with a queue of its own that ended with an error, by code",
    ("model", "code"),
)
BATCHES = Family("parley_batches_total", "counter", "Runs of a model for one or several requests", ("model",))
BATCH_ITEMS = Family(
    "parley_batch_items_total",
    "counter",
    "Requests in these runs; divided by them: the mean size",
    ("model",),
)
BATCH_SECONDS = Family(
    "parley_batch_seconds_total", "counter", "Time of these runs: its rate is the load, at most 1", ("model",)
)
STARTED = Family(
    "parley_model_start_time_seconds",
    "gauge",
    "When a model was loaded, in Unix time",
    ("model", "model_instance"),
)
SWITCH_VARIABLE = "PARLEY_METRICS"
"""Environment variable; ``false``: no model has metrics of its own."""
MODEL_FAMILIES = (REQUESTS, FIRST_RESPONSE, REQUEST_ERRORS, BATCHES, BATCH_ITEMS, BATCH_SECONDS, STARTED)


def _read_switch(parameters: Parameters) -> bool:
    value = parameters.environment.get(SWITCH_VARIABLE, "")
    if value not in ("", "true", "false"):
        raise ModelLoadingError(f"{SWITCH_VARIABLE} is {value!r}; it must be true or false")
    return value != "false"


class ModelMetrics:
    """Owns the metrics of one instance of a model, and the thread that writes them.

    Args:
        parameters: of the model; its names are the labels.
        families: further ones, recorded with :attr:`recorder`.

    Raises:
        ModelLoadingError: ``PARLEY_METRICS`` is neither ``true`` nor ``false``.
    """

    def __init__(self, pb_utils: Any, parameters: Parameters, families: Sequence[Family] = ()) -> None:
        self._model, self._instance = parameters.model, parameters.instance
        self._lock = threading.Lock()
        self._requests = 0
        # The batches, items and seconds since they were recorded: a model may run for every chunk of audio.
        self._batches = (0, 0, 0.0)
        enabled = _read_switch(parameters)
        self.recorder = MetricsRecorder((*MODEL_FAMILIES, *families) if enabled else ())
        self.recorder.set(STARTED, time.time(), model=self._model, model_instance=self._instance)
        self.recorder.collect_with(self._record_requests)
        self.recorder.collect_with(self._record_batches)
        self._publisher = MetricsPublisher(pb_utils, self.recorder) if enabled else None

    def close(self) -> None:
        """Stop writing."""
        if self._publisher is not None:
            self._publisher.close()

    def on_batch(self, items: int, seconds: float) -> None:
        """The model has run for ``items`` requests."""
        with self._lock:
            batches, all_items, all_seconds = self._batches
            self._batches = (batches + 1, all_items + items, all_seconds + seconds)

    def begin_request(self) -> RequestTimer:
        """A decoupled request has begun."""
        with self._lock:
            self._requests += 1
        return RequestTimer(self)

    def on_first_response(self, after_s: float) -> None:
        """A decoupled request was answered for the first time."""
        self.recorder.observe(FIRST_RESPONSE, after_s, model=self._model)

    def on_request_ended(self, error_code: str) -> None:
        """A decoupled request has ended; ``error_code`` is empty without an error."""
        with self._lock:
            self._requests -= 1
        if error_code:
            self.recorder.count(REQUEST_ERRORS, model=self._model, code=error_code)

    def _record_batches(self) -> None:
        with self._lock:
            (batches, items, seconds), self._batches = self._batches, (0, 0, 0.0)
        if batches:
            self.recorder.count(BATCHES, batches, model=self._model)
            self.recorder.count(BATCH_ITEMS, items, model=self._model)
            self.recorder.count(BATCH_SECONDS, seconds, model=self._model)

    def _record_requests(self) -> None:
        self.recorder.set(REQUESTS, self._requests, model=self._model, model_instance=self._instance)


class RequestTimer:
    """One decoupled request. Not thread-safe: its :class:`parley.triton.responses.Responder` has a lock."""

    def __init__(self, metrics: ModelMetrics) -> None:
        self._metrics = metrics
        self._began = time.monotonic()
        self._answered = False

    def on_response(self) -> None:
        """A response was sent."""
        if not self._answered:
            self._answered = True
            self._metrics.on_first_response(time.monotonic() - self._began)

    def on_ended(self, error_code: str) -> None:
        """The request has ended; ``error_code`` is empty without an error."""
        self._metrics.on_request_ended(error_code)
