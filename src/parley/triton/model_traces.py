"""Spans of the requests to a model, below those of its callers."""

from __future__ import annotations

import time

import msgspec

from parley.inference import MessageT
from parley.runtime.parameters import Parameters
from parley.tracing import NO_TRACE, Attributes, Trace, Tracing, open_tracing
from parley.triton.responses import Responder


class ModelTraces:
    """Owns the exporter of one instance of a model; without traces it does nothing.

    A request without a ``traceparent``, or with one that cannot be read, has no span.

    Args:
        tracing: its clock is the monotonic one; None: there are no traces.
    """

    def __init__(self, model: str, tracing: Tracing | None) -> None:
        self._model = model
        self._tracing = tracing

    @classmethod
    def open(cls, parameters: Parameters) -> ModelTraces:
        """As the environment says; see :func:`parley.tracing.open_tracing`."""
        service = f"parley-{parameters.model.replace('_', '-')}"
        return cls(parameters.model, open_tracing(service, parameters.environment, clock=time.monotonic))

    def begin(
        self,
        operation: str,
        traceparent: str,
        attributes: Attributes | None = None,
        *,
        start_s: float | None = None,
    ) -> Trace:
        """Begin the span ``operation model``; ``start_s`` is of the monotonic clock, None: now."""
        if self._tracing is None or not traceparent:
            return NO_TRACE
        names = {"parley.model": self._model, **(attributes or {})}
        return self._tracing.begin(
            f"{operation} {self._model}", traceparent, names, start_s=start_s, alone=False
        )

    def follow(
        self, responder: Responder, operation: str, traceparent: str, attributes: Attributes | None = None
    ) -> Trace:
        """Begin a span that lasts as long as the request of ``responder``, from its arrival on."""
        if self._tracing is None or not traceparent:
            return NO_TRACE
        span = self.begin(operation, traceparent, attributes, start_s=responder.received_at)
        responder.follow(span)
        return span

    def close(self) -> None:
        """Export what waits, for a limited time."""
        if self._tracing is not None:
            self._tracing.close()


def below(span: Trace, message: MessageT) -> MessageT:
    """The message, with ``span`` as the parent of what others do for it."""
    if not span.traceparent:
        return message
    return msgspec.structs.replace(message, traceparent=span.traceparent)
