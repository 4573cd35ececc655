"""The caller of all measurements: holds conversations in real time, and notes what becomes of each."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import NamedTuple

from parley import protocol
from parley.checkpoint import HistoryState
from parley.errors import ParleyError
from parley_client.audio.microphone import DEFAULT_CHUNK_MS
from parley_client.audio.playout import Heard, PlayoutClock
from parley_client.call import Call
from parley_client.cli.conversation import ScriptedConversation
from parley_client.cli.script import ScriptTurn
from parley_client.cli.turns import TurnReport
from parley_client.events import AgentAudio, CallEvent, Reconnected, Reconnecting

_STAGGER_S = 0.3
_TURN_S = 30.0
_SETTLED_TRIES, _SETTLED_S = 10, 0.3


@dataclass
class Move:
    """A change of server, as the caller has noticed it."""

    at_s: float
    """When the call looked for another server (seconds of ``perf_counter``)."""
    reason: str
    gap_ms: float = math.inf
    """How long there was no server; infinite: none was found."""


@dataclass
class CallReport:
    """What became of one call."""

    number: int
    """Of its caller."""
    began_s: float = math.nan
    """When the caller called (seconds of ``perf_counter``)."""
    opened_s: float = math.nan
    """When it was accepted; NaN: it was not."""
    ended_s: float = math.nan
    turns: list[TurnReport] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    silences: list[tuple[float, float]] = field(default_factory=list)
    """Within answers: when it began (seconds), and how long nothing was heard (milliseconds)."""
    refused: str = ""
    """The code of the error with which it was not opened."""
    lost: str = ""
    """The code of the error with which it broke."""
    late_ms: float = 0.0
    """By how much the microphone's latest chunk left after its time."""
    history: HistoryState | None = None
    """What the agent remembers at the end; None: unknown."""

    def history_difference(self) -> str:
        """Where that differs from what was said and played; empty: nowhere."""
        messages = self.history.messages if self.history else []
        remembered = _joined(
            _Part(message.role, _plain(message.content))
            for message in messages
            if message.role in ("user", "assistant")
        )
        held = _joined(
            part
            for turn in self.turns
            for part in (
                _Part("user", _plain(turn.heard)),
                _Part("assistant", _plain(turn.answer), turn.incomplete),
            )
        )
        if held and not remembered:
            return f"call {self.number} remembers nothing"
        # Of a long conversation the beginning is forgotten, or summarised.
        for (role, kept), (other_role, parts) in zip(reversed(remembered), reversed(held), strict=False):
            text = _text_of(kept)
            if role != other_role or not _is_text_of(parts, text):
                return f"call {self.number} remembers {text!r} instead of {_text_of(parts)!r}"
        return ""


class _Part(NamedTuple):
    role: str
    text: str
    """Letters and digits only."""
    incomplete: bool = False
    """See :attr:`TurnReport.incomplete`."""


def _plain(text: str) -> str:
    """Without what writing adds: case, punctuation, white space."""
    return "".join(letter for letter in text.lower() if letter.isalnum())


def _joined(parts: Iterable[_Part]) -> list[tuple[str, list[_Part]]]:
    """What one side has said in a row, with its role."""
    spoken = (part for part in parts if part.text)
    return [(role, list(group)) for role, group in itertools.groupby(spoken, key=lambda part: part.role)]


def _text_of(parts: Iterable[_Part]) -> str:
    return "".join(part.text for part in parts)


def _is_text_of(parts: Iterable[_Part], text: str) -> bool:
    """Whether the parts make this text; the end of an incomplete one was not spoken."""
    for part in parts:
        equal = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(part.text, text, strict=False))
        count = sum(1 for _ in equal)
        if count < len(part.text) and not part.incomplete:
            return False
        text = text[count:]
    return not text


class Loudspeaker:
    """Plays the answers without a device, and notes where they were silent.

    Unlike the conversation's own it is asked for nothing else; a pause that the server has ordered is no
    silence.
    """

    def __init__(self, silences: list[tuple[float, float]]) -> None:
        self._silences = silences
        self._playout = PlayoutClock(self._on_heard)
        self._ends: dict[str, float] = {}
        self._paused: set[str] = set()

    def on_event(self, event: CallEvent, now: float) -> None:
        """An event has come at ``now`` (seconds)."""
        match event:
            case AgentAudio():
                self._playout.push(event, now)
            case protocol.Paused():
                self._playout.pause(event.response_id, now)
            case protocol.Resumed():
                self._playout.resume(event.response_id, now)
                self._ends.pop(event.response_id, None)
            case protocol.Interrupted():
                self._playout.interrupt(event.response_id, now)
            case _:
                self._playout.advance(now)

    def _on_heard(self, heard: Heard) -> None:
        end_s = self._ends.get(heard.response_id)
        if end_s is not None and heard.at_s - end_s > 0.001:
            self._silences.append((end_s, 1000 * (heard.at_s - end_s)))
        self._ends[heard.response_id] = heard.at_s + len(heard.samples) / heard.sample_rate


async def hold_call(
    line: AbstractAsyncContextManager[Call],
    turns: Iterable[ScriptTurn],
    report: CallReport,
    *,
    chunk_ms: int = DEFAULT_CHUNK_MS,
) -> None:
    """Hold one call, and note in ``report`` what becomes of it.

    Args:
        line: opens the call.
        turns: taken one after the other; the caller hangs up after the last answer.
        report: of a call that was not begun.
        chunk_ms: audio in one message of the caller (milliseconds).
    """
    report.began_s = time.perf_counter()
    try:
        async with line as call:
            report.opened_s = time.perf_counter()
            await _converse(call, report, turns, chunk_ms)
            await _remember(call, report)
            await call.hang_up()
    except ParleyError as error:
        if math.isnan(report.opened_s):
            report.refused = error.code
        else:
            report.lost = error.code
    finally:
        report.ended_s = time.perf_counter()


async def _remember(call: Call, report: CallReport) -> None:
    """Read what the agent remembers, once it has taken notice of the end of the last answer."""
    if not report.turns:
        return
    for _ in range(_SETTLED_TRIES):
        report.history = call.history
        if not report.history_difference():
            return
        await asyncio.sleep(_SETTLED_S)


async def _converse(call: Call, report: CallReport, turns: Iterable[ScriptTurn], chunk_ms: int) -> None:
    loudspeaker = Loudspeaker(report.silences)

    def on_event(event: CallEvent) -> None:
        now = time.perf_counter()
        loudspeaker.on_event(event, now)
        match event:
            case Reconnecting():
                report.moves.append(Move(now, event.reason))
            case Reconnected() if report.moves:
                report.moves[-1].gap_ms = event.gap_ms
            case _:
                pass

    conversation = ScriptedConversation(
        call, turn_timeout_s=_TURN_S, chunk_ms=chunk_ms, record=False, on_event=on_event
    )
    try:
        await conversation.run(turns)
    finally:
        report.turns = conversation.tracker.reports
        report.late_ms = 1000 * conversation.microphone.worst_late_s


async def hold_calls(
    connect: Callable[[int], AbstractAsyncContextManager[Call]],
    turns: Sequence[ScriptTurn],
    calls: int,
    disturb: Callable[[], Awaitable[None]],
    *,
    before_s: float,
    after_s: float,
    chunk_ms: int = DEFAULT_CHUNK_MS,
) -> list[CallReport]:
    """Hold calls, disturb them once, and let each finish its turn.

    Args:
        connect: opens the call of a number.
        turns: spoken by each caller in this order, again and again, each beginning elsewhere.
        calls: at once.
        disturb: the disturbance.
        before_s: from when the last caller calls until the disturbance (seconds).
        after_s: from its end until no caller begins another turn (seconds).
        chunk_ms: audio in one message of a caller (milliseconds).

    Raises:
        ParleyError: the disturbance failed.
    """
    stopping = asyncio.Event()
    reports = [CallReport(number) for number in range(calls)]

    async def call(report: CallReport) -> None:
        await asyncio.sleep(report.number * _STAGGER_S)
        spoken = itertools.islice(itertools.cycle(turns), report.number, None)
        going = itertools.takewhile(lambda _: not stopping.is_set(), spoken)
        await hold_call(connect(report.number), going, report, chunk_ms=chunk_ms)

    async with asyncio.TaskGroup() as group:
        for report in reports:
            group.create_task(call(report), name=f"caller {report.number}")
        try:
            await asyncio.sleep(calls * _STAGGER_S + before_s)
            await disturb()
            await asyncio.sleep(after_s)
        finally:
            stopping.set()
    return reports
