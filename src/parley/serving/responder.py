"""Answers to one request of a decoupled model, with an end that cannot be forgotten.

A decoupled request that never gets its FINAL flag leaves the client waiting for ever, and an
exception in an asynchronous handler is otherwise only logged. So every handler is written as::

    with Responder(pb_utils, request) as responder:
        ...
        responder.send({"EVENT": ...})
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from parley.errors import ParleyError, ShuttingDownError
from parley.inference import Tensor
from parley.serving.tensors import make_error, make_response

_log = logging.getLogger(__name__)


class Responder:
    """Sends any number of responses, at most one error, and exactly one FINAL.

    Safe to use from several threads: a request may be ended by one (shutdown) while another
    is still sending.
    """

    def __init__(self, pb_utils: Any, request: Any) -> None:
        self._pb = pb_utils
        self._sender = request.get_response_sender()
        self._name: str = request.request_id() or "unnamed request"
        self._lock = threading.Lock()
        self._open = True

    def send(self, outputs: Mapping[str, Tensor]) -> bool:
        """Send one response; False (and nothing is sent) when the request has already ended."""
        response = make_response(self._pb, outputs)
        with self._lock:
            if self._open:
                self._sender.send(response)
            return self._open

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
        if isinstance(error, ParleyError):
            _log.warning("%s: %s", self._name, error.to_log())
        else:
            _log.error("%s failed", self._name, exc_info=error)
        self._end(make_error(self._pb, error))

    @property
    def cancelled(self) -> bool:
        """Whether the caller has gone away. Asks the server: not for tight loops."""
        with self._lock:
            return self._open and bool(self._sender.is_cancelled())

    def _end(self, response: Any) -> None:
        with self._lock:
            if not self._open:
                return
            self._open = False
            # An error carries the flag itself: when the flag followed alone, Triton 24.10 itself
            # crashed within seconds under callers that hang up as soon as they see the error.
            flags = self._pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            if response is None:
                self._sender.send(flags=flags)
            else:
                self._sender.send(response, flags=flags)

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
