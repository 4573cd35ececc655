"""Runs an endpoint under a load, and watches how late this process itself is."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from stages.calls import call
from stages.figures import LevelResult
from stages.material import Material
from stages.protocols import (
    Agent,
    Endpoint,
    EndpointError,
    LanguageModel,
    Level,
    OwnBenchmark,
    Recognizer,
    Stage,
    Voice,
)
from stages.recognition import recognize
from stages.requests import answer, speak
from stages.turns import Patience, Turn, stop

_TICK_S = 0.01
_STAGGER_S = 0.37
"""Between the beginnings of two streams: speakers are not in step with each other."""
_FEWEST_EACH = 3
ItemT = TypeVar("ItemT")


class Runner:
    """Holds levels, one after the other.

    Args:
        material: what is said.
        patience: of every turn.
        server_cpu_s: processor time of the server so far (seconds); None where nobody knows.
    """

    def __init__(
        self, material: Material, patience: Patience, server_cpu_s: Callable[[], float | None]
    ) -> None:
        self._material = material
        self._patience = patience
        self._server_cpu_s = server_cpu_s

    async def run(self, name: str, stage: Stage, endpoint: Endpoint, level: Level) -> list[LevelResult]:
        """The turns of a level, of each stage that the endpoint measures.

        Args:
            name: of the endpoint.
            stage: what the endpoint is.
            endpoint: where everything is sent.
            level: how many at once, and how many turns in all.
        """
        cpu_s, began, driver_s = self._server_cpu_s(), time.perf_counter(), time.process_time()
        late_ms: list[float] = []
        probe = asyncio.create_task(_watch_loop(late_ms), name="loop-probe")
        try:
            found = await self._turns(stage, endpoint, level)
        finally:
            await stop(probe)
        wall_s = time.perf_counter() - began
        used = self._server_cpu_s()
        results = [LevelResult(name, one, level.concurrency, turns, wall_s) for one, turns in found.items()]
        if isinstance(endpoint, OwnBenchmark):
            return results
        return [
            replace(
                one,
                server_cpu_s=None if used is None or cpu_s is None else used - cpu_s,
                driver_cpu_s=time.process_time() - driver_s,
                loop_late_ms=late_ms,
            )
            for one in results
        ]

    async def _turns(self, stage: Stage, endpoint: Endpoint, level: Level) -> dict[Stage, list[Turn]]:
        if isinstance(endpoint, OwnBenchmark):
            return await _measured_elsewhere(endpoint, level)
        said, patience = self._material, self._patience
        match stage:
            case Stage.RECOGNIZER:
                hears = cast("Recognizer", endpoint)
                turns = await _spread(
                    said.utterances, level, lambda one: recognize(hears, one, patience), stagger_s=_STAGGER_S
                )
            case Stage.LANGUAGE_MODEL:
                writes = cast("LanguageModel", endpoint)
                turns = await _spread(
                    said.prompts, level, lambda one: answer(writes, one, patience), warm_ups=1
                )
            case Stage.VOICE:
                speaks = cast("Voice", endpoint)
                turns = await _spread(said.texts, level, lambda one: speak(speaks, one, patience), warm_ups=1)
            case Stage.CALL:
                turns = await self._calls(cast("Agent", endpoint), level)
        return {stage: turns}

    async def _calls(self, agent: Agent, level: Level) -> list[Turn]:
        """Each caller asks its share; one whose call broke calls again."""
        share = _share(level)

        async def hold(number: int) -> list[Turn]:
            await asyncio.sleep(number * _STAGGER_S)
            questions = itertools.islice(itertools.cycle(self._material.questions), number, None)
            turns: list[Turn] = []
            while len(turns) < share:
                asked = itertools.islice(questions, share - len(turns))
                turns += await call(agent, asked, self._patience)
            return turns

        return await _all_of(hold, level.concurrency)


async def _spread(
    items: Sequence[ItemT],
    level: Level,
    take: Callable[[ItemT], Awaitable[Turn]],
    *,
    stagger_s: float = 0.0,
    warm_ups: int = 0,
) -> list[Turn]:
    """The turns of workers that take the items round and round, each beginning with another one.

    Args:
        items: what is said.
        level: how many workers, and how many turns of all of them.
        take: makes a turn.
        stagger_s: between the beginnings of two workers (seconds).
        warm_ups: first turns of each worker that count only where they fail: they open connections.
    """
    share = _share(level)

    async def work(number: int) -> list[Turn]:
        await asyncio.sleep(number * stagger_s)
        mine = itertools.islice(itertools.cycle(items), number * share % len(items), None)
        turns = [await take(item) for item in itertools.islice(mine, warm_ups)]
        turns = [turn for turn in turns if turn.failure]
        return turns + [await take(item) for item in itertools.islice(mine, share)]

    return await _all_of(work, level.concurrency)


async def _all_of(work: Callable[[int], Coroutine[Any, Any, list[Turn]]], workers: int) -> list[Turn]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work(number)) for number in range(workers)]
    return [turn for task in tasks for turn in task.result()]


def _share(level: Level) -> int:
    """Turns of each worker: with too few of them the load would hardly have begun before it ends."""
    return max(_FEWEST_EACH, -(-level.turns // level.concurrency))


async def _measured_elsewhere(endpoint: OwnBenchmark, level: Level) -> dict[Stage, list[Turn]]:
    try:
        measured = await endpoint.measure(level)
    except EndpointError as error:
        return {Stage.CALL: [Turn(failure=str(error))]}
    return {
        stage: [Turn(figures) if figures else Turn(failure="no right answer") for figures in turns]
        for stage, turns in measured.items()
    }


async def _watch_loop(late_ms: list[float]) -> None:
    """Note by how much each wait is longer than asked for, which is how late everything else here is."""
    while True:
        due = time.perf_counter() + _TICK_S
        await asyncio.sleep(_TICK_S)
        late_ms.append(1000 * max(0.0, time.perf_counter() - due))
