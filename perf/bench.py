"""How fast the agent answers, for 1, 4 and 8 conversations at once: ``make bench``.

Every session is a person on the telephone: it speaks recorded clips in real time, waits until the
answer has been heard, interrupts a story. Latencies come from the client's clock and from the
server's own ``metrics`` events. On a small machine the clients share the processors with the
server; how late the microphones were tells how much that disturbed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from bench_level import Level, run_level
from rich.console import Console
from rich.table import Table

from parley.errors import ParleyError
from parley.launcher.options import ROOT
from parley.launcher.processes import ProcessUsage
from parley_client.audio.microphone import DEFAULT_CHUNK_MS
from parley_client.commands.common import handle_signals
from parley_client.commands.own_server import own_server
from parley_client.errors import OutputClosedError
from parley_client.script import ScriptTurn, load_script
from parley_client.terminal.output import print_hanging, until_closed
from parley_client.terminal.report import STAGES
from parley_client.terminal.view import make_console
from parley_client.turns import percentile

_ROWS = {
    **{name: meaning for name, (_, meaning) in STAGES.items()},
    "chunk_voice_agent": "a chunk to its acknowledgement: gRPC, scheduling, voice_agent",
    "chunk_recogniser": "a silent chunk through the recogniser, less the detector's mean compute",
    "microphone_late": "each session's latest chunk behind its time (client, not server)",
    "audio_gaps": "how often a session's answers paused because audio came late (a count)",
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--server", metavar="HOST:PORT", help="use a running server (no CPU figures)")
    parser.add_argument("--sessions", default="1,4,8", help="load levels (default: %(default)s)")
    parser.add_argument("--turns", type=int, help="turns of each session (default: the script once)")
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
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(
            json.dumps({**machine, "levels": [level.summary() for level in levels]}, indent=1)
        )
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
        levels.append(asyncio.run(run_level(server, sessions, turns, args.chunk_ms, usage)))
    return levels


def _print(console: Console, levels: list[Level]) -> None:
    table = Table(title="p50 / p95 in milliseconds", title_justify="left")
    table.add_column("")
    for level in levels:
        table.add_column(f"{level.sessions} session{'s' * (level.sessions > 1)}", justify="right")
    for name in _ROWS:
        table.add_row(name, *(_cell(_percentiles(level.values.get(name, []))) for level in levels))
    table.add_row("chunk overhead, at most", *(_cell(level.chunk_overhead_ms) for level in levels))
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


def _percentiles(values: list[float]) -> tuple[float, float] | None:
    low, high = percentile(values, 0.5), percentile(values, 0.95)
    return None if low is None or high is None else (low, high)


def _cell(values: tuple[float, float] | None) -> str:
    digits = 0 if values and values[1] >= 20 else 1
    return "" if values is None else f"{values[0]:.{digits}f} / {values[1]:.{digits}f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0f} %"


if __name__ == "__main__":
    sys.exit(main())
