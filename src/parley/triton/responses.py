"""Answers to one request of a decoupled model, with an end that cannot be forgotten.

A decoupled request that never gets its FINAL flag makes the client wait for ever, and an
exception in an asynchronous handler is otherwise only logged. So every handler is written as::

    with Responder(pb_utils, request) as responder:
        ...
        responder.send({"EVENT": ...})
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np

from parley.errors import ParleyError, ShuttingDownError
from parley.inference import Tensor
from parley.logs import log_ids
from parley.runtime.batching import Tensors
from parley.tracing import NO_TRACE, Attributes, Trace
from parley.triton.failures import wire_text
from parley.triton.model_metrics import ModelMetrics
from parley.triton.response_thread import ResponseThread

_ASK_S = 2.0
_UNNAMED = "unnamed request"
_log = logging.getLogger(__name__)
T = TypeVar("T")


class Responder:
    """Sends any number of responses, at most one error, and exactly one FINAL.

    Safe to use from several threads: a request may be ended by one (shutdown) while another
    is still sending.

    Args:
        metrics: count the request and time its first response; None: it is not measured.
        thread: sends the responses, whose arrays must not change any more; None: the caller's own.
    """

    def __init__(
        self,
        pb_utils: Any,
        request: Any,
        metrics: ModelMetrics | None = None,
        thread: ResponseThread | None = None,
    ) -> None:
        self._pb = pb_utils
        self._thread = thread
        self._timer = metrics.begin_request() if metrics else None
        self._sender = request.get_response_sender()
        self.request_id: str = request.request_id()
        """Empty: the caller gave it none."""
        self._lock = threading.Lock()
        self._open = True
        self._failure: Exception | None = None  # of sending a response
        self._final = False  # the end was sent, or is about to be
        self._answered = False
        self._span = NO_TRACE
        self.received_at = time.monotonic()
        """Seconds of the monotonic clock."""

    def follow(self, span: Trace) -> None:
        """End ``span`` with the request; it gets the time of the first response, and the error."""
        with self._lock:
            if self._open:
                self._span = span
                return
        span.end()

    def on_begun(self, attributes: Attributes | None = None) -> None:
        """The model begins with the request, which has waited until now; the span gets the time."""
        with self._lock:
            if self._open:
                self._span.set({"parley.queue_ms": self._passed_ms(), **(attributes or {})})

    def send(self, outputs: Mapping[str, Tensor]) -> bool:
        """Send one response; False (and nothing is sent) when the request has already ended.

        Raises:
            OverloadedError: the server takes no responses.
            Exception: this response could not be sent, or with a thread an earlier one.
        """
        response = make_response(self._pb, outputs)
        if self._thread is not None:
            self._thread.wait_for_room()  # not under the lock, which the thread takes too
        with self._lock:
            if self._open:
                if self._failure is not None:
                    raise self._failure
                self._deliver(partial(self._send, response))
            return self._open

    def _deliver(self, call: Callable[[], None]) -> None:
        if self._thread is None:
            call()
        else:
            self._thread.submit(call)

    def _send(self, response: Any) -> None:
        if self._failure is not None:
            return  # what follows a gap would be taken for the whole
        try:
            self._sender.send(response)
        except Exception as error:
            self._failure = error
            if self._thread is None:
                raise
            self._log_unsent()
        else:
            self._on_response()

    def _log_unsent(self) -> None:
        with log_ids(request=self.request_id, traceparent=self._span.traceparent):
            _log.exception("%s: a response could not be sent", self.request_id or _UNNAMED)

    def answer(self, outputs: Mapping[str, Tensor]) -> None:
        """Send the last response, and end the request with it.

        Triton 24.10 dies when the end of a request follows its response alone, and the caller is another
        model of the same server (of a model that is not decoupled) or cancels its stream when it has the
        response.
        """
        self._end(make_response(self._pb, outputs))

    def finish(self) -> None:
        """End the request; does nothing when it has ended."""
        self._end(None)

    def fail(self, error: BaseException) -> None:
        """End the request with an error, and log it; does nothing when it has ended."""
        if not self._open:
            return
        name = self.request_id or _UNNAMED
        # In a thread, or on the loop of another request, the ids are not yet set.
        with log_ids(request=self.request_id, traceparent=self._span.traceparent):
            if isinstance(error, ParleyError):
                _log.warning("%s: %s", name, error.to_log(), extra=error.log_extra())
            else:
                _log.error("%s failed", name, exc_info=error)
        code = error.code if isinstance(error, ParleyError) else ParleyError.code
        self._end(make_error(self._pb, error), code)

    @property
    def cancelled(self) -> bool:
        """Whether the caller has disconnected. Calls the server, and waits for it: not for event loops."""
        with self._lock:
            return self._open and bool(self._sender.is_cancelled())

    async def is_cancelled(self) -> bool:
        """The same, asked by the thread that sends; a server that does not answer in time says nothing."""
        if self._thread is None:
            raise RuntimeError("the responses of this request have no thread")
        try:
            return await self._thread.result(self._ask, _ASK_S)
        except TimeoutError:
            return False

    def _ask(self) -> bool:
        # Without the lock: the end of the request is sent by this thread, too.
        return not self._final and bool(self._sender.is_cancelled())

    def _end(self, response: Any, error_code: str = "") -> None:
        with self._lock:
            if self._open:
                self._open = False
                self._deliver(partial(self._send_last, response, error_code))

    def _send_last(self, response: Any, error_code: str) -> None:
        if self._failure is not None:
            response, error_code = make_error(self._pb, self._failure), ParleyError.code
        self._final = True
        try:
            self._send_flagged(response)
            if response is not None and not error_code:
                self._on_response()
        except Exception:
            error_code = error_code or ParleyError.code
            if self._thread is None:
                raise
            self._log_unsent()
        finally:
            if self._timer:
                self._timer.on_ended(error_code)
            self._span.end(failure=error_code)

    def _send_flagged(self, response: Any) -> None:
        # An error carries the flag itself: when the flag followed alone, Triton 24.10 itself
        # crashed within seconds under callers that hang up as soon as they see the error.
        flags = self._pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        if response is None:
            self._sender.send(flags=flags)
            return
        try:
            self._sender.send(response, flags=flags)
        except Exception:
            self._sender.send(flags=flags)  # the caller would wait for ever
            raise

    def _on_response(self) -> None:
        if self._timer:
            self._timer.on_response()
        if not self._answered:
            self._answered = True
            self._span.set({"parley.first_response_ms": self._passed_ms()})

    def _passed_ms(self) -> float:
        return round((time.monotonic() - self.received_at) * 1000, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """End the request. Every ``Exception`` is answered and logged here and goes no further."""
        if error is None:
            self.finish()
            return True
        if not isinstance(error, Exception):  # cancelled task, interpreter exit
            self.fail(ShuttingDownError("the server stopped while the request was running"))
            return False
        self.fail(error)
        return True


def to_numpy(tensor: Any) -> Tensor:
    """A copy that stays valid after the request or response is gone.

    ``as_numpy`` of a numeric tensor is a view of shared memory that Triton takes back.
    """
    return np.array(tensor.as_numpy())


def to_triton(pb_utils: Any, name: str, value: Tensor) -> Any:
    """A Triton tensor of the array's own type; arrays of ``object`` become TYPE_STRING."""
    return pb_utils.Tensor(name, np.ascontiguousarray(value))


def read_tensors(tensors: Iterable[Any]) -> dict[str, Tensor]:
    """All tensors of a request or response by name."""
    return {tensor.name(): to_numpy(tensor) for tensor in tensors}


def receive_requests(
    pb_utils: Any,
    requests: Iterable[Any],
    begin: Callable[[Responder, dict[str, Tensor]], None],
    metrics: ModelMetrics | None = None,
    thread: ResponseThread | None = None,
) -> None:
    """Pass each request of a decoupled model to ``begin``, with a copy of its tensors.

    The originals become invalid when ``execute`` returns. A request whose ``begin`` raises is ended with
    that error. ``thread`` sends the responses, as in :class:`Responder`.
    """
    for request in requests:
        responder = Responder(pb_utils, request, metrics, thread)
        try:
            with log_ids(request=responder.request_id):
                begin(responder, read_tensors(request.inputs()))
        except Exception as error:  # noqa: BLE001 - sent to the caller and logged
            responder.fail(error)


def make_response(pb_utils: Any, outputs: Mapping[str, Tensor]) -> Any:
    """An ``InferenceResponse`` with these outputs."""
    return pb_utils.InferenceResponse(
        output_tensors=[to_triton(pb_utils, name, value) for name, value in outputs.items()]
    )


def make_error(pb_utils: Any, error: BaseException) -> Any:
    """An ``InferenceResponse`` that reports ``error`` (see :func:`parley.triton.failures.wire_text`)."""
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(wire_text(error)))


def answer(pb_utils: Any, result: T | ParleyError, outputs: Callable[[T], Mapping[str, Tensor]]) -> Any:
    """The response to one request: the outputs of its result, or its error."""
    if isinstance(result, ParleyError):
        _log.warning("%s", result.to_log(), extra=result.log_extra())
        return make_error(pb_utils, result)
    return make_response(pb_utils, outputs(result))


def serve_tensors(
    pb_utils: Any,
    requests: Sequence[Any],
    serve: Callable[[Sequence[Tensors]], Sequence[Tensors | ParleyError]],
) -> list[Any]:
    """Answer requests whose tensors go to ``serve``, all together, as they are.

    They may come from several clients. If ``serve`` fails in an unforeseen way, each request is served by
    itself, so that only that fails whose tensors are the cause.
    """
    results = _serve(serve, [read_tensors(request.inputs()) for request in requests])
    return [answer(pb_utils, result, lambda tensors: tensors) for result in results]


def _serve(
    serve: Callable[[Sequence[Tensors]], Sequence[Tensors | ParleyError]], requests: Sequence[Tensors]
) -> Sequence[Tensors | ParleyError]:
    try:
        return serve(requests)
    except Exception as error:  # noqa: BLE001 - answered and logged
        if len(requests) == 1:
            _log.exception("a request cannot be served")
            return [ParleyError(f"{type(error).__name__}: {error}")]
    return [result for request in requests for result in _serve(serve, [request])]
