"""A call whose times are drawn, and the choice of one among several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from parley.protocol import TurnMetrics
from parley_client.errors import UsageError

_LISTED = 20


@dataclass(frozen=True, slots=True)
class Row:
    """A bar: a span of a trace, or what events say of one (milliseconds from the turn's origin)."""

    name: str
    start_ms: float
    ms: float | None
    """None: its end is not known."""
    depth: int = 0
    """Of nesting, from 0."""
    error: str = ""
    """Code of its failure; empty: none."""


@dataclass(frozen=True, slots=True)
class TurnTimes:
    """One turn of the agent."""

    number: int
    at_s: float
    """Of its origin since the beginning of the call (seconds): the end of the user's speech, or where the
    turn began if nothing was said."""
    figures: TurnMetrics
    outcome: str
    """As attribute ``parley.outcome`` of a turn's span, or what events say of it."""
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class CallTimes:
    """One call."""

    session: str
    """Empty: the trace does not say, because the call has not ended."""
    trace_id: str
    """Empty: these are events, without a trace."""
    began: datetime | None
    """None: it is not recorded."""
    reason: str
    """Why the call ended; empty: it is not known."""
    turns: Sequence[TurnTimes]
    rows: Sequence[Row] = field(default=())
    """What is below no turn; milliseconds from the beginning of the call."""


@dataclass(slots=True)
class CallEntry:
    """A call of a file, before it is read as a whole."""

    session: str
    trace_id: str
    began: datetime | None
    turns: int = 0

    def describe(self) -> str:
        """One line."""
        ids = [self.session or "(not ended)", *([f"trace {self.trace_id}"] if self.trace_id else [])]
        began = f"{self.began:%Y-%m-%d %H:%M:%S} UTC" if self.began else ""
        return "  ".join(filter(None, [*ids, began, f"{self.turns} turn{'' if self.turns == 1 else 's'}"]))


def choose_call(entries: Sequence[CallEntry], wanted: str, where: str) -> int:
    """The position of the call that is meant.

    Args:
        entries: all calls.
        wanted: a session's or a trace's id, or the beginning of one that no other has; empty: the only call.
        where: the name of the file, for the message.

    Raises:
        UsageError: there is none, or there are several; the message lists them.
    """
    found = [
        number
        for number, entry in enumerate(entries)
        if entry.session.startswith(wanted) or entry.trace_id.startswith(wanted)
    ]
    exact = [number for number in found if wanted in (entries[number].session, entries[number].trace_id)]
    found = exact if wanted and exact else found
    if len(found) == 1:
        return found[0]
    if not entries:
        raise UsageError(f"{where}: has no call")
    several = f"{len(found)} calls {'fit' if wanted else 'are'} in {where}; name one of them:"
    none = f"no call of {where} is {wanted!r}; it has:"
    listed = [entries[number] for number in (found or range(len(entries)))]
    lines = [f"  {entry.describe()}" for entry in listed[:_LISTED]]
    if len(listed) > _LISTED:
        lines.append(f"  and {len(listed) - _LISTED} more")
    raise UsageError("\n".join([several if found else none, *lines]))
