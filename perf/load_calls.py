"""Calls for locust: it asks for each with one line of JSON, and gets what was measured as another.

Apart from the locustfile, because greenlets of gevent are late by 100 ms and more on busy processors.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import msgspec
from harness.caller import CallReport, hold_call

from parley_client import ToolTable, connect
from parley_client.audio.files import read_speech
from parley_client.cli.demo_tools import DEMO_TOOLS
from parley_client.cli.script import ScriptTurn
from parley_client.cli.turns import TurnReport

_PAUSE_MS = (300, 1_200)
"""Silence before a question, after the answer before was heard."""
_OVER_MS = (500, 2_500)
"""How much of an answer was heard when it is spoken over."""
_LEAVES_AFTER_S = (1.0, 12.0)
_UNDERRUN_MS = 20.0
"""A shorter silence is the network's and this process's, and a client's buffer fills it."""


class Wanted(msgspec.Struct):
    """A call that is to be held; without a server: no caller begins another turn."""

    number: int = 0
    server: str = ""
    """Triton's gRPC endpoint, or the address of a gateway."""


class Row(msgspec.Struct):
    """One measurement; it becomes one request of locust."""

    name: str
    ms: float | None
    """None: it was counted, and has no time."""
    error: str = ""
    """The name of an error; empty: it went well."""
    text: str = ""
    """Of the error."""


class Held(msgspec.Struct):
    """What one call has measured."""

    number: int
    rows: list[Row]


def load_questions(folder: Path) -> list[ScriptTurn]:
    """The recordings ``NN-name.wav`` of a folder, without the command that stops the agent.

    Raises:
        AudioFileError: a file cannot be read.
        ValueError: there is none.
    """
    paths = [path for path in sorted(folder.glob("*.wav")) if not path.stem.endswith("-stop")]
    if not paths:
        raise ValueError(f"{folder} has no recordings")
    return [ScriptTurn(path.stem, read_speech(path)) for path in paths]


def draw_turns(
    random: Random, questions: Sequence[ScriptTurn], length: tuple[int, int], interrupt: float
) -> list[ScriptTurn]:
    """What one caller says: ``length`` are the fewest and the most turns, ``interrupt`` a probability."""
    turns: list[ScriptTurn] = []
    for number in range(random.randint(*length)):
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


class Load:
    """Holds what is asked for."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._questions = load_questions(args.recordings)
        self._stopping = False

    async def run(self, lines: asyncio.StreamReader) -> None:
        """Hold calls until the lines have ended, and all calls."""
        async with asyncio.TaskGroup() as group:
            while line := await lines.readline():
                wanted = msgspec.json.decode(line, type=Wanted)
                if wanted.server:
                    group.create_task(self._hold(wanted), name=f"call {wanted.number}")
                else:
                    self._stopping = True
            self._stopping = True

    async def _hold(self, wanted: Wanted) -> None:
        args, report = self._args, CallReport(wanted.number)
        random = Random(f"{args.seed}-{wanted.number}")
        turns = draw_turns(random, self._questions, (args.turns_from, args.turns_to), args.interrupt)
        chunk_ms = args.chunk_ms or random.choice((20, 100))
        leaves = random.random() < args.early
        line = connect(wanted.server, key=os.environ.get("PARLEY_KEY", ""), tools=ToolTable(DEMO_TOOLS))
        await hold_call(
            line,
            self._until_stopped(turns),
            report,
            chunk_ms=chunk_ms,
            leave_after_s=random.uniform(*_LEAVES_AFTER_S) if leaves else None,
        )
        sys.stdout.buffer.write(msgspec.json.encode(Held(wanted.number, rows_of(report))) + b"\n")
        sys.stdout.buffer.flush()

    def _until_stopped(self, turns: Iterable[ScriptTurn]) -> Iterator[ScriptTurn]:
        for turn in turns:
            if self._stopping:
                return
            yield turn


async def _main(args: argparse.Namespace) -> None:
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    await Load(args).run(lines)


if __name__ == "__main__":
    _parser = argparse.ArgumentParser()
    for _name in ("turns-from", "turns-to", "chunk-ms", "seed"):
        _parser.add_argument(f"--{_name}", type=int, required=True)
    for _name in ("interrupt", "early"):
        _parser.add_argument(f"--{_name}", type=float, required=True)
    _parser.add_argument("--recordings", type=Path, required=True)
    asyncio.run(_main(_parser.parse_args()))
