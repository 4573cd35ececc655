"""Holds the calls of scenarios, several times each, and compares them with their criteria."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parley.errors import ParleyError
from parley_client.errors import ClientError
from parley_testing.caller import CallJob, Improvise, run_calls
from parley_testing.criteria import Check, check_call
from parley_testing.log import CallLog
from parley_testing.modes import as_speech, as_text
from parley_testing.persona import ChatClient, improvise, judge
from parley_testing.rendering import Studio, lines
from parley_testing.results import Attempt, Result
from parley_testing.scenario import Exchange, Scenario, ScenarioError
from parley_testing.voices import Line, Spoken

Speak = Callable[[Sequence[Line]], Mapping[Line, Spoken]]
"""Speaks lines with the callers' voices; called in a thread, one call at a time."""


@dataclass(frozen=True)
class RunPlan:
    """How scenarios are run."""

    scenarios: Sequence[Scenario]
    repeat: int = 1
    parallel: int = 1
    speak: Speak | None = None
    """Callers speak with these voices; None: they type."""
    voices: Sequence[str] = ()
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Both as of :func:`as_speech`."""
    persona: ChatClient | None = None
    judge: ChatClient | None = None


async def run_scenarios(
    server: str, plan: RunPlan, on_done: Callable[[Attempt], None] = lambda _: None
) -> list[Result]:
    """Hold all calls; the results are in the order of the scenarios.

    Raises:
        ScenarioError: a scenario cannot be heard.
    """
    results = [Result(scenario) for scenario in plan.scenarios]
    pairs = [
        (CallJob(_prepared(result.scenario, plan, number), number), result)
        for number in range(plan.repeat)
        for result in results
    ]
    jobs, origins = [job for job, _ in pairs], {id(job.scenario): result for job, result in pairs}
    callers = _Callers(plan)
    await callers.prepare(jobs)
    async with asyncio.TaskGroup() as group:

        async def finish(log: CallLog) -> None:
            attempt = Attempt(log, [*check_call(log), *await _judged(log, plan.judge)])
            origins[id(log.scenario)].attempts.append(attempt)
            on_done(attempt)

        def on_call(log: CallLog) -> None:
            group.create_task(finish(log), name=f"checks of {log.scenario.name}")

        await run_calls(
            server,
            jobs,
            callers.studio,
            parallel=plan.parallel,
            turn=None,
            on_done=on_call,
            improvise=callers.improvise,
        )
    return results


async def _judged(log: CallLog, client: ChatClient | None) -> list[Check]:
    if client is None or not log.scenario.expect.judge:
        return []
    try:
        return await judge(log, client)
    except ParleyError as error:
        return [Check("judged", f"the judge failed: {error.to_wire()}", is_error=True)]


class _Callers:
    """The voices of a plan's callers, and the words of those that a model plays."""

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        self._speaking = asyncio.Lock()
        self.studio = Studio({})

    async def prepare(self, jobs: Sequence[CallJob]) -> None:
        """Speak all that is known before the calls.

        Raises:
            ScenarioError: a scenario cannot be heard.
        """
        if self._plan.speak is None:
            return
        await self._speak(lines(job.scenario for job in jobs))
        for job in jobs:
            self.studio.check(job.scenario)

    def improvise(self, job: CallJob) -> Improvise | None:
        """What a model says in a call; None: nothing."""
        persona, client = job.scenario.persona, self._plan.persona
        if persona is None or client is None:
            return None
        written = improvise(persona, client, job.seed)

        async def next_exchange(log: CallLog) -> Exchange | None:
            exchange = await written(log)
            if exchange is not None and exchange.sentence is not None:
                try:
                    await self._speak([Line(exchange.sentence.text, exchange.voice, exchange.rate)])
                except ScenarioError as error:  # ends this call, and not the others
                    raise ClientError(str(error)) from error
            return exchange

        return next_exchange

    async def _speak(self, wanted: Sequence[Line]) -> None:
        if self._plan.speak is not None:
            async with self._speaking:
                self.studio.add(await asyncio.to_thread(self._plan.speak, wanted))


def _prepared(scenario: Scenario, plan: RunPlan, number: int) -> Scenario:
    if plan.speak is None:
        return as_text(scenario)
    return as_speech(scenario, plan.voices, plan.changes, number)
