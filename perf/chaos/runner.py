"""Holds calls and requests, causes a fault under them, and judges by what the callers have got."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from chaos.callers import TURN_S, Caller, Open, Turn, calling, first_answer, until_all_answered
from chaos.deployment import PARTS, Deployment
from chaos.evidence import ChaosCaller, Comparison, Effect, Speech, compare_texts, count_turns, find_speech
from chaos.faults import Fault
from chaos.requests import BOUND_S, Request, Requests
from chaos.words import Part
from parley.errors import ParleyError
from parley_stages.server import open_server
from parley_stages.transcription import Transcriber

_BEFORE_S = 180.0
_AFTER_S = 2 * TURN_S
_NEWCOMER_EVERY_S = 1.5
_NEWCOMERS = 4
_GIVE_UP_S = 60.0
"""Behind the time that a fault allows: how long a recovery is waited for, to say how long it took."""
_LOOK_S = 0.05
_PRESSURE = Path("/proc/pressure/cpu")
HEAD = (
    "fault",
    "calls; spared; touched",
    "turns; without an answer",
    "requests; errors; longest",
    "texts; answers; crossed",
    "endless",
    "processors busy",
    "first answer in a new call (at most)",
)
"""Of a table of verdicts."""


@dataclass
class Verdict:
    """What became of the calls and requests under one fault."""

    fault: str
    what: str
    calls: int = 0
    spared: int = 0
    """Calls that it must not touch."""
    effects: dict[str, dict[str, int]] = field(default_factory=dict)
    """By where the calls were: how many it has done what to."""
    turns: int = 0
    """That ended after it began."""
    unanswered: int = 0
    requests: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    """Requests that ended with an error, by that."""
    longest_s: float = 0.0
    """Of the requests (seconds)."""
    texts: int = 0
    """That were compared, and named what is the caller's own."""
    answers: int = 0
    """That were compared as they sounded, likewise."""
    busy: float | None = None
    """Share of the time in which something on this machine waited for a processor, 0 to 1; None: unknown."""
    recovery_s: dict[str, float | None] = field(default_factory=dict)
    """By where new callers called; None: none was answered."""
    allowed_s: dict[str, float] = field(default_factory=dict)
    because: str = ""
    touched: list[str] = field(default_factory=list)
    """Calls and requests to which it has done more than it may."""
    crossed: list[str] = field(default_factory=list)
    """What came to a caller and is another's."""
    endless: list[str] = field(default_factory=list)
    """Turns and requests that got neither an answer nor an error."""
    problems: list[str] = field(default_factory=list)
    """What else is wrong, and checks that had nothing to check."""

    @property
    def passed(self) -> bool:
        """Whether all that has to hold did hold, and was checked."""
        return not (self.touched or self.crossed or self.endless or self.problems or self.late())

    def late(self) -> list[str]:
        """Recoveries that took too long."""
        found = []
        for where, allowed_s in self.allowed_s.items():
            took_s = self.recovery_s.get(where)
            if took_s is None:
                found.append(f"no new call at {where} was answered")
            elif took_s > allowed_s:
                found.append(f"a new call at {where} was answered after {took_s:.1f} s, not {allowed_s:g} s")
        return found

    def complaints(self) -> list[str]:
        """All that did not hold."""
        named = {
            "touched": self.touched,
            "crossed": self.crossed,
            "endless": self.endless,
            "late": self.late(),
            "problem": self.problems,
        }
        return [f"{self.fault}: {name}: {text}" for name, texts in named.items() for text in texts]

    def row(self) -> tuple[str, ...]:
        """The cells of a table, under :data:`HEAD`."""
        recoveries = [
            f"{where} {'never' if took is None else f'{took:.1f}'} ({self.allowed_s[where]:g}) s"
            for where, took in self.recovery_s.items()
        ]
        return (
            self.what,
            f"{self.calls}; {self.spared}; {len(self.touched)}",
            f"{self.turns}; {self.unanswered}",
            f"{self.requests}; {sum(self.failed.values())}; {self.longest_s:.1f} s",
            f"{self.texts}; {self.answers}; {len(self.crossed)}",
            str(len(self.endless)),
            "" if self.busy is None else f"{100 * self.busy:.0f} %",
            ", ".join(recoveries),
        )


async def run_fault(deployment: Deployment, fault: Fault, parts: Sequence[Part], calls: int) -> Verdict:
    """Cause a fault once.

    Args:
        deployment: All of which serves.
        fault: Is used up.
        parts: One for each caller and more, for those who call later and for requests.
        calls: At once.

    Raises:
        ParleyError: the fault could not be caused.
    """
    places = tuple(PARTS)
    callers = [
        ChaosCaller(
            number,
            where := places[number % len(places)],
            parts[number],
            partial(deployment.open, where, parts[number]),
        )
        for number in range(calls)
    ]
    verdict = Verdict(fault.name, fault.what, calls=calls, because=fault.because)
    verdict.allowed_s = dict(fault.recovery_s)
    verdict.spared = sum(fault.allows(caller.where) == Effect.NOTHING for caller in callers)
    requests = Requests(deployment, parts[calls:])
    async with calling(callers):
        await until_all_answered(callers, _BEFORE_S)
        sending = asyncio.create_task(requests.run(), name="requests")
        try:
            since, waited = time.time(), _waited_s()
            async with fault.cause(deployment):
                await asyncio.sleep(fault.lasts_s)
                ended = time.time()
            await _recover(deployment, parts[-1], verdict, ended)
            with suppress(ParleyError):  # what is missing is among the turns
                await until_all_answered(callers, _AFTER_S, since=time.time())
            if waited is not None and (now := _waited_s()) is not None:
                verdict.busy = (now - waited) / (time.time() - since)
        finally:
            sending.cancel()
            await asyncio.wait([sending])
    _judge_calls(verdict, fault, callers, since)
    _judge_requests(verdict, fault, requests.sent, since)
    try:
        verdict.problems += await fault.check(deployment)
        await deployment.until_healthy()
    except (ParleyError, OSError) as error:
        verdict.problems.append(str(error))
    await _compare(verdict, deployment, callers, requests.sent)
    return verdict


def _waited_s() -> float | None:
    """Seconds, since the machine's start, in which something waited for a processor; None: not counted."""
    try:
        lines = _PRESSURE.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.rpartition("=")[2]) / 1e6 for line in lines if line.startswith("some")), None)


async def _recover(deployment: Deployment, part: Part, verdict: Verdict, ended: float) -> None:
    """Let new callers call wherever the fault says, until one has been answered in each of these places."""

    async def measure(where: str, limit_s: float) -> None:
        connect = partial(deployment.open, where, part, once=True)
        answered = await _first_of_newcomers(connect, part, ended + limit_s)
        verdict.recovery_s[where] = answered - ended if answered else None

    async with asyncio.TaskGroup() as group:
        for where, allowed_s in verdict.allowed_s.items():
            group.create_task(measure(where, allowed_s + _GIVE_UP_S))


async def _first_of_newcomers(connect: Open, part: Part, until: float) -> float:
    """Let one new caller after the other call, without waiting for those before, until one is answered.

    Args:
        connect: Opens each call.
        part: Of all of them.
        until: No longer (seconds of :func:`time.time`).

    Returns:
        When; 0: none was.
    """
    newcomers: list[tuple[Caller, asyncio.Task[None]]] = []
    next_s = 0.0
    try:
        while time.time() < until:
            for newcomer, _ in newcomers:
                if answered := first_answer(newcomer.turns, 0.0):
                    return answered
            if time.monotonic() >= next_s:
                next_s = time.monotonic() + _NEWCOMER_EVERY_S
                caller = Caller(0, connect, part.question)
                newcomers.append((caller, asyncio.create_task(caller.run(), name="newcomer")))
                if len(newcomers) > _NEWCOMERS:
                    # One that hangs may hang for as long as the agent waits for a model.
                    await _hang_up([newcomers.pop(0)[1]])
            await asyncio.sleep(_LOOK_S)
    finally:
        await _hang_up([task for _, task in newcomers])
    return 0.0


async def _hang_up(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _judge_calls(verdict: Verdict, fault: Fault, callers: Sequence[ChaosCaller], since: float) -> None:
    for caller in callers:
        effect, allowed = caller.effect(since), fault.allows(caller.where)
        counts = verdict.effects.setdefault(caller.where, {})
        counts[effect.name.lower()] = counts.get(effect.name.lower(), 0) + 1
        if effect > allowed:
            verdict.touched.append(
                f"caller {caller.number} at {caller.where}: {effect.name.lower()}: {_describe(caller, since)}"
            )
    verdict.turns, verdict.unanswered, silent = count_turns(callers, since)
    verdict.endless += silent
    if not verdict.turns or not all(_ended_since(caller.turns, since) for caller in callers):
        verdict.problems.append("a caller has asked nothing since the fault began")
    if not verdict.spared:
        verdict.problems.append("there was no call that it must not touch")


def _ended_since(turns: Sequence[Turn], since: float) -> list[Turn]:
    return [turn for turn in turns if turn.ended >= since]


def _describe(caller: ChaosCaller, since: float) -> str:
    """What a caller has noticed, for people."""
    losses = [loss.reason for loss in caller.losses if loss.at >= since]
    failed = [
        f"{turn.end} {' '.join(sorted(turn.codes))}".strip()
        for turn in _ended_since(caller.turns, since)
        if not turn.answered or turn.codes
    ]
    return "; ".join(losses or failed or ["it had to go on elsewhere"])


def _judge_requests(verdict: Verdict, fault: Fault, requests: Sequence[Request], since: float) -> None:
    verdict.requests = len(requests)
    for request in requests:
        what = f"{request.kind} at {request.where}"
        verdict.longest_s = max(verdict.longest_s, request.took_s)
        if not request.end:
            verdict.endless.append(f"{what} did not end within {BOUND_S:g} s")
        elif request.end != "ok":
            verdict.failed[request.end] = verdict.failed.get(request.end, 0) + 1
            if request.began >= since and fault.allows(request.where) == Effect.NOTHING:
                verdict.touched.append(f"{what}: {request.end}")
    if not any(request.end == "ok" for request in requests):
        verdict.problems.append("no request was answered")


async def _compare(
    verdict: Verdict, deployment: Deployment, callers: Sequence[ChaosCaller], requests: Sequence[Request]
) -> None:
    """Compare texts, and speech as a server that was not disturbed understands it, with whose they are."""
    texts, sounds = Comparison(), Comparison()
    for caller in callers:
        compare_texts(caller, texts)
    for request in requests:
        if request.text:
            texts.add(request.part, request.text, request.kind)
    speech = [one for caller in callers for one in find_speech(caller)]
    speech += [request.speech for request in requests if request.speech is not None]
    try:
        await _understand(deployment, speech, sounds)
    except ParleyError as error:
        verdict.problems.append(f"the answers were not compared: {error}")
    verdict.texts, verdict.answers = texts.own, sounds.own
    verdict.crossed += texts.foreign + sounds.foreign
    if texts.own < len(callers) or sounds.own < len(callers):
        verdict.problems.append(
            f"only {texts.own} texts and {sounds.own} answers named what they were about, "
            f"of {len(callers)} callers"
        )


async def _understand(deployment: Deployment, speech: Sequence[Speech], sounds: Comparison) -> None:
    async with open_server(deployment.b.address) as server, Transcriber(server) as transcriber:
        for one in speech:
            reply = await transcriber.transcribe(one.samples)
            sounds.add_heard(one.part, reply.text)
