"""Callers who hold a level, with an agent that is not there."""

from __future__ import annotations

import asyncio
import math
from contextlib import asynccontextmanager

import pytest
from fake_agent import FakeAgent
from test_conversation import TinyAgent, clip

from parley.errors import ModelUnavailableError, TooManySessionsError
from parley_client import NO_RETRY, connect
from parley_client.cli.capacity import callers
from parley_client.cli.capacity.callers import CallPlan, hold_level
from parley_client.cli.capacity.search import Verdict
from parley_client.cli.capacity.usage import UsageMeter
from parley_client.cli.script import ScriptTurn

LIMIT_MS = 20_000.0
GIVE_UP_S = 30
"""After this a level that does not end by itself fails its test."""


class Line:
    """Each call gets an agent of its own."""

    def __init__(self, make=TinyAgent):
        self._make = make
        self.agents = []

    def __call__(self):
        made = self._make()
        self.agents.append(made)
        return connect("", transport=FakeAgent(made), retry=NO_RETRY)


def plan(line, turns=2, timeout_s=0.5):
    said = [ScriptTurn("turn", clip(), pause_ms=0) for _ in range(turns)]
    return CallPlan(line, said, chunk_ms=20, turn_timeout_s=timeout_s)


async def test_callers_call_again_until_enough_turns_were_held():
    line = Line()
    result = await hold_level(plan(line), 2, 60, LIMIT_MS)
    assert result.verdict == Verdict.HELD
    assert result.turns >= 59
    assert all(math.isfinite(wait) for wait in result.waits_ms)
    assert (result.unanswered, result.refused, result.lost) == (0, [], [])
    assert len(line.agents) > 2


async def test_a_level_that_is_clearly_too_slow_ends_early():
    result = await hold_level(plan(Line(lambda: TinyAgent(answers=False)), timeout_s=0.05), 2, 40, LIMIT_MS)
    assert result.verdict == Verdict.BROKEN
    assert result.unanswered == result.turns < 20


async def test_a_refused_call_breaks_the_level_and_ends_it():
    class Full:
        def __init__(self):
            self.agents = 0

        def __call__(self):
            self.agents += 1
            agent = FakeAgent(TinyAgent()) if self.agents == 1 else FakeAgent(TooManySessionsError("full"))
            return connect("", transport=agent, retry=NO_RETRY)

    result = await hold_level(plan(Full()), 2, 60, LIMIT_MS)
    assert (result.verdict, result.refused, result.lost) == (Verdict.BROKEN, ["too_many_sessions"], [])


async def test_a_call_that_breaks_is_lost():
    async def breaks(stream):
        await stream.begin()
        await stream.frames.get()
        stream.fail(ModelUnavailableError("the server is gone"))

    result = await hold_level(plan(Line(lambda: breaks)), 1, 60, LIMIT_MS)
    assert result.verdict == Verdict.BROKEN
    assert len(result.lost) == 1


async def test_turns_count_although_never_all_calls_are_open_at_once():
    line, free = Line(), asyncio.Lock()

    @asynccontextmanager
    async def alone():
        async with free, line() as call:
            yield call

    async with asyncio.timeout(GIVE_UP_S):
        result = await hold_level(plan(alone), 2, 4, LIMIT_MS)
    assert result.turns >= 8
    assert (result.refused, result.lost, result.overdue_s) == ([], [], None)


async def test_usage_is_measured_while_turns_count():
    line, connected, seen = Line(), 0, []

    @asynccontextmanager
    async def counted():
        nonlocal connected
        async with line() as call:
            connected += 1
            try:
                yield call
            finally:
                connected -= 1

    def cpu_s():
        seen.append(connected)
        return float(len(seen))

    result = await hold_level(plan(counted, turns=50), 3, 4, LIMIT_MS, UsageMeter(cpu_s))
    assert seen == [3, 3]  # neither before all callers are there, nor while they leave
    assert result.cpus > 0


async def test_usage_without_counted_turns_is_unknown():
    def refused():
        return connect("", transport=FakeAgent(TooManySessionsError("full")), retry=NO_RETRY)

    result = await hold_level(plan(refused), 1, 60, LIMIT_MS, UsageMeter(lambda: 1.0))
    assert (result.verdict, result.cpus) == (Verdict.BROKEN, None)


async def test_a_level_that_is_not_over_by_its_deadline_is_broken(monkeypatch):
    monkeypatch.setattr(callers, "_HEARING_S", 0.0)
    line = Line()

    @asynccontextmanager
    async def hangs():
        if line.agents:
            await asyncio.Event().wait()
        async with line() as call:
            yield call

    hanging = plan(hangs, timeout_s=0.01)
    async with asyncio.timeout(GIVE_UP_S):
        result = await hold_level(hanging, 2, 1, LIMIT_MS)
    assert (result.verdict, result.overdue_s) == (Verdict.BROKEN, hanging.deadline_s(2, 1))


async def test_a_cancelled_level_hangs_up_every_call():
    line = Line()
    task = asyncio.create_task(hold_level(plan(line, turns=50), 2, 10_000, LIMIT_MS))
    while len(line.agents) < 2:  # noqa: ASYNC110 - the line has no event for it
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not [one for one in asyncio.all_tasks() if (one.get_name() or "").startswith("caller")]
