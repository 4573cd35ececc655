"""What happened in one call: all that the scores are computed from. Times are seconds of the call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from parley import protocol
from parley_client.events import format_sources
from parley_testing.devices import Account, AudioEntry
from parley_testing.scenario import Exchange, Scenario


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
    """The received audio of each response, and how much of it was heard."""
    late: list[AudioEntry] = field(default_factory=list)
    """Audio that came after its response was interrupted."""
    microphone_late_ms: float = 0.0
    failure: str = ""
    """Why the call broke; empty: it did not."""
    closed: str = ""
    """Why the server ended the call (``Closed.reason``); empty: the caller did."""
    ended_s: float = 0.0


Who: TypeAlias = Literal["caller", "heard", "turn", "agent", "tool", "trouble"]


@dataclass(frozen=True)
class Line:
    """Something that happened."""

    at_s: float
    who: Who
    text: str


def transcript(log: CallLog) -> list[Line]:
    """All of a call, in order."""
    acts = [Line(act.began_s, "caller", _what(act)) for act in log.acts]
    events = [line for at, event in log.events for line in _lines_of(at, event)]
    texts = list(_answers(log))
    failure = [Line(log.ended_s, "trouble", log.failure)] if log.failure else []
    return sorted([*acts, *events, *texts, *failure], key=lambda line: line.at_s)


def _what(act: Act) -> str:
    exchange = act.exchange
    name = exchange.content or exchange.words or exchange.kind
    if exchange.sentence is not None:
        name = f"“{exchange.content or exchange.sentence.text}”"
    until = f" (until {act.ended_s:.2f} s)" if act.ended_s > act.began_s else ""
    problem = f": {act.problem}" if act.problem else ""
    return f"{exchange.index + 1}. {name}{until}{problem}"


def _answers(log: CallLog) -> Iterator[Line]:
    """What the agent said, as one line for each answer, where its first audio came, or its first text."""
    first = protocol.ResponseText if log.scenario.start.output == "text" else Sound
    began: dict[str, float] = {}
    texts: dict[str, str] = {}
    for at, event in log.events:
        if isinstance(event, Sound | protocol.ResponseText) and isinstance(event, first):
            began.setdefault(event.response_id, at)
        if isinstance(event, protocol.ResponseText):
            texts[event.response_id] = texts.get(event.response_id, "") + event.text
    for response, at in began.items():
        yield Line(at, "agent", f"“{texts.get(response, '').strip()}”")


def _outcome_text(
    event: protocol.StepChanged | protocol.DataCollected | protocol.Decision | protocol.KnowledgeUsed,
) -> str:
    match event:
        case protocol.KnowledgeUsed():
            return format_sources(event)
        case protocol.StepChanged():
            return f"in step {event.step}"
        case protocol.DataCollected():
            return f"{event.field} = “{event.value}”{' (confirmed)' if event.confirmed else ''}"
        case protocol.Decision():
            return f"{event.name}: {event.value} ({event.probabilities[event.value]:.0%})"


def _lines_of(at: float, event: Event) -> Iterator[Line]:
    match event:
        case protocol.Transcript(is_final=True):
            again = f", and before it “{event.before}”" if event.first else ""
            yield Line(at, "heard", f"“{event.text}” ({event.confidence:.0%}){again}")
        case protocol.TurnDecision():
            score = "" if event.probability is None else f", sounds {event.probability:.0%} over"
            cue = f", {event.cue}: “{event.cue_words}”" if event.cue else ""
            why = f"{event.reason}, {event.silence_ms} of {event.needed_ms} ms{score}{cue}"
            yield Line(at, "turn", f"{event.decision} ({why}): “{event.text}”")
        case protocol.Paused():
            yield Line(at, "agent", "paused")
        case protocol.Resumed():
            heard = f": “{event.text}”" if event.text else ""
            yield Line(at, "agent", f"goes on ({event.reason}{heard})")
        case protocol.SpeechIgnored():
            yield Line(at, "agent", f"does not answer ({event.reason}: “{event.text}”)")
        case protocol.Interrupted():
            yield Line(at, "agent", f"stopped ({event.reason}) after “{event.spoken_text}”")
        case protocol.ToolRequest() | protocol.ToolRun():
            yield Line(at, "tool", f"{event.name}({event.arguments})")
        case (
            protocol.StepChanged() | protocol.DataCollected() | protocol.Decision() | protocol.KnowledgeUsed()
        ):
            yield Line(at, "agent", _outcome_text(event))
        case protocol.ErrorEvent():
            yield Line(at, "trouble", f"{event.code}: {event.message}")
        case _:
            pass
