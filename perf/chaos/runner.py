"""Holds calls and requests, causes a fault under them, and judges by what the callers have got."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from harness.judge import Check, Outcome

from chaos.callers import TURN_S, Caller, Open, Turn, calling, first_answer, until_all_answered
from chaos.deployment import PARTS, Deployment
from chaos.evidence import ChaosCaller, Comparison, Effect, compare_texts, count_turns, find_speech
from chaos.faults import Fault
from chaos.requests import BOUND_S, Request, Requests
from chaos.words import Part
from parley.errors import ParleyError
from parley.timeouts import cancel_all
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


async def run_fault(deployment: Deployment, fault: Fault, parts: Sequence[Part], calls: int) -> Outcome:
    """Cause a fault once.

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
    outcome = Outcome(fault.name, calls)
    requests = Requests(deployment, parts[calls:])
    async with calling(callers):
        await until_all_answered(callers, _BEFORE_S)
        sending = asyncio.create_task(requests.run(), name="requests")
        try:
            since, waited = time.time(), _waited_s()
            async with fault.cause(deployment):
                await asyncio.sleep(fault.lasts_s)
                ended = time.time()
            await _recover(outcome, deployment, parts[-1], fault, ended)
            with suppress(ParleyError):  # what is missing is among the turns
                await until_all_answered(callers, _AFTER_S, since=time.time())
            if waited is not None and (now := _waited_s()) is not None:
                outcome.figures["processors busy, %"] = 100 * (now - waited) / (time.time() - since)
        finally:
            sending.cancel()
            await asyncio.wait([sending])
    judge_calls(outcome, fault, callers, since)
    judge_requests(outcome, fault, requests.sent, since)
    outcome.checks.append(Check("the fault was one, and all serves again", 1, await _end(deployment, fault)))
    await _compare(outcome, deployment, callers, requests.sent)
    return outcome


async def _end(deployment: Deployment, fault: Fault) -> list[str]:
    try:
        problems = await fault.check(deployment)
        await deployment.until_healthy()
    except (ParleyError, OSError) as error:
        return [str(error)]
    return problems


def _waited_s() -> float | None:
    """Seconds, since the machine's start, in which something waited for a processor; None: not counted."""
    try:
        lines = _PRESSURE.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.rpartition("=")[2]) / 1e6 for line in lines if line.startswith("some")), None)


async def _recover(outcome: Outcome, deployment: Deployment, part: Part, fault: Fault, ended: float) -> None:
    """Let new callers call wherever the fault says, until one has been answered in each of these places."""

    async def measure(where: str, allowed_s: float) -> None:
        connect = partial(deployment.open, where, part, once=True)
        answered = await first_of_newcomers(connect, part, ended + allowed_s + _GIVE_UP_S)
        judge_recovery(outcome, fault, where, answered - ended if answered else math.inf)

    async with asyncio.TaskGroup() as group:
        for where, allowed_s in fault.recovery_s.items():
            group.create_task(measure(where, allowed_s))


def judge_recovery(outcome: Outcome, fault: Fault, where: str, took_s: float) -> None:
    """Check that new calls at a place are answered in time (seconds; infinite: none was)."""
    allowed_s = fault.recovery_s[where]
    outcome.figures[f"first answer in a new call at {where}, s"] = took_s
    late = [f"after {took_s:.1f} s"] if took_s > allowed_s else []
    why = f" ({fault.because})" if fault.because else ""
    outcome.checks.append(Check(f"a new call at {where} is answered within {allowed_s:g} s{why}", 1, late))


async def first_of_newcomers(connect: Open, part: Part, until: float) -> float:
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
                    await cancel_all([newcomers.pop(0)[1]])
            await asyncio.sleep(_LOOK_S)
    finally:
        await cancel_all(task for _, task in newcomers)
    return 0.0


def judge_calls(outcome: Outcome, fault: Fault, callers: Sequence[ChaosCaller], since: float) -> None:
    """Add up what callers have noticed since a moment, and check it."""
    touched, spared = [], 0
    for caller in callers:
        effect, allowed = caller.effect(since), fault.allows(caller.where)
        spared += allowed == Effect.NOTHING
        name = f"calls at {caller.where}: {effect.name.lower()}"
        outcome.figures[name] = outcome.figures.get(name, 0) + 1
        outcome.moved += effect == Effect.MOVE
        if effect == Effect.LOSS:
            outcome.lost.append(_describe(caller, since))
        if effect > allowed:
            touched.append(
                f"caller {caller.number} at {caller.where}: {effect.name.lower()}: {_describe(caller, since)}"
            )
    outcome.turns, outcome.unanswered, silent = count_turns(callers, since)
    idle = [f"caller {one.number}" for one in callers if not _ended_since(one.turns, since)]
    outcome.checks += [
        Check("no call is hit that should not be", spared, touched),
        Check("every turn ends", outcome.turns, silent),
        Check("every caller has asked since the fault began", len(callers), idle),
    ]


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


def judge_requests(outcome: Outcome, fault: Fault, requests: Sequence[Request], since: float) -> None:
    """Check that requests end, and that those go well which the fault must not touch."""
    touched, endless = [], []
    for request in requests:
        what = f"{request.kind} at {request.where}"
        if not request.end:
            endless.append(f"{what} did not end within {BOUND_S:g} s")
        elif request.end != "ok":
            name = f"requests: {request.end}"
            outcome.figures[name] = outcome.figures.get(name, 0) + 1
            if request.began >= since and fault.allows(request.where) == Effect.NOTHING:
                touched.append(f"{what}: {request.end}")
    outcome.figures["longest request, s"] = max((request.took_s for request in requests), default=0.0)
    outcome.checks += [
        Check("every request ends", len(requests), endless),
        Check(
            "requests are answered, and none is hit that should not be",
            sum(request.end == "ok" for request in requests),
            touched,
        ),
    ]


async def _compare(
    outcome: Outcome, deployment: Deployment, callers: Sequence[ChaosCaller], requests: Sequence[Request]
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
    problems = []
    try:
        async with open_server(deployment.b.address) as server, Transcriber(server) as transcriber:
            for part, samples in speech:
                sounds.add_heard(part, (await transcriber.transcribe(samples)).text)
    except ParleyError as error:
        problems.append(f"the answers were not compared: {error}")
    for what, found in (("texts", texts), ("answers", sounds)):
        outcome.figures[f"{what} compared"] = found.own
        if found.own < len(callers):
            problems.append(f"only {found.own} {what} named what they were about, of {len(callers)} callers")
    outcome.checks.append(
        Check(
            "nothing belongs to another caller",
            texts.own + sounds.own,
            [*texts.foreign, *sounds.foreign, *problems],
        )
    )
