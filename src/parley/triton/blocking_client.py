"""Calls to other models from a synchronous ``execute``."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, NamedTuple

from parley.errors import DeadlineExceededError, ModelUnavailableError, ParleyError, ShuttingDownError
from parley.inference import ModelRequest, ModelResponse
from parley.triton.model_client import infer_blocking

_CLOSE_S = 5.0
_log = logging.getLogger(__name__)


class InProcessBlockingClient:
    """Calls inside the server (``InferenceRequest.exec``), each with its deadline.

    Triton cannot take such a call back, and has no deadline for it: a model that hangs would
    hang its caller for ever. So every model is called from a thread of its own (its *lane*), and
    a model that still owes an answer is not called again: all that it can hold is this one thread.

    One thread makes all calls.
    """

    def __init__(self, pb_utils: Any) -> None:
        self._pb = pb_utils
        self._lanes: dict[str, _Lane] = {}
        self._closed = False

    def infer(self, request: ModelRequest) -> ModelResponse:
        """The single response of a model."""
        if self._closed:
            raise ShuttingDownError(f"no more calls to {request.model}: the server is stopping")
        lane = self._lanes.get(request.model)
        if lane is None:
            lane = self._lanes[request.model] = _Lane(self._pb, request.model)
        return lane.infer(request)

    def close(self) -> None:
        """End the threads; one that still waits for its model is left behind."""
        self._closed = True
        end = time.monotonic() + _CLOSE_S
        for lane in self._lanes.values():
            lane.close(end)


class _Call(NamedTuple):
    request: ModelRequest
    answer: Future[ModelResponse]
    began: float


class _Lane:
    """The thread that calls one model."""

    def __init__(self, pb_utils: Any, model: str) -> None:
        self._pb = pb_utils
        self._model = model
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._owed: _Call | None = None
        # A daemon, and no executor: the interpreter's end must not wait for a model that hangs.
        self._thread = threading.Thread(target=self._serve, name=f"calls-{model}", daemon=True)
        self._thread.start()

    def infer(self, request: ModelRequest) -> ModelResponse:
        if self._owed is not None and not self._owed.answer.done():
            waited = time.monotonic() - self._owed.began
            raise ModelUnavailableError(f"{self._model} has not answered an earlier call for {waited:.1f} s")
        call = self._owed = _Call(request, Future(), time.monotonic())
        self._calls.put(call)
        try:
            answer = call.answer.result(request.timeout_s)
        except TimeoutError as error:
            raise DeadlineExceededError(
                f"{self._model} did not answer within {request.timeout_s:g} s"
            ) from error
        except ParleyError:
            self._owed = None
            raise
        self._owed = None
        return answer

    def close(self, end: float) -> None:
        self._calls.put(None)
        self._thread.join(max(0.0, end - time.monotonic()))
        if self._thread.is_alive():
            _log.error("%s still owes an answer", self._model)

    def _serve(self) -> None:
        while self._serve_next():
            pass

    def _serve_next(self) -> bool:
        # A call of its own, so that nothing of an answer is kept while the next is waited for.
        call = self._calls.get()
        if call is None:
            return False
        try:
            call.answer.set_result(infer_blocking(self._pb, call.request))
        except Exception as error:  # noqa: BLE001 - raised in the thread that waits
            call.answer.set_exception(error)
        return True
