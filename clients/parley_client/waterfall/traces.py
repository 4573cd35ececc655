"""Calls in a file of OTLP JSON lines, as the OpenTelemetry Collector's file exporter writes it.

The file is read twice, so that it may be larger than memory: once for the list of its calls, and once for the
spans of one trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from parley.protocol import TurnMetrics
from parley_client.errors import TraceFileError
from parley_client.waterfall.calls import CallEntry, CallTimes, Row, TurnTimes, choose_call
from parley_client.waterfall.lines import read_lines
from parley_client.waterfall.otlp import Span, read_spans

MAX_SPANS = 20_000
"""Of one trace."""
MAX_CALLS = 10_000
MAX_TURNS = 1_000_000
"""Of one file, of all its calls."""
CALL, TURN = "call", "turn"
"""Names of spans."""
SESSION = "gen_ai.conversation.id"
# The stages of a turn show them, unless a model has spans below.
_SHOWN_AS_STAGES = ("asr", "endpointing")
_MAX_DEPTH = 8
_NS_PER_MS = 1e6
_NS_PER_S = 1e9


def read_trace(path: Path, wanted: str) -> CallTimes:
    """The call in the file that ``wanted`` names; see :func:`choose_call`.

    Raises:
        TraceFileError: the file cannot be read, a line is not OTLP, or there is too much in it.
        UsageError: no call or several calls fit.
    """
    trace_id, span_id = choose_span(spans_of(path), wanted, str(path))
    found: dict[str, Span] = {}
    for span in spans_of(path):
        if span.trace_id == trace_id:
            found.setdefault(span.span_id, span)
            if len(found) > MAX_SPANS:
                raise TraceFileError(f"{path}: the trace {trace_id} has more than {MAX_SPANS} spans")
    return TraceIndex(found.values()).call(span_id)


def spans_of(path: Path) -> Iterator[Span]:
    """The spans of all lines; raises TraceFileError with the number of a line that has none."""
    for spans in read_lines(path, read_spans):
        yield from spans


def choose_span(spans: Iterable[Span], wanted: str, where: str) -> tuple[str, str]:
    """The ids of the trace and the span of the call that ``wanted`` names; see :func:`choose_call`.

    Raises:
        TraceFileError: there are too many calls or turns.
        UsageError: no call or several calls fit.
    """
    calls: dict[tuple[str, str], CallEntry] = {}
    turns: dict[tuple[str, str], set[int]] = {}
    count = 0
    for span in spans:
        if span.name == CALL:
            calls[span.trace_id, span.span_id] = CallEntry(span.text(SESSION), span.trace_id, _time(span))
        elif span.name == TURN:
            ids = turns.setdefault((span.trace_id, span.parent_id), set())
            before = len(ids)
            ids.add(int(span.span_id, 16))  # an exporter that gets no answer sends its batch again
            count += len(ids) - before
        if len(calls) > MAX_CALLS or len(turns) > MAX_CALLS:
            raise TraceFileError(f"{where}: has more than {MAX_CALLS} calls")
        if count > MAX_TURNS:
            raise TraceFileError(f"{where}: has more than {MAX_TURNS} turns")
    for key, ids in turns.items():
        # The span of a call that goes on is not there yet.
        calls.setdefault(key, CallEntry("", key[0], None)).turns = len(ids)
    keys = sorted(calls, key=lambda key: calls[key].began or datetime.max.replace(tzinfo=UTC))
    return keys[choose_call([calls[key] for key in keys], wanted, where)]


class TraceIndex:
    """The spans of one trace by what is above them.

    Args:
        spans: of the trace, at least one. Of those with the same id the first counts: an exporter that gets
            no answer sends its batch again.
    """

    def __init__(self, spans: Iterable[Span]) -> None:
        self._spans: dict[str, Span] = {}
        for span in sorted(spans, key=lambda span: span.start_ns):
            self._spans.setdefault(span.span_id, span)
        self._children: dict[str, list[Span]] = {}
        for span in self._spans.values():
            self._children.setdefault(span.parent_id, []).append(span)

    def call(self, span_id: str) -> CallTimes:
        """The call with this span, which the trace has, or spans below it."""
        call = self._spans.get(span_id)
        below = self._children.get(span_id, [])
        first = call or below[0]
        turns = [span for span in below if span.name == TURN]
        others = [span for span in below if span.name != TURN]
        drawn = {span_id}
        return CallTimes(
            session=call.text(SESSION) if call else "",
            trace_id=first.trace_id,
            began=_time(call) if call else None,
            reason=call.text("parley.reason") if call else "",
            turns=[
                self._turn(span, number, first.start_ns, drawn)
                for number, span in enumerate((one for one in turns if not _is_discarded(one)), 1)
            ],
            rows=list(self._rows(others, first.start_ns, drawn)),
        )

    def _turn(self, span: Span, number: int, began_ns: int, drawn: set[str]) -> TurnTimes:
        figures = {
            field.name: span.attributes[f"parley.{field.name}"]
            for field in msgspec.structs.fields(TurnMetrics)
            if f"parley.{field.name}" in span.attributes
        }
        try:
            metrics = msgspec.convert({"turn": number, **figures}, TurnMetrics)
        except msgspec.ValidationError:  # another program's span, of the same name
            metrics = TurnMetrics(turn=number)
        return TurnTimes(
            number=metrics.turn,
            at_s=(span.start_ns - began_ns) / _NS_PER_S,
            figures=metrics,
            outcome=span.text("parley.outcome"),
            rows=list(self._rows(self._children.get(span.span_id, []), span.start_ns, drawn)),
        )

    def _rows(self, spans: Iterable[Span], origin_ns: int, drawn: set[str], depth: int = 0) -> Iterator[Row]:
        """Spans and what is below them; ``drawn`` has those with a row already: spans may be circular."""
        for span in spans:
            if span.span_id in drawn:
                continue
            drawn.add(span.span_id)
            below = self._children.get(span.span_id, []) if depth < _MAX_DEPTH else []
            if span.name in _SHOWN_AS_STAGES and not below and not span.failed:
                continue
            yield Row(
                span.name,
                (span.start_ns - origin_ns) / _NS_PER_MS,
                (span.end_ns - span.start_ns) / _NS_PER_MS,
                depth,
                (span.text("error.type") or "failed") if span.failed else "",
            )
            yield from self._rows(below, origin_ns, drawn, depth + 1)


def _is_discarded(span: Span) -> bool:
    """A prepared answer that was not used has the number of the one that was."""
    return span.text("parley.outcome") == "discarded"


def _time(span: Span) -> datetime:
    return datetime.fromtimestamp(span.start_ns / _NS_PER_S, UTC)
