"""How fast the agent answers, for 1, 4 and 8 conversations at once: ``make bench``.

Every session is a person on the telephone: it speaks recorded clips in real time, waits until the
answer has been heard, interrupts a story. Latencies come from the client's clock and from the
server's own ``metrics`` events. On a small machine the clients share the processors with the
server; the lateness of the microphones shows how much that disturbed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, Self

import grpc.aio
import numpy as np
from harness.caller import CallReport, hold_call
from harness.report import make_table, write_json
from harness.stats import p50_p95, percentile, percentiles, text_of
from recognizer_client import answered, recognizer_request
from rich.console import Console
from tritonclient.grpc import service_pb2_grpc

from parley.asr.messages import AsrReply
from parley.errors import ParleyError
from parley.grpc_messages import read_response
from parley.inference import tensor_struct
from parley.launcher.options import ROOT
from parley.launcher.processes import ProcessUsage
from parley_client import Backoff, Deadlines, ToolTable, connect
from parley_client.audio.microphone import DEFAULT_CHUNK_MS
from parley_client.cli.arguments import handle_signals
from parley_client.cli.demo_tools import DEMO_TOOLS
from parley_client.cli.output import STAGES, by_stage, print_hanging, until_closed
from parley_client.cli.own_server import own_server
from parley_client.cli.script import ScriptTurn, load_script
from parley_client.cli.view import make_console
from parley_client.errors import OutputClosedError

_CHUNK = np.zeros(512, "<i2").tobytes()  # 32 ms: one window of the detector
_INTERVAL_S = 0.1
_DEADLINE_S = 10.0
_MOST_STAGGER_S = 60.0

_STAGGER_S = 1.7
"""Between two sessions' beginnings: no multiple of any turn's length."""
_ROWS = {
    **{name: meaning for name, (_, meaning) in STAGES.items()},
    "chunk_voice_agent": "a chunk to its acknowledgement: gRPC, scheduling, voice_agent",
    "chunk_recogniser": "a silent chunk through the recogniser, less the networks' time in its reply",
    "microphone_late": "each session's latest chunk behind its time (client, not server)",
    "audio_gaps": "how often a session's answers paused because audio came late (a count)",
}


class RecognizerProbe:
    """Measures while its ``async with`` lasts.

    Args:
        server: Triton's gRPC endpoint.

    Raises:
        InferenceError: on entering or leaving: the recogniser did not answer.
    """

    def __init__(self, server: str) -> None:
        self._channel = grpc.aio.insecure_channel(server)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._id = f"bench-{uuid.uuid4()}"
        self.overheads_ms: list[float] = []
        """Of each chunk everything but the networks (milliseconds)."""

    async def __aenter__(self) -> Self:
        try:
            await self._send(start=True)
        except BaseException:
            await self._channel.close()
            raise
        self._task = asyncio.create_task(self._run(), name="recognizer-probe")
        return self

    async def __aexit__(self, *_problem: object) -> None:
        try:
            self._task.cancel()
            (end,) = await asyncio.gather(self._task, return_exceptions=True)
            if not isinstance(end, asyncio.CancelledError):
                raise end
            await self._send(end=True)
        finally:
            await self._channel.close()

    async def _run(self) -> NoReturn:
        while True:
            await asyncio.sleep(_INTERVAL_S)
            began = time.perf_counter()
            reply = await self._send()
            elapsed_ms = 1000 * (time.perf_counter() - began)
            networks_ms = reply.vad_ms + reply.encoder_ms + reply.decoder_ms
            self.overheads_ms.append(max(0.0, elapsed_ms - networks_ms))

    async def _send(self, *, start: bool = False, end: bool = False) -> AsrReply:
        request = recognizer_request("parakeet_tdt", self._id, _CHUNK, start=start, end=end)
        response = await answered(self._stub.ModelInfer(request, timeout=_DEADLINE_S))
        return tensor_struct(read_response(response)["REPLY"], AsrReply)


@dataclass
class Level:
    """What one load level measured; milliseconds unless a name says otherwise."""

    sessions: int
    turns: int = 0
    problems: list[str] = field(default_factory=list)
    values: dict[str, list[float]] = field(default_factory=dict)
    """Every measured value by name."""
    wall_s: float = 0.0
    client_cpu_s: float = 0.0
    server_cpu_s: dict[str, float] = field(default_factory=dict)
    """Processor time by process; empty if the server is not ours."""

    def summary(self) -> dict[str, object]:
        """For JSON: p50, p95 and count of each value, and the shares of a processor."""
        return {
            "sessions": self.sessions,
            "turns": self.turns,
            "problems": self.problems,
            "latency_ms": {
                name: {"p50": percentile(values, 0.5), "p95": percentile(values, 0.95), "count": len(values)}
                for name, values in self.values.items()
            },
            "chunk_overhead_ms": self.chunk_overhead_ms,
            "wall_s": round(self.wall_s, 1),
            "cpu_percent_per_session": self.cpu_percent_per_session,
            "cpu_percent_by_process": {
                name: round(100 * seconds / self.wall_s, 1) for name, seconds in self.server_cpu_s.items()
            },
            "client_cpu_percent": round(100 * self.client_cpu_s / self.wall_s, 1) if self.wall_s else None,
        }

    @property
    def chunk_overhead_ms(self) -> dict[str, float] | None:
        """What everything but the networks adds to a chunk at most: p50, p95 and p99 (milliseconds).

        The sum of both ways' percentiles: a real chunk goes the second way inside the server,
        without the probe's own gRPC call.
        """
        ways = [self.values.get("chunk_voice_agent", []), self.values.get("chunk_recogniser", [])]
        if not all(ways):
            return None
        both = zip(*map(percentiles, ways), strict=True)
        return {name: sum(values) for name, values in zip(("p50", "p95", "p99"), both, strict=True)}

    @property
    def cpu_percent_per_session(self) -> float | None:
        """The server's share of one processor for each session (percent)."""
        if not self.server_cpu_s:
            return None
        return round(100 * sum(self.server_cpu_s.values()) / self.wall_s / self.sessions, 1)


async def run_level(
    server: str,
    sessions: int,
    turns: tuple[ScriptTurn, ...],
    chunk_ms: int,
    usage: Callable[[], list[ProcessUsage]],
    *,
    stagger_s: float = _STAGGER_S,
) -> Level:
    """Hold ``sessions`` conversations at once, begun one after the other, ``stagger_s`` apart.

    Raises:
        ParleyError: the probe of the recogniser failed; a session's failure is a problem of the level.
    """
    level = Level(sessions)
    reports = [CallReport(number) for number in range(sessions)]
    before = _cpu(usage())
    began, client_began = time.perf_counter(), time.process_time()
    async with RecognizerProbe(server) as probe:
        await asyncio.gather(
            *(_session(server, report, report.number * stagger_s, turns, chunk_ms) for report in reports)
        )
    level.wall_s = time.perf_counter() - began
    level.client_cpu_s = time.process_time() - client_began
    level.server_cpu_s = {name: value - before.get(name, 0.0) for name, value in _cpu(usage()).items()}
    spoken = [turn for report in reports for turn in report.turns]
    level.turns = len(spoken)
    level.values = by_stage(spoken)
    level.values["chunk_voice_agent"] = [value for report in reports for value in report.round_trips_ms]
    level.values["chunk_recogniser"] = probe.overheads_ms
    level.values["microphone_late"] = [report.late_ms for report in reports]
    level.values["audio_gaps"] = [float(report.underruns) for report in reports]
    level.problems = [problem for report in reports for problem in _problems(report)]
    return level


async def _session(
    server: str, report: CallReport, after_s: float, turns: tuple[ScriptTurn, ...], chunk_ms: int
) -> None:
    await asyncio.sleep(after_s)
    line = connect(
        server,
        tools=ToolTable(DEMO_TOOLS),
        retry=Backoff(attempts=3),
        deadlines=Deadlines(connect_s=30),
    )
    await hold_call(line, turns, report, chunk_ms=chunk_ms)


def _problems(report: CallReport) -> Iterator[str]:
    """What went wrong in a session."""
    name = f"session {report.number + 1}"
    if failure := report.refused or report.lost:
        yield f"{name}: {failure}"
    yield from (f"{name}, {turn.name}: {turn.problem}" for turn in report.turns if turn.problem)


def _cpu(processes: list[ProcessUsage]) -> dict[str, float]:
    """Processor seconds by process name."""
    totals: dict[str, float] = {}
    for process in processes:
        totals[process.name] = totals.get(process.name, 0.0) + process.cpu_s
    return totals


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--server", metavar="HOST:PORT", help="use a running server (no CPU figures)")
    parser.add_argument("--sessions", default="1,4,8", help="load levels (default: %(default)s)")
    parser.add_argument("--turns", type=int, help="turns of each session (default: the script once)")
    parser.add_argument(
        "--stagger-s",
        type=float,
        default=_STAGGER_S,
        metavar="S",
        help="between two sessions' beginnings (default: %(default)s s)",
    )
    parser.add_argument("--chunk-ms", type=int, default=DEFAULT_CHUNK_MS, help="default: %(default)s ms")
    parser.add_argument("--script", type=Path, default=ROOT / "examples" / "conversation.toml")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to FILE")
    args = parser.parse_args()
    try:
        args.sessions = [int(part) for part in args.sessions.split(",")]
    except ValueError:
        parser.error("--sessions takes numbers with commas between them")
    if min(args.sessions) < 1 or (args.turns is not None and args.turns < 1):
        parser.error("at least one session and one turn are needed")
    if not 0.0 <= args.stagger_s <= _MOST_STAGGER_S:
        parser.error(f"--stagger-s must be 0 to {_MOST_STAGGER_S:g}")
    return args


def main() -> int:
    """Run the benchmark; the exit status is 1 if any turn had a problem, and 130 after Ctrl-C."""
    args, console = _arguments(), make_console()
    return until_closed(lambda: _measure(args, console))


def _measure(args: argparse.Namespace, console: Console) -> int:
    try:
        with handle_signals(signal.default_int_handler):
            return _bench(args, console)
    except OutputClosedError:
        raise
    except ParleyError as error:
        console.print(f"bench: {error}", style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("Interrupted.")
        return 130


def _bench(args: argparse.Namespace, console: Console) -> int:
    script = load_script(args.script)
    turns = tuple(itertools.islice(itertools.cycle(script.turns), args.turns or len(script.turns)))
    if args.server:
        levels = _run(args, console, args.server, turns, list)
    else:
        with own_server(console, "bench") as server:
            levels = _run(args, console, server.endpoints.grpc, turns, server.usage)
    _print(console, levels)
    if args.json:
        machine = {"cpus": os.cpu_count(), "chunk_ms": args.chunk_ms, "turns_per_session": len(turns)}
        write_json(args.json, {**machine, "levels": [level.summary() for level in levels]})
        console.print(f"All figures: {args.json}")
    return 1 if any(level.problems for level in levels) else 0


def _run(
    args: argparse.Namespace,
    console: Console,
    server: str,
    turns: tuple[ScriptTurn, ...],
    usage: Callable[[], list[ProcessUsage]],
) -> list[Level]:
    # The first conversation pays for caches that fill once; it is not measured.
    console.print("Warming up …")
    asyncio.run(run_level(server, 1, turns[:2], args.chunk_ms, usage))
    levels = []
    for sessions in args.sessions:
        console.print(f"{sessions} session{'s' * (sessions > 1)}, {len(turns)} turns each …")
        level = run_level(server, sessions, turns, args.chunk_ms, usage, stagger_s=args.stagger_s)
        levels.append(asyncio.run(level))
    return levels


def _print(console: Console, levels: list[Level]) -> None:
    head = (f"{level.sessions} session{'s' * (level.sessions > 1)}" for level in levels)
    table = make_table("p50 / p95 in milliseconds", "", *head)
    for name in _ROWS:
        table.add_row(name, *(_cell(p50_p95(level.values.get(name, []))) for level in levels))
    table.add_row(
        "chunk overhead, at most: p50 / p95 / p99",
        *(
            " / ".join(f"{value:.1f}" for value in (level.chunk_overhead_ms or {}).values())
            for level in levels
        ),
    )
    table.add_section()
    table.add_row(
        "server CPU for each session", *(_percent(level.cpu_percent_per_session) for level in levels)
    )
    table.add_row(
        "client CPU, all sessions", *(_percent(100 * level.client_cpu_s / level.wall_s) for level in levels)
    )
    console.print(table)
    for name, meaning in _ROWS.items():
        print_hanging(console, f"[dim]{name:>18}[/]  ", f"[dim]{meaning}[/]")
    console.print("[dim]CPU: percent of one processor[/]")
    for level in levels:
        for problem in level.problems:
            console.print(f"{level.sessions} sessions: {problem}", style="red", markup=False)


def _cell(values: tuple[float, float] | None) -> str:
    digits = 0 if values and values[1] >= 20 else 1
    return text_of(values, digits)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0f} %"


if __name__ == "__main__":
    sys.exit(main())
