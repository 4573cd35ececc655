"""The events of calls as JSON lines: written while a call runs, and read to show where its time went."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Self, TypeAlias, get_args

import msgspec

from parley import protocol
from parley.errors import InvalidMessageError
from parley_client.errors import TraceFileError
from parley_client.events import AgentAudio, CallEvent, Reconnected, Reconnecting, ServerEvent
from parley_client.waterfall.calls import CallEntry, CallTimes, Row, TurnTimes, choose_call
from parley_client.waterfall.lines import read_lines

MAX_CALLS = 10_000
MAX_TURNS = 10_000
"""Of one call."""
MAX_OPEN_TURNS = 64
"""Turns of a call that have begun, and of which no figures came yet."""
MAX_TOOLS = 256
"""Calls of tools in one turn that are shown."""
_NAME_CHARS = 200
_MS = 1000.0
_OfATurn: TypeAlias = (
    protocol.ResponseText
    | protocol.Audio
    | protocol.Paused
    | protocol.Interrupted
    | protocol.ToolRequest
    | protocol.ToolRun
)
_OF_A_TURN = get_args(_OfATurn)


class RecordedEvent(msgspec.Struct, frozen=True):
    """A line: an event, and when the client got it."""

    session: Annotated[str, msgspec.Meta(max_length=256)]
    ts: datetime
    """UTC."""
    at_ms: float
    """Since recording began (milliseconds, monotonic)."""
    event: protocol.ServerEvent
    """As in the protocol. ``audio`` comes without its samples; texts are in it."""


_lines = msgspec.json.Decoder(RecordedEvent)


class EventRecorder:
    """Appends the events of calls to a file, until it is closed.

    Raises:
        TraceFileError: the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._began_s = time.perf_counter()
        try:
            self._file = path.open("ab")
        except OSError as error:
            raise TraceFileError(f"{path}: cannot be written: {error.strerror or error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self._file.close()

    def record(self, session: str, event: CallEvent) -> None:
        """Write an event of a call that a server has sent; raises TraceFileError if that is impossible."""
        if isinstance(event, Reconnecting | Reconnected):
            return
        at_ms = round(_MS * (time.perf_counter() - self._began_s), 1)
        line = RecordedEvent(session, datetime.now(UTC), at_ms, _of_protocol(event))
        try:
            self._file.write(msgspec.json.encode(line) + b"\n")
            self._file.flush()
        except OSError as error:
            raise TraceFileError(f"{self._path}: cannot be written: {error.strerror or error}") from error


def _of_protocol(event: ServerEvent) -> protocol.ServerEvent:
    if not isinstance(event, AgentAudio):
        return event
    return protocol.Audio(
        turn=event.turn,
        response_id=event.response_id,
        offset_ms=event.offset_ms,
        sample_rate=event.sample_rate,
        samples=len(event.samples),
        text=event.text,
    )


def read_events(path: Path, wanted: str) -> CallTimes:
    """The call in the file that ``wanted`` names; see :func:`choose_call`.

    Raises:
        TraceFileError: the file cannot be read, a line is no recorded event, or there are too many calls.
        UsageError: no call or several calls fit.
    """
    entries: dict[str, CallEntry] = {}
    for line in read_lines(path, read_event):
        entry = entries.setdefault(line.session, CallEntry(line.session, "", line.ts))
        entry.turns += isinstance(line.event, protocol.TurnMetrics)
        if len(entries) > MAX_CALLS:
            raise TraceFileError(f"{path}: has more than {MAX_CALLS} calls")
    chosen = list(entries.values())[choose_call(list(entries.values()), wanted, str(path))]
    call = _RecordedCall(chosen)
    for line in read_lines(path, read_event):
        if line.session == chosen.session:
            call.add(line)
    return call.times()


def read_event(line: bytes) -> RecordedEvent:
    """A line of the file.

    Raises:
        InvalidMessageError: it is none.
    """
    try:
        return _lines.decode(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InvalidMessageError(f"no recorded event: {error}") from error


@dataclass
class _Turn:
    """What is kept of a turn's events (milliseconds since recording began)."""

    began_ms: float
    audio_ms: float | None = None
    paused_ms: float | None = None
    interrupted_ms: float | None = None
    tools: list[tuple[str, float, float | None, str]] = field(default_factory=list)
    """Name, beginning, duration if it is known, and error."""

    def times(self, number: int, figures: protocol.TurnMetrics | None, end_ms: float) -> TurnTimes:
        """What is drawn; ``figures``: None, if the call ended before."""
        waited = figures.e2e_ms if figures else None
        origin = self.began_ms if waited is None or self.audio_ms is None else self.audio_ms - waited
        rows = [Row(f"execute_tool {name}", at - origin, ms, 0, error) for name, at, ms, error in self.tools]
        if self.audio_ms is not None:
            until = end_ms if self.interrupted_ms is None else self.interrupted_ms
            rows.append(Row("playback", self.audio_ms - origin, until - self.audio_ms))
        if self.interrupted_ms is not None:
            began = self.interrupted_ms if self.paused_ms is None else self.paused_ms
            rows.append(Row("interruption", began - origin, self.interrupted_ms - began))
        outcome = "not ended" if figures is None else "interrupted" if figures.interrupted else "complete"
        return TurnTimes(number, origin / _MS, figures or protocol.TurnMetrics(turn=number), outcome, rows)


class _RecordedCall:
    """Builds what is drawn from the events of one call."""

    def __init__(self, entry: CallEntry) -> None:
        self._entry = entry
        self._turns: dict[int, _Turn] = {}
        self._done: list[TurnTimes] = []
        self._reason = ""
        self._last_ms = 0.0

    def add(self, line: RecordedEvent) -> None:
        """Add the next event."""
        self._last_ms = line.at_ms
        event = line.event
        if isinstance(event, protocol.TurnMetrics):
            if len(self._done) >= MAX_TURNS:
                raise TraceFileError(f"{line.session} has more than {MAX_TURNS} turns")
            turn = self._turns.pop(event.turn, None) or _Turn(line.at_ms)
            self._done.append(turn.times(event.turn, event, line.at_ms))
        elif isinstance(event, protocol.Closed):
            self._reason = event.reason
        elif isinstance(event, _OF_A_TURN):
            if event.turn not in self._turns:
                if len(self._turns) >= MAX_OPEN_TURNS:
                    raise TraceFileError(f"more than {MAX_OPEN_TURNS} turns of {line.session} have no end")
                self._turns[event.turn] = _Turn(line.at_ms)
            _add(self._turns[event.turn], event, line.at_ms)

    def times(self) -> CallTimes:
        """The whole call."""
        open_turns = [turn.times(number, None, self._last_ms) for number, turn in self._turns.items()]
        return CallTimes(
            self._entry.session, "", self._entry.began, self._reason, turns=[*self._done, *open_turns]
        )


def _add(turn: _Turn, event: _OfATurn, at_ms: float) -> None:
    match event:
        case protocol.Audio() if turn.audio_ms is None:
            turn.audio_ms = at_ms
        case protocol.Paused():
            turn.paused_ms = at_ms
        case protocol.Interrupted():
            turn.interrupted_ms = at_ms
        case protocol.ToolRequest() if len(turn.tools) < MAX_TOOLS:
            turn.tools.append((event.name[:_NAME_CHARS], at_ms, None, ""))
        case protocol.ToolRun() if len(turn.tools) < MAX_TOOLS:
            error = "failed" if event.is_error else ""
            turn.tools.append((event.name[:_NAME_CHARS], at_ms - event.duration_ms, event.duration_ms, error))
        case _:
            pass
