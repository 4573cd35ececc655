"""Spans in OTLP: JSON lines as the file exporter of the OpenTelemetry Collector writes them, and protobuf.

Why not ``json_format`` for both: it reads and writes ids as base64, and OTLP's JSON has them in hexadecimal.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import msgspec

from parley.errors import InvalidMessageError
from parley.protocol import TurnMetrics

_KEPT = frozenset(
    {f"parley.{field.name}" for field in msgspec.structs.fields(TurnMetrics)}
    | {"parley.outcome", "parley.reason", "gen_ai.conversation.id", "error.type"}
)
"""Names of the attributes that are read."""
_MAX_CHARS = 200

AttributeValue: TypeAlias = str | int | float | bool


class _Value(msgspec.Struct, frozen=True, rename="camel"):
    string_value: str | None = None
    int_value: int | str | None = None
    double_value: float | str | None = None
    """JSON has no numbers that are not finite: those are ``NaN``, ``Infinity`` and ``-Infinity`` as texts."""
    bool_value: bool | None = None

    def read(self) -> AttributeValue | None:
        """The value; None: there is none that is kept, such as a number that is not finite."""
        if self.int_value is not None:
            return int(self.int_value)
        if self.string_value is not None:
            return self.string_value[:_MAX_CHARS]
        if self.bool_value is not None:
            return self.bool_value
        number = math.nan if self.double_value is None else float(self.double_value)
        return number if math.isfinite(number) else None


class _Attribute(msgspec.Struct):
    key: str
    value: _Value = _Value()


class _Status(msgspec.Struct, frozen=True):
    code: int | str = 0


class _Span(msgspec.Struct, rename="camel"):
    trace_id: str
    span_id: str
    name: str
    start_time_unix_nano: int | str
    end_time_unix_nano: int | str
    parent_span_id: str = ""
    attributes: list[_Attribute] = []
    status: _Status = _Status()


class _Scope(msgspec.Struct):
    spans: list[_Span] = []


class _ResourceSpans(msgspec.Struct, rename="camel"):
    scope_spans: list[_Scope] = []


class _TracesData(msgspec.Struct, rename="camel"):
    resource_spans: list[_ResourceSpans]


class TooManySpansError(InvalidMessageError):
    """A batch has more spans than it may."""


class Span(msgspec.Struct, frozen=True):
    """A span that has ended."""

    trace_id: str
    span_id: str
    parent_id: str
    """Empty: it is the root of its trace."""
    name: str
    start_ns: int
    """Unix time (nanoseconds)."""
    end_ns: int
    attributes: dict[str, AttributeValue]
    failed: bool

    def text(self, name: str) -> str:
        """An attribute as text; empty: there is none."""
        return str(self.attributes.get(name, ""))


_data = msgspec.json.Decoder(_TracesData)
_ERRORS = (2, "STATUS_CODE_ERROR")


def read_spans(line: bytes) -> list[Span]:
    """The spans in one JSON object with ``resourceSpans``.

    Raises:
        InvalidMessageError: it is not JSON, or not of this form.
    """
    try:
        data = _data.decode(line)
        return [
            _read(span)
            for resource in data.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidMessageError(f"no spans in OTLP's JSON: {error}") from error


def _read(span: _Span) -> Span:
    start_ns, end_ns = int(span.start_time_unix_nano), int(span.end_time_unix_nano)
    if not 0 <= start_ns <= end_ns < 2**63:
        raise ValueError(f"span {span.span_id} ends before it begins, or has no Unix time")
    for digits, size in ((span.trace_id, 16), (span.span_id, 8), (span.parent_span_id or "0" * 16, 8)):
        if len(bytes.fromhex(digits)) != size:
            raise ValueError(f"{digits!r} is no id of {size} bytes in hexadecimal")
    # A span stays small, whatever a file has: texts of a conversation are not kept.
    values = ((each.key, each.value.read()) for each in span.attributes if each.key in _KEPT)
    return Span(
        span.trace_id.lower(),
        span.span_id.lower(),
        span.parent_span_id.lower(),
        span.name[:_MAX_CHARS],
        start_ns,
        end_ns,
        {key: value for key, value in values if value is not None},
        span.status.code in _ERRORS,
    )


def line_of_protobuf(body: bytes, most: int) -> bytes:
    """An ``ExportTraceServiceRequest`` as a line of JSON, with its line break.

    Args:
        body: the request.
        most: how many spans it may have, and how many groups of spans.

    Raises:
        TooManySpansError: it has more.
        InvalidMessageError: it is something else.
    """
    # An optional extra.
    from google.protobuf import json_format  # noqa: PLC0415
    from google.protobuf.message import DecodeError  # noqa: PLC0415
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2  # noqa: PLC0415

    try:
        request = trace_service_pb2.ExportTraceServiceRequest.FromString(body)
        _check_size(request.resource_spans, most)  # dictionaries take far more memory and time than messages
        data = json_format.MessageToDict(request, use_integers_for_enums=True)
    except TooManySpansError:
        raise
    except (DecodeError, json_format.Error, ValueError, RecursionError) as error:
        raise InvalidMessageError(f"no spans in OTLP's protobuf: {error}") from error
    for span in _spans(data):
        _write_ids(span)
        for link in span.get("links", []):
            _write_ids(link)
    return msgspec.json.encode(data) + b"\n"


def line_of_json(body: bytes, most: int) -> bytes:
    """The same as JSON in one line, with its line break.

    Raises:
        TooManySpansError: it has more than ``most`` spans, or groups of spans.
        InvalidMessageError: it is not JSON, or not of this form.
    """
    try:
        _check_size(_data.decode(body).resource_spans, most)
        return msgspec.json.encode(msgspec.json.decode(body)) + b"\n"
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InvalidMessageError(f"no spans in OTLP's JSON: {error}") from error


def _check_size(resources: Sequence[Any], most: int) -> None:
    """Raise if there are more than ``most`` resources, scopes or spans."""
    scopes = spans = 0
    for number, resource in enumerate(resources, 1):
        scopes += len(resource.scope_spans)
        if max(number, scopes) <= most:
            spans += sum(len(scope.spans) for scope in resource.scope_spans)
        if max(number, scopes, spans) > most:
            raise TooManySpansError(f"a batch has more than {most} spans, or groups of spans")


def _spans(data: Any) -> Iterator[dict[str, Any]]:
    for resource in data.get("resourceSpans", []):
        for scope in resource.get("scopeSpans", []):
            yield from scope.get("spans", [])


def _write_ids(span: dict[str, Any]) -> None:
    for name in ("traceId", "spanId", "parentSpanId"):
        if name in span:
            span[name] = base64.b64decode(span[name]).hex()
