"""Calls that a server of traces has: Arize Phoenix or Jaeger, read by their HTTP APIs."""

from __future__ import annotations

import http.client
import re
import urllib.request
from collections.abc import Iterator
from datetime import datetime
from typing import Any, TypeVar
from urllib.error import HTTPError
from urllib.parse import quote, urlencode

import msgspec

from parley_client.errors import TraceFileError
from parley_client.waterfall.calls import CallTimes
from parley_client.waterfall.otlp import Span, make_span
from parley_client.waterfall.traces import CALL, TraceIndex, choose_span

MAX_LISTED = 50
"""Number of the newest calls among which a session or the beginning of an id is looked up."""
PROJECT = "default"
"""Phoenix's project for spans that name none."""
SERVICE = "parley-voice-agent"
"""Jaeger's name of the process that writes the span of a call."""
MAX_SPANS = 50_000
"""Spans that may be read at once, over all traces."""
_PAGE = 1_000
_TIMEOUT_S = 10.0
_MAX_BYTES = 64 * 1024 * 1024
_TRACE_ID = re.compile(r"[0-9a-fA-F]{32}")
_NS_PER_US = 1_000
_NS_PER_S = 1_000_000_000

T = TypeVar("T")


class _Context(msgspec.Struct):
    trace_id: str
    span_id: str


class _PhoenixSpan(msgspec.Struct):
    context: _Context
    name: str
    start_time: datetime
    end_time: datetime
    status_code: str
    parent_id: str | None = None
    attributes: dict[str, Any] = {}

    def read(self) -> Span:
        """Return the span in the form that is drawn."""
        ids = (self.context.trace_id, self.context.span_id, self.parent_id or "")
        start, end = (round(time.timestamp() * _NS_PER_S) for time in (self.start_time, self.end_time))
        failed = self.status_code == "ERROR"
        return make_span(ids, self.name, (start, end), self.attributes.items(), failed=failed)


class _PhoenixPage(msgspec.Struct):
    data: list[_PhoenixSpan]
    next_cursor: str | None = None


class _Reference(msgspec.Struct):
    type: str = msgspec.field(name="refType")
    span_id: str = msgspec.field(name="spanID")


class _Tag(msgspec.Struct):
    key: str
    value: Any = None


class _JaegerSpan(msgspec.Struct):
    trace_id: str = msgspec.field(name="traceID")
    span_id: str = msgspec.field(name="spanID")
    name: str = msgspec.field(name="operationName")
    start_us: int = msgspec.field(name="startTime")
    us: int = msgspec.field(name="duration")
    references: list[_Reference] = []
    tags: list[_Tag] = []

    def read(self) -> Span:
        """Return the span in the form that is drawn."""
        parents = [reference.span_id for reference in self.references if reference.type == "CHILD_OF"]
        start_ns = self.start_us * _NS_PER_US
        tags = {tag.key: tag.value for tag in self.tags}
        # Jaeger leaves out leading zeros of ids.
        ids = (self.trace_id.zfill(32), self.span_id.zfill(16), parents[0].zfill(16) if parents else "")
        times_ns = (start_ns, start_ns + self.us * _NS_PER_US)
        return make_span(ids, self.name, times_ns, tags.items(), failed=tags.get("error") in (True, "true"))


class _JaegerTrace(msgspec.Struct):
    spans: list[_JaegerSpan]


class _JaegerAnswer(msgspec.Struct):
    data: list[_JaegerTrace]


class _OtherServerError(Exception):
    """What answers is another program, or has nothing at this path."""


def read_server(url: str, wanted: str) -> CallTimes:
    """The call that ``wanted`` names; see :func:`parley_client.waterfall.calls.choose_call`.

    Args:
        url: of Phoenix or Jaeger, such as ``http://127.0.0.1:6006``.
        wanted: a trace's id; or a session's id or the beginning of an id, of one of the newest calls that
            have ended.

    Raises:
        TraceFileError: the server cannot be read, is another one, or a trace is too large.
        UsageError: no call or several calls fit.
    """
    url = url.rstrip("/")
    trace_id = wanted.lower() if _TRACE_ID.fullmatch(wanted) else ""
    try:
        try:
            spans = _bounded(_ask_phoenix(url, trace_id), url)
        except _OtherServerError:
            spans = _bounded(_ask_jaeger(url, trace_id), url)
    except _OtherServerError as error:
        raise TraceFileError(
            f"{url}: is neither Phoenix with a project {PROJECT!r} nor Jaeger with this trace: {error}"
        ) from error
    chosen, span_id = choose_span(spans, wanted, url)
    return TraceIndex(span for span in spans if span.trace_id == chosen).call(span_id)


def _bounded(spans: Iterator[Span], url: str) -> list[Span]:
    kept = []
    try:
        for span in spans:
            kept.append(span)
            if len(kept) > MAX_SPANS:
                raise TraceFileError(
                    f"{url}: has more than {MAX_SPANS} spans; name one trace by its whole id"
                )
    except (ValueError, OverflowError) as error:
        raise TraceFileError(f"{url}: has a span that cannot be read: {error}") from error
    return kept


def _ask_phoenix(url: str, trace_id: str) -> Iterator[Span]:
    """Yield the spans of one trace, or of the newest calls."""
    spans = f"{url}/v1/projects/{PROJECT}/spans"
    ids = {trace_id}
    if not trace_id:
        newest = _get(f"{spans}?{urlencode({'name': CALL, 'limit': MAX_LISTED})}", _PhoenixPage)
        ids = {span.context.trace_id for span in newest.data}
    cursor: str | None = ""
    while ids and cursor is not None:
        asked: dict[str, Any] = {"trace_id": sorted(ids), "limit": _PAGE}
        asked |= {"cursor": cursor} if cursor else {}
        page = _get(f"{spans}?{urlencode(asked, doseq=True)}", _PhoenixPage)
        yield from (span.read() for span in page.data)
        cursor = page.next_cursor


def _ask_jaeger(url: str, trace_id: str) -> Iterator[Span]:
    """Yield the spans of one trace, or of the newest calls."""
    asked = urlencode({"service": SERVICE, "operation": CALL, "limit": MAX_LISTED})
    path = f"/api/traces/{quote(trace_id)}" if trace_id else f"/api/traces?{asked}"
    answer = _get(url + path, _JaegerAnswer)
    yield from (span.read() for trace in answer.data for span in trace.spans)


def _get(url: str, kind: type[T]) -> T:
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:  # noqa: S310 - the caller checks it
            body = response.read(_MAX_BYTES + 1)
    except HTTPError as error:
        with error:
            if error.code in (404, 405):
                raise _OtherServerError(f"{url}: {error.code}") from error
            raise TraceFileError(f"{url}: answers {error.code} {error.reason}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise TraceFileError(f"{url}: cannot be read: {getattr(error, 'reason', error)}") from error
    if len(body) > _MAX_BYTES:
        raise TraceFileError(f"{url}: answers with more than {_MAX_BYTES} bytes")
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise _OtherServerError(f"{url}: {error}") from error
