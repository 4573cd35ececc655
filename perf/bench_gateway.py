"""What the gateway adds to every frame of audio, and what idle sessions cost: ``make bench-gateway``.

Sixteen callers send a frame every 20 ms to a server that only echoes, in turns directly by gRPC and
through the gateway's WebSocket. A frame carries the times at which it was sent and passed the server, all
of one clock, so that each direction is measured by itself. What the gateway adds is the difference between
the two ways' percentiles. Client, gateway and server are one process each and share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
from gateway_callers import Way, ask_directly, ask_through, call_directly, call_through
from rich.console import Console
from rich.table import Table

from parley_client.turns import percentile

_GOALS_MS = {0.5: 3.0, 0.99: 10.0}
_START_S = 30.0
_LIMITS = {
    "PARLEY_GATEWAY_CALLS_LIMIT": "512",
    "PARLEY_GATEWAY_CALLS_PER_KEY": "512",
    "PARLEY_GATEWAY_SESSIONS_WAITING": "512",
    "PARLEY_GATEWAY_SESSIONS_WAITING_PER_KEY": "512",
}


@contextmanager
def _program(*command: str, **environment: str) -> Iterator[tuple[psutil.Process, str]]:
    """A process, and the last line that it prints when it is ready."""
    process = subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | environment,
    )
    try:
        assert process.stdout is not None
        while (line := process.stdout.readline()) and not line.startswith(("ready", *"0123456789")):
            pass
        if not line:
            raise SystemExit(f"{command[0]} did not start")
        yield psutil.Process(process.pid), line.strip()
    finally:
        process.terminate()
        process.wait(_START_S)


async def _measure_agent(args: argparse.Namespace, url: str, console: Console) -> None:
    """What the gateway adds to a question that the agent answers at once, and its answer."""
    direct: list[float] = []
    through: list[float] = []
    for _ in range(args.rounds):
        await ask_directly(args.server, args, direct)
        await ask_through(url, args, through)
    for share in (0.5, 0.99):
        ways = [
            f"{percentile(times, share):.2f} ms {name}"
            for times, name in ((direct, "by gRPC"), (through, "here"))
        ]
        console.print(
            f"{args.sessions} sessions of voice_agent, an update and its answer at p{share * 100:.0f}: "
            f"{' and '.join(ways)}, so {_added(through, direct, share):.2f} ms for both ways"
        )


def _row(table: Table, name: str, values: list[float]) -> None:
    table.add_row(
        name, *(f"{percentile(values, share) or 0:.2f}" for share in (0.5, 0.95, 0.99)), f"{len(values)}"
    )


def _added(through: list[float], direct: list[float], share: float) -> float:
    return (percentile(through, share) or 0.0) - (percentile(direct, share) or 0.0)


async def _measure(
    args: argparse.Namespace, server: str, url: str, gateway: psutil.Process
) -> dict[str, Any]:
    direct, through, crowded = Way(), Way(), Way()
    at_rest_mb = gateway.memory_info().rss / 1e6
    used_s = 0.0
    for _ in range(args.rounds):
        await call_directly(server, args, direct)
        before = sum(gateway.cpu_times()[:2])
        await call_through(url, args, through)
        used_s += sum(gateway.cpu_times()[:2]) - before
    with_calls_mb = gateway.memory_info().rss / 1e6
    peak = asyncio.create_task(_peak_mb(gateway))
    await call_through(url, args, crowded, args.idle)
    peak.cancel()
    crowded_mb = await peak
    return {
        "direct": direct,
        "through": through,
        "crowded": crowded,
        "memory_mb": {"at rest": at_rest_mb, "after calls": with_calls_mb, "crowded": crowded_mb},
        "cpu_percent": 100 * used_s / (args.rounds * args.seconds),
    }


async def _peak_mb(process: psutil.Process) -> float:
    """The most memory that the process has until this is cancelled."""
    peak = 0.0
    try:
        while True:
            peak = max(peak, process.memory_info().rss / 1e6)
            await asyncio.sleep(0.5)
    except asyncio.CancelledError:
        return peak


def _report(args: argparse.Namespace, found: dict[str, Any], console: Console) -> bool:
    direct, through, crowded = found["direct"], found["through"], found["crowded"]
    table = Table(
        title=f"{args.sessions} sessions, a frame of {args.frame_ms} ms each {args.frame_ms} ms; ms"
    )
    for column in ("", "p50", "p95", "p99", "frames"):
        table.add_column(column, justify="right" if column else "left")
    crowd = f"gateway and {args.idle} idle sessions"
    for name, way in (("gRPC", direct), ("gateway", through), (crowd, crowded)):
        _row(table, f"{name}: to the server", way.there)
        _row(table, f"{name}: from the server", way.back)
        _row(table, f"{name}: client late", way.late)
    console.print(table)
    met = True
    for share, goal in _GOALS_MS.items():
        for name, way in (("gateway", through), (crowd, crowded)):
            to, back = _added(way.there, direct.there, share), _added(way.back, direct.back, share)
            met = met and max(to, back) < goal
            console.print(
                f"{name} adds at p{share * 100:.0f}: {to:.2f} ms to the server, {back:.2f} ms from it "
                f"(goal: below {goal:g} ms)"
            )
    memory = ", ".join(f"{name} {value:.0f} MB" for name, value in found["memory_mb"].items())
    console.print(
        f"the gateway's memory: {memory}; its CPU with {args.sessions} talking: {found['cpu_percent']:.0f} %"
    )
    return met


def _start_gateway(stack: ExitStack, server: str) -> tuple[psutil.Process, str]:
    command = ("-m", "parley_client", "gateway", "--listen", "0", "--server", server)
    process, line = stack.enter_context(_program(*command, **_LIMITS))
    return process, line.split("http=")[1].split()[0]


def main() -> int:
    """Measure and print.

    Returns:
        The exit status: 1 if a goal is missed.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sessions", type=int, default=16, help="that talk at once (default: %(default)s)")
    parser.add_argument("--idle", type=int, default=200, help="that only listen (default: %(default)s)")
    parser.add_argument("--frame-ms", type=int, default=20, help="default: %(default)s ms")
    parser.add_argument(
        "--seconds", type=float, default=8.0, help="of speech per turn (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=2, help="turns of each way (default: %(default)s)")
    parser.add_argument("--server", metavar="HOST:PORT", help="ask the agent of this server too")
    parser.add_argument("--questions", type=int, default=50, help="to it (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all times to FILE")
    args = parser.parse_args()
    console = Console()
    with ExitStack() as stack:
        _, port = stack.enter_context(_program(str(Path(__file__).with_name("gateway_echo.py"))))
        server = f"127.0.0.1:{port}"
        gateway, url = _start_gateway(stack, server)
        found = asyncio.run(_measure(args, server, url, gateway))
        met = _report(args, found, console)
        if args.server:
            asyncio.run(_measure_agent(args, _start_gateway(stack, args.server)[1], console))
    if args.json:
        ways = {name: vars(found[name]) for name in ("direct", "through", "crowded")}
        args.json.write_text(json.dumps({**found, **ways}))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
