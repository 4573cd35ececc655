"""What happened in one call: all that the scores are computed from. Times are seconds of the call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from parley import protocol
from simulate.loudspeaker import Account, Entry
from simulate.scenario import Exchange, Scenario


@dataclass(frozen=True)
class Sound:
    """An audio event arrived; its samples are not kept."""

    turn: int
    response_id: str
    offset_ms: float
    length_ms: float
    text: str = ""


@dataclass(frozen=True)
class Halt:
    """What the loudspeaker had when the server stopped it (``paused`` or ``interrupted``)."""

    at_s: float
    response_id: str
    queued_ms: float
    """Not heard yet."""
    was_playing: bool
    """Whether the loudspeaker sounded until then."""


Event: TypeAlias = Sound | protocol.ServerEvent


@dataclass
class Act:
    """An exchange as it was performed."""

    exchange: Exchange
    began_s: float
    """Its first loud sample, or when it was sent."""
    ended_s: float
    """Its last loud sample."""
    pauses: tuple[tuple[float, float], ...] = ()
    over: str = ""
    """The response that was heard when it began; empty: none."""
    over_ms: float = 0.0
    """How much of that response had been heard."""
    problem: str = ""
    """Why it could not be performed, or was never done with."""
    staged: bool = True
    """Whether it was performed at all."""


@dataclass
class CallLog:
    """One call."""

    scenario: Scenario
    acts: list[Act] = field(default_factory=list)
    events: list[tuple[float, Event]] = field(default_factory=list)
    """In the order of their arrival."""
    halts: list[Halt] = field(default_factory=list)
    ledger: dict[str, Account] = field(default_factory=dict)
    """What came of each response, and how much of it was heard."""
    late: list[Entry] = field(default_factory=list)
    """Audio that came after its response was interrupted."""
    microphone_late_ms: float = 0.0
    failure: str = ""
    """Why the call broke; empty: it did not."""
    ended_s: float = 0.0
