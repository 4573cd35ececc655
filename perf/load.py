"""Load from callers by gRPC and by the gateway's WebSocket: ``make load``; perf/README.md.

Processes of this file hold the calls: each takes its options as a line of JSON, calls until its input ends,
and writes each measurement as a line.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from random import Random, uniform
from typing import NamedTuple

import msgspec
from harness.caller import CallReport, hold_call
from harness.judge import spoken_turns
from harness.program import run_program
from harness.report import Table, describe_machine, describe_run, write_html, write_json
from harness.servers import local_gateway
from harness.stats import p50_p95, text_of
from rich.console import Console

from parley.launcher.options import ROOT, TINY_PROFILE
from parley.timeouts import is_set_within
from parley_client import ToolTable, connect
from parley_client.cli.commands.demo import default_script
from parley_client.cli.demo_tools import DEMO_TOOLS
from parley_client.cli.own_server import UNLIMITED, add_profile, own_server
from parley_client.cli.script import ScriptTurn, load_script
from parley_client.cli.turns import TurnReport

# All callers have one address. What the gateway holds as a whole is not changed.
_GATEWAY = {"PARLEY_GATEWAY_CALLS_PER_KEY": "100000", "PARLEY_GATEWAY_SESSIONS_WAITING_PER_KEY": "100000"}
_END_S = 60.0
"""After the last minute: a turn is heard out before its caller hangs up."""
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
_LOST, _REFUSED = "lost: ", "refused: "


class Options(msgspec.Struct):
    """What a process of callers does."""

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
    """One measurement."""

    name: str
    ms: float | None
    """None: it was counted, and has no time."""
    problem: str = ""
    """Empty: it went well."""


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
        return [Row("call", length_ms, f"{_REFUSED}{report.refused}")]
    rows = [
        Row("call", length_ms, f"{_LOST}{report.lost}" if report.lost else ""),
        Row("connect", 1000 * (report.opened_s - report.began_s)),
        Row("microphone", report.late_ms),
    ]
    rows += [row for turn in report.turns for row in _rows_of_turn(turn)]
    silences = [ms for _, ms in report.silences if ms > _UNDERRUN_MS]
    return rows + [Row("underrun", ms, "an answer stood still") for ms in silences]


def _rows_of_turn(turn: TurnReport) -> Iterator[Row]:
    wait_ms, stop_ms = turn.voice_to_voice_ms, turn.stages["barge_in_stop"]
    if stop_ms is not None:
        yield Row("interruption", stop_ms)
    if turn.problem:
        yield Row("first audio", None, turn.problem)
    elif wait_ms is not None and wait_ms < 0:
        yield Row("first audio", None, "answered before the end of speech")
    elif wait_ms is not None:
        yield Row("first audio", wait_ms)


async def hold_calls(options: Options, stopping: asyncio.Event) -> None:
    """Hold calls until ``stopping`` is set; returns when all have ended."""
    questions = spoken_turns(load_script(Path(options.script)).turns)
    numbers = itertools.count()

    async def hold() -> None:
        report = CallReport(next(numbers))
        random = Random(f"{options.process}-{report.number}")
        turns = draw_turns(random, questions, options.interrupt)
        line = connect(options.server, key=os.environ.get("PARLEY_KEY", ""), tools=ToolTable(DEMO_TOOLS))
        going = itertools.takewhile(lambda _: not stopping.is_set(), turns)
        await hold_call(line, going, report, chunk_ms=random.choice(_CHUNKS_MS))
        sys.stdout.buffer.writelines(msgspec.json.encode(row) + b"\n" for row in rows_of(report))
        sys.stdout.buffer.flush()

    async def call_again(after_s: float) -> None:
        while not await is_set_within(stopping, after_s):
            await hold()
            after_s = uniform(*_AGAIN_S)

    async with asyncio.TaskGroup() as group:
        if not options.arrivals_per_s:
            for number in range(options.callers):
                group.create_task(call_again(number * _STAGGER_S))
            return
        chance = Random(options.process)
        while not await is_set_within(stopping, chance.expovariate(options.arrivals_per_s)):
            group.create_task(hold())


async def _hold_calls_of_input() -> None:
    """Take the options from the first line of the input, and call until it ends."""
    lines, stopping = asyncio.StreamReader(), asyncio.Event()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    options = msgspec.json.decode(await lines.readline(), type=Options)
    async with asyncio.TaskGroup() as group:
        group.create_task(hold_calls(options, stopping))
        await lines.read()
        stopping.set()


async def _make_load(
    args: argparse.Namespace, addresses: Mapping[str, str]
) -> tuple[dict[str, list[Row]], int]:
    """The measurements by their way, and how many processes have failed."""
    processes: list[Process] = []
    rows: dict[str, list[Row]] = {way: [] for way in addresses}

    async def follow(number: int, way: str) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, __file__, stdin=PIPE, stdout=PIPE, start_new_session=True
        )
        processes.append(process)
        assert process.stdin
        assert process.stdout
        # The arrivals of all processes are one Poisson process.
        arrivals_per_s = args.arrivals_per_minute / 60 / args.call_processes
        callers = args.users // args.call_processes + (number < args.users % args.call_processes)
        options = Options(addresses[way], callers, arrivals_per_s, args.interrupt, number, str(args.script))
        process.stdin.write(msgspec.json.encode(options) + b"\n")
        async for line in process.stdout:
            rows[way].append(msgspec.json.decode(line, type=Row))
        await process.wait()

    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(60 * args.minutes + _END_S), asyncio.TaskGroup() as group:
                for number, way in zip(range(args.call_processes), itertools.cycle(addresses), strict=False):
                    group.create_task(follow(number, way))
                await asyncio.sleep(60 * args.minutes)
                for process in processes:
                    if process.stdin:
                        process.stdin.close()
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
                await process.wait()
    return rows, sum(bool(process.returncode) for process in processes)


def _report(
    args: argparse.Namespace, console: Console, machine: dict[str, str], ways: Mapping[str, Sequence[Row]]
) -> None:
    """Print and write what was measured."""
    lines = []
    for way, rows in ways.items():
        for name in dict.fromkeys(row.name for row in rows):
            mine = [row for row in rows if row.name == name]
            times = p50_p95([row.ms for row in mine if row.ms is not None])
            problems = Counter(row.problem for row in mine if row.problem).most_common()
            listed = ", ".join(f"{count} {problem}" for problem, count in problems)
            lines.append((way, name, str(len(mine)), text_of(times), listed))
    table = Table("load", ("way", "what", "count", "p50 / p95, ms", "problems"), lines, (0, 1, 4))
    table.print(console)
    write_json(args.out / "load.json", {"machine": machine, "rows": ways})
    write_html(args.out / "report.html", "Load", about=machine, tables=[table], notes=())
    console.print(f"The report is {args.out / 'report.html'}.", highlight=False)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="load", description="Many callers talk to a server and its gateway."
    )
    add = parser.add_argument
    add("--users", type=int, default=4, help="callers at once, half of each kind (default: %(default)s)")
    add("--call-processes", type=int, default=2, help="that hold the calls (default: %(default)s)")
    add("--minutes", type=float, default=5.0, help="then all hang up (default: %(default)g)")
    add("--arrivals-per-minute", type=float, default=0.0, help="calls begin at this rate, however many last")
    add("--interrupt", type=float, default=0.2, help="probability that an answer is spoken over")
    add("--script", type=Path, help="what is said, in turns (default: that of the profile)")
    add_profile(parser, "of the server", TINY_PROFILE)
    add("--server", metavar="HOST:PORT", help="a running server (default: starts one)")
    add("--gateway", metavar="URL", help="a running gateway (default: starts one)")
    add("--out", type=Path, default=ROOT / "out" / "load", metavar="FOLDER", help="default: out/load")
    args = parser.parse_args()
    if args.call_processes < 1 or args.users < args.call_processes or args.minutes <= 0:
        parser.error("minutes are above 0, and there are as many users as processes, or more")
    args.script = args.script or default_script(args.profile)
    return args


def _addresses(args: argparse.Namespace, console: Console, stack: ExitStack) -> dict[str, str]:
    """What is called, by the way; starts what no option names."""
    server, gateway = args.server, args.gateway
    if not (server or gateway):
        own = own_server(console, "load", profile=args.profile, environment=UNLIMITED)
        server = stack.enter_context(own).endpoints.grpc
    if not gateway:
        gateway = stack.enter_context(local_gateway(server, _GATEWAY)).url
    # The server behind a gateway that was given alone is not known.
    return {"grpc": server, "websocket": gateway} if server else {"websocket": gateway}


def main() -> int:
    """Make the load; the exit status is 1 where a call was lost, none was accepted, or a process failed."""
    args = _arguments()

    def measure(console: Console) -> int:
        machine = {**describe_machine(), **describe_run(["-m", "perf", "load", *sys.argv[1:]])}
        with ExitStack() as stack:
            addresses = _addresses(args, console, stack)
            found, failed = asyncio.run(_make_load(args, addresses))
        _report(args, console, machine, found)
        ends = [row.problem for rows in found.values() for row in rows if row.name == "call"]
        lost, refused = (sum(end.startswith(kind) for end in ends) for kind in (_LOST, _REFUSED))
        console.print(f"{len(ends)} calls, {lost} lost, {refused} refused", highlight=False)
        return 1 if lost or failed or refused >= len(ends) else 0

    return run_program("load", measure, OSError)


if __name__ == "__main__":
    asyncio.run(_hold_calls_of_input())
