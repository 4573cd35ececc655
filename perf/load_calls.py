"""Calls for locust: takes its options as a line of JSON, and writes each measurement as one.

Apart from the locustfile, because greenlets of gevent are late by 100 ms and more on busy processors.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random, uniform
from typing import NamedTuple

import msgspec
from harness.caller import CallReport, hold_call
from harness.judge import spoken_turns

from parley_client import ToolTable, connect
from parley_client.cli.demo_tools import DEMO_TOOLS
from parley_client.cli.script import ScriptTurn, load_script
from parley_client.cli.turns import TurnReport

_TURNS_OF_CALL = (2, 5)
_CHUNKS_MS = (20, 100)
_PAUSE_MS = (300, 1_200)
"""Silence before a question, after the answer before was heard."""
_OVER_MS = (500, 2_500)
"""How much of an answer was heard when it is spoken over."""
_STAGGER_S, _AGAIN_S = 0.5, (0.5, 2.0)
"""Between the first calls of two callers, and from a call to the next one of the same caller."""
_UNDERRUN_MS = 20.0
"""A shorter silence is the network's and this process's, and a client's buffer fills it."""


class Options(msgspec.Struct):
    """What the locustfile asks for; its options have the meanings."""

    server: str
    """Triton's gRPC endpoint, or the address of a gateway."""
    callers: int
    arrivals_per_s: float
    """0: each caller calls again after its call."""
    interrupt: float
    process: int
    """Among those of this load: callers of each say something else."""
    script: str


class Row(NamedTuple):
    """One measurement; it becomes one request of locust."""

    name: str
    ms: float | None
    """None: it was counted, and has no time."""
    error: str = ""
    """The name of an error; empty: it went well."""
    text: str = ""


def draw_turns(random: Random, questions: Sequence[ScriptTurn], interrupt: float) -> list[ScriptTurn]:
    """What one caller says; ``interrupt`` is a probability."""
    turns: list[ScriptTurn] = []
    for number in range(random.randint(*_TURNS_OF_CALL)):
        over_ms = random.randint(*_OVER_MS) if number and random.random() < interrupt else None
        question = random.choice(questions)
        turns.append(replace(question, pause_ms=random.randint(*_PAUSE_MS), barge_in_ms=over_ms))
    return turns


def rows_of(report: CallReport) -> list[Row]:
    """What a call that has ended has measured."""
    length_ms = 1000 * (report.ended_s - report.began_s)
    if report.refused:
        return [Row("call", length_ms, "RefusedError", report.refused)]
    rows = [
        Row("call", length_ms, "LostError" if report.lost else "", report.lost),
        Row("connect", 1000 * (report.opened_s - report.began_s)),
        Row("microphone", report.late_ms),
    ]
    rows += [row for turn in report.turns for row in _rows_of_turn(turn)]
    rows += [
        Row("underrun", ms, "UnderrunError", "an answer stood still")
        for _, ms in report.silences
        if ms > _UNDERRUN_MS
    ]
    return rows


def _rows_of_turn(turn: TurnReport) -> Iterator[Row]:
    wait_ms, stop_ms = turn.voice_to_voice_ms, turn.stages["barge_in_stop"]
    if stop_ms is not None:
        yield Row("interruption", stop_ms)
    if turn.problem:
        yield Row("first audio", None, "NoAnswerError", turn.problem)
    elif wait_ms is not None and wait_ms < 0:
        yield Row("first audio", None, "CutOffError", "answered before the end of speech")
    elif wait_ms is not None:
        yield Row("first audio", wait_ms)


async def hold_calls(options: Options, stopping: asyncio.Event) -> None:
    """Hold calls until ``stopping`` is set; returns when all have ended."""
    questions = spoken_turns(load_script(Path(options.script)).turns)
    numbers = itertools.count()

    async def stops_within(seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await stopping.wait()
        return stopping.is_set()

    async def hold() -> None:
        report = CallReport(next(numbers))
        random = Random(f"{options.process}-{report.number}")
        turns = draw_turns(random, questions, options.interrupt)
        line = connect(options.server, key=os.environ.get("PARLEY_KEY", ""), tools=ToolTable(DEMO_TOOLS))
        going = itertools.takewhile(lambda _: not stopping.is_set(), turns)
        await hold_call(line, going, report, chunk_ms=random.choice(_CHUNKS_MS))
        sys.stdout.buffer.writelines(msgspec.json.encode(row._asdict()) + b"\n" for row in rows_of(report))
        sys.stdout.buffer.flush()

    async def call_again(after_s: float) -> None:
        while not await stops_within(after_s):
            await hold()
            after_s = uniform(*_AGAIN_S)

    async with asyncio.TaskGroup() as group:
        if not options.arrivals_per_s:
            for number in range(options.callers):
                group.create_task(call_again(number * _STAGGER_S))
            return
        chance = Random(options.process)
        while not await stops_within(chance.expovariate(options.arrivals_per_s)):
            group.create_task(hold())


async def _main() -> None:
    """Take the options from the first line of the input, and call until it ends."""
    lines, stopping = asyncio.StreamReader(), asyncio.Event()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    options = msgspec.json.decode(await lines.readline(), type=Options)
    async with asyncio.TaskGroup() as group:
        group.create_task(hold_calls(options, stopping))
        await lines.read()
        stopping.set()


if __name__ == "__main__":
    asyncio.run(_main())
