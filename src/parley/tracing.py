"""Traces of calls, with OpenTelemetry.

They are off unless the environment has an OTLP endpoint (``OTEL_EXPORTER_OTLP_ENDPOINT``; the SDK reads the
other ``OTEL_*`` variables too). Spans are exported in batches by a thread. While the collector does not
answer, they wait in a bounded queue and are then dropped; recording never waits.

Attributes with words of the conversation have the prefix :data:`CONTENT_PREFIX`, and exist only if
``PARLEY_TRACE_CONTENT`` is ``true``.
"""

from __future__ import annotations

import asyncio
import io
import logging
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from parley.errors import ParleyError
from parley.timeouts import loop_time

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span, Tracer
    from requests import Session
    from urllib3 import HTTPResponse

CONTENT_PREFIX = "parley.content."
CONTENT_VARIABLE = "PARLEY_TRACE_CONTENT"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_CREDENTIALS = (
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER",
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER",
)
_EXPORT_S = 5.0
_MAX_ANSWER_BYTES = 65_536
"""Of the collector, over HTTP; one has a few."""
_PIECE_BYTES = 8_192
_CLOSE_S = 3.0
_PER_S = 1e9
_log = logging.getLogger(__name__)

Attribute: TypeAlias = str | bool | int | float
Attributes: TypeAlias = Mapping[str, Attribute | None]
"""Values of None are left out."""


class Trace:
    """A span, and the way to make others below it. This class itself records nothing.

    Times are seconds of the clock of its :class:`Tracing`; None: now. As a context manager it ends with the
    block, and records its error.
    """

    traceparent = ""
    """Of the span, for other processes (W3C Trace Context)."""
    has_content = False
    """Whether words of the conversation may be recorded."""

    def child(
        self, name: str, attributes: Attributes | None = None, *, start_s: float | None = None
    ) -> Trace:
        """Begin a span below this one."""
        del name, attributes, start_s
        return self

    def set(self, attributes: Attributes) -> None:
        """Add attributes; after the end it does nothing."""

    def set_content(self, name: str, text: str) -> None:
        """Add words of the conversation, if that is switched on."""

    def end(self, end_s: float | None = None, failure: str = "") -> None:
        """End the span; ``failure`` is an error code. Only the first end counts."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, ParleyError):
            self.end(failure=error.code)
        elif isinstance(error, asyncio.CancelledError | GeneratorExit):
            self.set({"parley.cancelled": True})
            self.end()
        else:
            self.end(failure=type(error).__name__ if error else "")


NO_TRACE = Trace()


class Tracing:
    """Owns the exporter of a process, and its thread.

    Args:
        provider: of OpenTelemetry's SDK.
        content: whether words of the conversation are recorded.
        clock: seconds that never go back, of all times of spans; that of the event loop unless given.
    """

    def __init__(
        self, provider: TracerProvider, *, content: bool, clock: Callable[[], float] = loop_time
    ) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("parley")
        self._content = content
        self._clock = clock

    def begin(
        self,
        name: str,
        traceparent: str = "",
        attributes: Attributes | None = None,
        *,
        start_s: float | None = None,
        alone: bool = True,
    ) -> Trace:
        """Begin a span, below that of another process if ``traceparent`` names one; else if ``alone``."""
        from opentelemetry.trace import SpanKind, get_current_span  # noqa: PLC0415
        from opentelemetry.trace.propagation import tracecontext  # noqa: PLC0415

        carrier = {"traceparent": traceparent} if traceparent else {}
        try:
            context = tracecontext.TraceContextTextMapPropagator().extract(carrier)
            if not (alone or get_current_span(context).get_span_context().is_valid):
                return NO_TRACE
            span_clock = _SpanClock(self._clock)
            span = self._tracer.start_span(
                name,
                context,
                SpanKind.SERVER,
                attributes=_given(attributes),
                start_time=span_clock.unix_ns(start_s),
            )
            return _Recorded(self._tracer, span, span_clock, has_content=self._content)
        except Exception:  # noqa: BLE001 - a call goes on without its trace
            _log.exception("a trace could not be begun")
            return NO_TRACE

    def close(self) -> None:
        """Export what waits, for a limited time."""
        # The SDK's own shutdown may wait for a collector that is away.
        thread = threading.Thread(target=self._provider.shutdown, name="traces end", daemon=True)
        thread.start()
        thread.join(_CLOSE_S)


def open_tracing(
    service: str, environment: Mapping[str, str], *, clock: Callable[[], float] = loop_time
) -> Tracing | None:
    """Export traces as the environment says; None: it names no endpoint, or the packages are missing.

    Args:
        service: ``service.name``, unless ``OTEL_SERVICE_NAME`` is set.
        environment: that of this process, which the SDK reads by itself.
        clock: see :class:`Tracing`.
    """
    off = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if off or not any(environment.get(name) for name in _ENDPOINTS):
        return None
    protocol = next((environment[name] for name in _PROTOCOLS if environment.get(name)), "http/protobuf")
    try:
        # Imported only where they are used: they take a quarter of a second.
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

        names = {} if environment.get("OTEL_SERVICE_NAME") else {"service.name": service}
        provider = TracerProvider(resource=Resource.create(names), shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(_make_exporter(protocol, environment)))
    except ImportError as error:
        _log.warning("traces need the extra “traces” (in the checkout: pip install '.[traces]'): %s", error)
        return None
    except Exception:  # noqa: BLE001 - such as a number in OTEL_BSP_MAX_QUEUE_SIZE that the SDK refuses
        _log.exception("there are no traces: the SDK refuses its settings")
        return None
    content = environment.get(CONTENT_VARIABLE, "").lower() == "true"
    return Tracing(provider, content=content, clock=clock)


def _make_exporter(protocol: str, environment: Mapping[str, str]) -> SpanExporter:
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as grpc  # noqa: PLC0415

        return grpc.OTLPSpanExporter(timeout=_EXPORT_S)
    from opentelemetry.exporter.otlp.proto.http import trace_exporter as http  # noqa: PLC0415

    # A provider of credentials brings a session of its own.
    has_own = any(environment.get(name) for name in _CREDENTIALS)
    return http.OTLPSpanExporter(timeout=_EXPORT_S, session=None if has_own else _bounded_session())


def _bounded_session() -> Session:
    """A session that reads a limited part of an answer's body, for a limited time.

    ``requests`` reads a body whole, for as long as bytes come.
    """
    from requests import PreparedRequest, Response, Session  # noqa: PLC0415
    from requests.adapters import HTTPAdapter  # noqa: PLC0415

    class BoundedAdapter(HTTPAdapter):
        # Not in the session: it reads the body of a redirect before it returns the response.
        def send(self, request: PreparedRequest, *args: Any, **options: Any) -> Response:
            ends_s = time.monotonic() + _EXPORT_S
            response = super().send(request, *args, **{**options, "stream": True})
            response.raw = io.BytesIO(_read_some(response.raw, ends_s))
            return response

    session = Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, BoundedAdapter())
    return session


def _read_some(body: HTTPResponse, ends_s: float) -> bytes:
    """The beginning of a body; the connection of a longer or slower one, or one that breaks, is closed.

    Args:
        body: packed or not.
        ends_s: when to read no more (``time.monotonic``); a wait that has begun ends with its own timeout.
    """
    from urllib3.exceptions import HTTPError  # noqa: PLC0415

    read = bytearray()
    try:
        while piece := body.read1(_PIECE_BYTES, decode_content=False):
            read += piece
            if len(read) >= _MAX_ANSWER_BYTES or time.monotonic() >= ends_s:
                body.close()
                break
    except HTTPError:
        body.close()  # the status says whether the spans have arrived
    return bytes(read)


class _SpanClock:
    """Unix time of the times of a trace's spans; all of them use one, or they would drift apart."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._epoch_s = time.time() - clock()

    def unix_ns(self, at_s: float | None) -> int:
        """Unix time in nanoseconds; of now for None."""
        return round((self._epoch_s + (self._clock() if at_s is None else at_s)) * _PER_S)


class _Recorded(Trace):
    """A span of OpenTelemetry."""

    def __init__(self, tracer: Tracer, span: Span, clock: _SpanClock, *, has_content: bool) -> None:
        self._tracer = tracer
        self._span = span
        self._clock = clock
        self._ended = False
        self.has_content = has_content and span.is_recording()
        # The SDK's propagator writes the same, in ten times the time.
        ids = span.get_span_context()
        if ids.is_valid:
            self.traceparent = f"00-{ids.trace_id:032x}-{ids.span_id:016x}-{ids.trace_flags:02x}"

    def child(
        self, name: str, attributes: Attributes | None = None, *, start_s: float | None = None
    ) -> Trace:
        from opentelemetry.trace import set_span_in_context  # noqa: PLC0415

        span = self._tracer.start_span(
            name,
            set_span_in_context(self._span),
            attributes=_given(attributes),
            start_time=self._clock.unix_ns(start_s),
        )
        return _Recorded(self._tracer, span, self._clock, has_content=self.has_content)

    def set(self, attributes: Attributes) -> None:
        if not self._ended:
            self._span.set_attributes(_given(attributes))

    def set_content(self, name: str, text: str) -> None:
        if self.has_content and not self._ended:
            self._span.set_attribute(f"{CONTENT_PREFIX}{name}", text)

    def end(self, end_s: float | None = None, failure: str = "") -> None:
        if self._ended:
            return
        self._ended = True
        if failure:
            from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415

            self._span.set_attribute("error.type", failure)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end(self._clock.unix_ns(end_s))


def _given(attributes: Attributes | None) -> dict[str, Attribute]:
    return {name: value for name, value in (attributes or {}).items() if value is not None}
