"""Spans in OTLP's JSON, as the file exporter of the OpenTelemetry Collector writes them.

Why not ``json_format``: it reads ids as base64, and OTLP's JSON has them in hexadecimal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypeAlias

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
        """The value; None: it is of another type."""
        if self.int_value is not None:
            return int(self.int_value)
        if self.double_value is not None:
            return float(self.double_value)
        return self.bool_value if self.string_value is None else self.string_value


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
    return make_span(
        (span.trace_id, span.span_id, span.parent_span_id),
        span.name,
        (int(span.start_time_unix_nano), int(span.end_time_unix_nano)),
        # Values of other attributes need not be numbers that can be read.
        ((each.key, each.value.read()) for each in span.attributes if each.key in _KEPT),
        failed=span.status.code in _ERRORS,
    )


def make_span(
    ids: tuple[str, str, str],
    name: str,
    times_ns: tuple[int, int],
    attributes: Iterable[tuple[str, object]],
    *,
    failed: bool,
) -> Span:
    """A span of which only what is drawn is kept: it stays small, and has no text of the conversation.

    Args:
        ids: of its trace, its own, and of its parent (empty: it has none), in hexadecimal.
        name: of the span.
        times_ns: its beginning and its end (Unix time, nanoseconds).
        attributes: all that it has, with values of any type.
        failed: whether its status is an error.

    Raises:
        ValueError: an id or a time is none.
    """
    start_ns, end_ns = times_ns
    if not 0 <= start_ns <= end_ns < 2**63:
        raise ValueError(f"span {ids[1]} ends before it begins, or has no Unix time")
    for digits, size in zip((*ids[:2], ids[2] or "0" * 16), (16, 8, 8), strict=True):
        if len(bytes.fromhex(digits)) != size:
            raise ValueError(f"{digits!r} is no id of {size} bytes in hexadecimal")
    kept: dict[str, AttributeValue] = {}
    for key, value in attributes:
        if key not in _KEPT or (isinstance(value, float) and not math.isfinite(value)):
            continue
        if isinstance(value, str):
            kept[key] = value[:_MAX_CHARS]
        elif isinstance(value, int | float):
            kept[key] = value
    trace_id, span_id, parent_id = (digits.lower() for digits in ids)
    return Span(trace_id, span_id, parent_id, name[:_MAX_CHARS], start_ns, end_ns, kept, failed)
