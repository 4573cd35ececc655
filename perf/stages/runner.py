"""Runs an endpoint under a load, and watches how late this process itself is."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

from parley.timeouts import cancel_all
from stages.material import Material
from stages.protocols import (
    Agent,
    Endpoint,
    LanguageModel,
    Level,
    Recognizer,
    Stage,
    Voice,
)
from stages.results import LevelResult
from stages.turns import Patience, Turn, answer, call, recognize, speak

_TICK_S = 0.01
_STAGGER_S = 0.37
"""Between the beginnings of two streams: speakers are not in step with each other."""
_FEWEST_EACH = 3
ItemT = TypeVar("ItemT")


class Runner:
    """Holds levels, one after the other."""

    def __init__(
        self, material: Material, patience: Patience, server_cpu_s: Callable[[], float | None]
    ) -> None:
        self._material = material
        self._patience = patience
        self._server_cpu_s = server_cpu_s

    async def run(self, name: str, stage: Stage, endpoint: Endpoint, level: Level) -> LevelResult:
        """The turns of a level."""
        cpu_s, began, driver_s = self._server_cpu_s(), time.perf_counter(), time.process_time()
        late_ms: list[float] = []
        probe = asyncio.create_task(_watch_loop(late_ms), name="loop-probe")
        try:
            held = await self._hold(stage, endpoint, level)
        finally:
            await cancel_all([probe])
        wall_s = time.perf_counter() - began
        used = self._server_cpu_s()
        return LevelResult(
            name,
            stage,
            level.concurrency,
            held.turns,
            wall_s,
            active_s=held.active_s,
            server_cpu_s=None if used is None or cpu_s is None else used - cpu_s,
            driver_cpu_s=time.process_time() - driver_s,
            loop_late_ms=late_ms,
        )

    async def _hold(self, stage: Stage, endpoint: Endpoint, level: Level) -> _Held:
        said, patience = self._material, self._patience
        match stage:
            case Stage.RECOGNIZER:
                hears = cast("Recognizer", endpoint)
                return await _spread(
                    said.utterances, level, lambda one: recognize(hears, one, patience), stagger_s=_STAGGER_S
                )
            case Stage.LANGUAGE_MODEL:
                writes = cast("LanguageModel", endpoint)
                return await _spread(
                    said.prompts, level, lambda one: answer(writes, one, patience), warm_ups=1
                )
            case Stage.VOICE:
                speaks = cast("Voice", endpoint)
                return await _spread(said.texts, level, lambda one: speak(speaks, one, patience), warm_ups=1)
            case Stage.CALL:
                return await self._calls(cast("Agent", endpoint), level)

    async def _calls(self, agent: Agent, level: Level) -> _Held:
        """Each caller asks its share; one whose call broke calls again."""
        share = _share(level)

        async def hold(number: int) -> list[Turn]:
            questions = itertools.islice(itertools.cycle(self._material.questions), number, None)
            turns: list[Turn] = []
            while len(turns) < share:
                asked = itertools.islice(questions, share - len(turns))
                turns += await call(agent, asked, self._patience)
            return turns

        return await _all_of(hold, level.concurrency, _STAGGER_S)


async def _spread(
    items: Sequence[ItemT],
    level: Level,
    take: Callable[[ItemT], Awaitable[Turn]],
    *,
    stagger_s: float = 0.0,
    warm_ups: int = 0,
) -> _Held:
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
        mine = itertools.islice(itertools.cycle(items), number * share % len(items), None)
        turns = [await take(item) for item in itertools.islice(mine, warm_ups)]
        turns = [turn for turn in turns if turn.failure]
        return turns + [await take(item) for item in itertools.islice(mine, share)]

    return await _all_of(work, level.concurrency, stagger_s)


@dataclass
class _Held:
    """What the workers of a level did."""

    turns: list[Turn] = field(default_factory=list)
    active_s: float = 0.0
    """The sum of the times for which each worker was busy (seconds)."""


async def _all_of(work: Callable[[int], Awaitable[list[Turn]]], workers: int, stagger_s: float) -> _Held:
    held = _Held()

    async def run(number: int) -> None:
        await asyncio.sleep(number * stagger_s)
        began = time.perf_counter()
        held.turns.extend(await work(number))
        held.active_s += time.perf_counter() - began

    async with asyncio.TaskGroup() as group:
        for number in range(workers):
            group.create_task(run(number))
    return held


def _share(level: Level) -> int:
    """Turns of each worker: with too few of them the load would hardly have begun before it ends."""
    return max(_FEWEST_EACH, -(-level.turns // level.concurrency))


async def _watch_loop(late_ms: list[float]) -> None:
    """Note by how much each wait is longer than asked for, which is how late everything else here is."""
    while True:
        due = time.perf_counter() + _TICK_S
        await asyncio.sleep(_TICK_S)
        late_ms.append(1000 * max(0.0, time.perf_counter() - due))
