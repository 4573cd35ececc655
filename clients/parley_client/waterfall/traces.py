"""Calls in a file of OTLP JSON lines, as the OpenTelemetry Collector's file exporter writes it.

The file is read twice, so that it may be larger than memory: once for the list of its calls, and once for the
spans of one trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
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
MAX_TRACE_CALLS = 100
"""Of one trace, which are drawn when they are complete."""
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
    entries, keys = _list(spans_of(path))
    trace_id, span_id = keys[choose_call(entries, wanted, str(path))]
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


def _list(spans: Iterable[Span]) -> tuple[list[CallEntry], list[tuple[str, str]]]:
    """The calls in the order of their beginnings, and the ids of their traces and spans."""
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
            raise TraceFileError(f"more than {MAX_CALLS} calls are in the file")
        if count > MAX_TURNS:
            raise TraceFileError(f"more than {MAX_TURNS} turns are in the file")
    for key, ids in turns.items():
        # The span of a call that goes on is not there yet.
        calls.setdefault(key, CallEntry("", key[0], None)).turns = len(ids)
    keys = sorted(calls, key=lambda key: calls[key].began or datetime.max.replace(tzinfo=UTC))
    return [calls[key] for key in keys], keys


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
        """Spans and what is below them, each under the one it belongs to.

        Args:
            spans: those of one depth.
            origin_ns: Unix time of the beginning of their turn or call.
            drawn: ids of those that have a row, of which there is no second one: spans may be circular.
            depth: of the rows.
        """
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


class TraceCollection:
    """Spans as a collector gets them, and the calls among them that are complete.

    A call is complete when its span has come, and nothing of its trace for ``settle_s``: models export their
    spans in batches of their own. Then the spans below it are forgotten. The others of its trace stay while
    another call of the trace may go on.

    Args:
        settle_s: seconds.
        now: seconds, monotonic.
    """

    MAX_TRACES = 256
    MAX_SPANS = 50_000
    """Of all traces."""
    MAX_DRAWN = 10_000
    """Calls that were complete, of which a batch that is sent again is ignored."""
    OPEN_S = 900.0
    """A trace of which nothing came for so long is forgotten: the span of its call is lost, or was drawn
    before these spans came."""

    def __init__(self, settle_s: float, now: Callable[[], float]) -> None:
        self._settle_s = settle_s
        self._now = now
        self._traces: dict[str, dict[str, Span]] = {}
        self._changed: dict[str, float] = {}
        self._drawn: dict[tuple[str, str], None] = {}
        self._kept = 0
        self.dropped = 0
        """Spans that were too many, of a trace or of traces that were forgotten, and calls of one trace."""

    def add(self, spans: Iterable[Span]) -> None:
        """Add spans; of too many traces, the one that has not changed for longest is forgotten."""
        for span in spans:
            if (span.trace_id, span.span_id) in self._drawn:
                continue  # the batch of a call that was complete, sent again
            kept = self._traces.setdefault(span.trace_id, {})
            if span.span_id in kept:
                pass  # a batch that was sent again
            elif len(kept) < MAX_SPANS:
                kept[span.span_id] = span
                self._kept += 1
            else:
                self.dropped += 1
            self._changed[span.trace_id] = self._now()
            if len(self._traces) > self.MAX_TRACES or self._kept > self.MAX_SPANS:
                self.dropped += len(self._forget(min(self._changed, key=self._changed.__getitem__)))

    def complete(self, *, all_of_them: bool = False) -> list[CallTimes]:
        """The calls that have become complete, which are forgotten; or all of which the span has come."""
        now = self._now()
        found = []
        for trace_id in [
            one for one, at in self._changed.items() if all_of_them or at <= now - self._settle_s
        ]:
            spans = list(self._traces[trace_id].values())
            ids = [span.span_id for span in spans if span.name == CALL]
            if ids:
                index = TraceIndex(spans)
                found += [index.call(span_id) for span_id in ids[:MAX_TRACE_CALLS]]
                self.dropped += len(ids[MAX_TRACE_CALLS:])
                self._remember(trace_id, ids)
                changed = self._changed[trace_id]
                self._forget(trace_id)
                if rest := _of_open_calls(spans, ids):
                    self._traces[trace_id] = {span.span_id: span for span in rest}
                    self._changed[trace_id] = changed
                    self._kept += len(rest)
            elif self._changed[trace_id] <= now - self.OPEN_S:
                self._forget(trace_id)
        return found

    def _remember(self, trace_id: str, ids: Iterable[str]) -> None:
        self._drawn |= dict.fromkeys((trace_id, span_id) for span_id in ids)
        for key in list(islice(self._drawn, max(0, len(self._drawn) - self.MAX_DRAWN))):
            del self._drawn[key]

    def _forget(self, trace_id: str) -> dict[str, Span]:
        del self._changed[trace_id]
        spans = self._traces.pop(trace_id)
        self._kept -= len(spans)
        return spans


def _of_open_calls(spans: Sequence[Span], ended: Sequence[str]) -> list[Span]:
    """The spans of a trace that calls may need of which the span has not come.

    Args:
        spans: of the trace.
        ended: ids of the calls of which it has come.
    """
    by_id = {span.span_id: span for span in spans}
    below = _below(spans, ended)
    above: set[str] = set()
    for span_id in ended:
        parent = by_id.get(by_id[span_id].parent_id)
        while parent is not None and parent.span_id not in above and parent.span_id not in below:
            above.add(parent.span_id)
            parent = by_id.get(parent.parent_id)
    kept = [span for span in spans if span.span_id not in below]
    # What is below an open call has, at its top, a span whose parent has not come. So have the spans above an
    # ended one, if a caller's program began the trace: of those only turns are below a call.
    tops = [span for span in kept if span.parent_id and span.parent_id not in by_id]
    is_open = any(span.span_id not in above or span.name == TURN for span in tops)
    return kept if is_open else []


def _below(spans: Iterable[Span], roots: Iterable[str]) -> set[str]:
    """The ids of these spans, and of all spans below them."""
    children: dict[str, list[str]] = {}
    for span in spans:
        children.setdefault(span.parent_id, []).append(span.span_id)
    found: set[str] = set()
    waiting = list(roots)
    while waiting:
        span_id = waiting.pop()
        if span_id not in found:
            found.add(span_id)
            waiting += children.get(span_id, [])
    return found
