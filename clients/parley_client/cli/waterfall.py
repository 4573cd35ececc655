"""A call's waterfall on the terminal: per turn the stages of its answer, and the spans below it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from parley_client.cli.output import printable
from parley_client.waterfall.calls import CallTimes, Row, TurnTimes
from parley_client.waterfall.stages import STAGES, stage_times

_MAX_WIDTH = 120
_PLAIN_WIDTH = 80
_NAME_COLUMNS = 30
_NUMBER_COLUMNS = 8
_LEAST_BAR = 10
_MAX_ROWS = 200
_BEYOND = 2.5
"""The axis is at most so many times as long as the wait for the first audio; what is longer is cut off."""
_LONGEST_MS = 1e7
_LONG = ("playback",)
"""Spans that do not count for the axis."""


def print_waterfall(console: Console, call: CallTimes) -> None:
    """Print a call, in 80 columns where there is no terminal; without colours it reads the same."""
    width = min(console.width, _MAX_WIDTH) if console.is_terminal else _PLAIN_WIDTH
    _print(console, Text(printable(f"call {call.session or '(not ended)'}"), "bold"), width)
    if call.trace_id:
        _print(console, Text(f"trace {call.trace_id}", "dim"), width)
    _print(console, _about(call), width)
    for turn in call.turns:
        console.print()
        _print(console, _heading_of_turn(turn), width)
        bars = list(_bars_of_turn(turn, traced=bool(call.trace_id)))
        _print_bars(console, bars, _axis(turn), width)
    if call.rows:
        console.print()
        _print(console, Text("outside of turns, from the beginning of the call", "bold"), width)
        bars = [_Bar.of_row(row, "green") for row in call.rows]
        _print_bars(console, bars, max(row.start_ms + (row.ms or 0.0) for row in call.rows), width)


def _about(call: CallTimes) -> Text:
    parts = []
    if call.began:
        parts.append(f"{call.began:%Y-%m-%d %H:%M:%S} UTC")
    parts.append(f"{len(call.turns)} turn{'' if len(call.turns) == 1 else 's'}")
    if call.reason:
        parts.append(f"closed: {call.reason}")
    return Text(printable(", ".join(parts)), "dim")


def _heading_of_turn(turn: TurnTimes) -> Text:
    text = Text(f"turn {turn.number}", "bold")
    text.append(f"  at {turn.at_s:.2f} s", "")
    if turn.figures.e2e_ms is not None:
        text.append(f"  e2e {_number(turn.figures.e2e_ms).strip()} ms", "bold cyan")
    else:
        text.append("  no speech before it")
    if turn.outcome:
        text.append(f"  {printable(turn.outcome)}", "yellow" if turn.outcome != "complete" else "")
    if turn.figures.speculated:
        text.append("  begun early")
    return text


class _Bar:
    """A line: name, beginning and duration (milliseconds; None: not known), and its colour."""

    def __init__(
        self, name: str, start_ms: float | None, ms: float | None, style: str, error: str = ""
    ) -> None:
        self.name = name
        self.start_ms = start_ms
        self.ms = ms
        self.style = "red" if error else style
        self.error = error

    @classmethod
    def of_row(cls, row: Row, style: str) -> _Bar:
        """A span's."""
        return cls("  " * row.depth + row.name, row.start_ms, row.ms, style, row.error)


def _bars_of_turn(turn: TurnTimes, *, traced: bool) -> Iterator[_Bar]:
    for time in stage_times(turn.figures):
        if time.start_ms is None and traced:
            continue  # a span has it
        yield _Bar(STAGES[time.stage].title, time.start_ms, time.ms, "cyan")
    for row in turn.rows:
        yield _Bar.of_row(row, "green")


def _axis(turn: TurnTimes) -> float:
    """The length of the axis (milliseconds)."""
    ends = [row.start_ms + (row.ms or 0.0) for row in turn.rows if row.name not in _LONG]
    ends += [time.start_ms + time.ms for time in stage_times(turn.figures) if time.start_ms is not None]
    longest = min(max(ends, default=0.0), _LONGEST_MS)
    return min(longest, _BEYOND * turn.figures.e2e_ms) if turn.figures.e2e_ms else longest


def _print_bars(console: Console, bars: Sequence[_Bar], axis_ms: float, width: int) -> None:
    room = max(_LEAST_BAR, width - _NAME_COLUMNS - 2 * _NUMBER_COLUMNS - 2)
    head = f"{'':{_NAME_COLUMNS}}{'from ms':>{_NUMBER_COLUMNS}}{'ms':>{_NUMBER_COLUMNS}}  0"
    head += f"{f'{axis_ms:.0f} ms':>{room - 1}}" if axis_ms > 0 else ""
    _print(console, Text(head, "dim"), width)
    full = "#" if console.options.ascii_only else "█"
    for bar in bars[:_MAX_ROWS]:
        name = printable(bar.name)
        if len(name) >= _NAME_COLUMNS:
            name = name[: _NAME_COLUMNS - 2] + "~"
        line = Text(f"{name:{_NAME_COLUMNS}}{_number(bar.start_ms)}{_number(bar.ms)}  ")
        line.append(_draw(bar, axis_ms, room, full), bar.style)
        if bar.error:
            line.append(f" {printable(bar.error)}", "red")
        _print(console, line, width)
    if len(bars) > _MAX_ROWS:
        _print(console, Text(f"and {len(bars) - _MAX_ROWS} more", "dim"), width)


def _draw(bar: _Bar, axis_ms: float, room: int, full: str) -> str:
    if bar.start_ms is None or axis_ms <= 0:
        return ""
    begin = _column(bar.start_ms, axis_ms, room)
    if begin >= room:
        return " " * (room - 1) + ">"
    end = _column(bar.start_ms + (bar.ms or 0.0), axis_ms, room)
    if end > room:
        return " " * begin + full * (room - begin - 1) + ">"
    return " " * begin + (full * (end - begin) or "|")


def _column(ms: float, axis_ms: float, room: int) -> int:
    """Where a time is drawn: from 0 to the first column that is not there. Files may have any number."""
    share = min(ms / axis_ms, 2.0) if ms > 0 else 0.0
    return min(round(room * share), room + 1)


def _number(ms: float | None) -> str:
    if ms is None:
        return f"{'-':>{_NUMBER_COLUMNS}}"
    return f"{ms:{_NUMBER_COLUMNS}.0f}" if abs(ms) < _LONGEST_MS else f"{ms:{_NUMBER_COLUMNS}.0e}"


def _print(console: Console, text: Text, width: int) -> None:
    console.print(text, width=width)
