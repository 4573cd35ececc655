"""Requests with one response that wait in the model itself, and are answered by a thread in runs."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Generic, TypeVar

from parley.errors import OverloadedError, ShuttingDownError
from parley.inference import Tensor
from parley.runtime.batching import Tensors
from parley.triton.model_metrics import ModelMetrics
from parley.triton.model_traces import ModelTraces
from parley.triton.responses import Responder, receive_requests

_CLOSE_S = 5.0
_URGENT_RUNS = 8
"""Runs of urgent requests, one after the other, behind which others have one."""
_log = logging.getLogger(__name__)
ItemT = TypeVar("ItemT")


@dataclass(frozen=True)
class QueuedRequest(Generic[ItemT]):
    """A request that was read."""

    make: Callable[[], ItemT]
    """Does the costly rest of the reading, where there is room; raises a ``ParleyError`` as ``read`` does."""
    traceparent: str = ""
    """Span of the caller; empty: there is none."""
    is_urgent: bool = False
    """Whether it is served before those that are not."""


class RequestQueue(Generic[ItemT]):
    """Answers requests in a thread, and refuses those for which there is no room.

    Triton's own bounded queue (``max_queue_size``) would refuse them too. But with it Triton 24.10 overlooks
    about one in a hundred of the requests that come just when another is answered, and serves it half a
    second later, which is too late for the agent.

    Args:
        operation: what the model does with a request, such as ``score``: in spans, logs and errors.
        read: reads a request's tensors, in the thread of :meth:`execute`; raises a ``ParleyError`` for those
            that must not be run.
        count_together: how many of the first items that wait are run together, at least one.
        serve: answers items that are run together, each with its outputs or its error.
        max_waiting: requests that wait beside those in the run, urgent ones and others each.
        metrics: of the model; closed with the thread.
        traces: of the model; closed with the thread.
    """

    def __init__(
        self,
        pb_utils: Any,
        operation: str,
        read: Callable[[Mapping[str, Tensor]], QueuedRequest[ItemT]],
        count_together: Callable[[Sequence[ItemT]], int],
        serve: Callable[[Sequence[ItemT]], Sequence[Tensors | Exception]],
        *,
        max_waiting: int,
        metrics: ModelMetrics,
        traces: ModelTraces,
    ) -> None:
        self._pb = pb_utils
        self._operation = operation
        self._read = read
        self._count_together = count_together
        self._serve = serve
        self._max_waiting = max_waiting
        self._metrics = metrics
        self._traces = traces
        self._urgent: deque[tuple[ItemT, Responder]] = deque()
        self._others: deque[tuple[ItemT, Responder]] = deque()
        self._urgent_runs = 0
        """Since others had a run."""
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"{operation}-queue", daemon=True)
        self._thread.start()

    def execute(self, requests: Iterable[Any]) -> None:
        """Take over Triton's requests; returns at once."""
        receive_requests(self._pb, requests, self._take, self._metrics)

    def close(self) -> None:
        """Refuse what waits, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(_CLOSE_S)
        self._metrics.close()
        for _, responder in (*self._urgent, *self._others):
            responder.fail(ShuttingDownError("the model is being unloaded"))
        self._traces.close()

    def _take(self, responder: Responder, tensors: Mapping[str, Tensor]) -> None:
        work = self._read(tensors)
        self._traces.follow(responder, self._operation, work.traceparent)
        waiting = self._urgent if work.is_urgent else self._others
        if len(waiting) >= self._max_waiting:  # only this thread adds: the room stays until it does
            raise OverloadedError(f"{self._max_waiting} requests to {self._operation} wait already")
        item = work.make()
        with self._changed:
            if self._closed:
                raise ShuttingDownError("the model is being unloaded")
            waiting.append((item, responder))
            self._changed.notify()

    def _run(self) -> None:
        while batch := self._next():
            began = monotonic()
            for _, responder in batch:
                responder.on_begun()
            results: Sequence[Tensors | Exception]
            try:
                results = self._serve([item for item, _ in batch])
            except Exception as error:  # noqa: BLE001 - answered and logged; the one thread goes on
                _log.exception("requests to %s could not be answered", self._operation)
                results = [error] * len(batch)
            self._metrics.on_batch(len(batch), monotonic() - began)
            for (_, responder), result in zip(batch, results, strict=True):
                try:
                    if isinstance(result, Exception):
                        responder.fail(result)
                    else:
                        responder.answer(result)
                except Exception:  # noqa: BLE001 - the other requests are answered
                    _log.exception("a response could not be sent")

    def _next(self) -> list[tuple[ItemT, Responder]]:
        """The requests of the next run; empty at the end."""
        with self._changed:
            while not self._urgent and not self._others and not self._closed:
                self._changed.wait()
            if self._closed:
                return []
            turn = self._urgent_runs >= _URGENT_RUNS
            waiting = self._others if self._others and (turn or not self._urgent) else self._urgent
            self._urgent_runs = self._urgent_runs + 1 if waiting is self._urgent else 0
            count = self._count_together([item for item, _ in waiting])
            return [waiting.popleft() for _ in range(count)]
