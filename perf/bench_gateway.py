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
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gateway_echo
import httpx
import psutil
from gateway_echo import STAMP_BYTES
from harness.report import make_table, write_json
from harness.servers import Program, ThisMachine, local_gateway
from harness.stats import percentile, percentiles
from rich.console import Console
from rich.table import Table
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_socket

from parley_client import connect
from parley_client.call import Call
from parley_client.events import AgentAudio

_SETTLE_S = 1.0

_GOALS_MS = {0.5: 3.0, 0.99: 10.0}
_START_S = 30.0
_LIMITS = {
    "PARLEY_GATEWAY_CALLS_LIMIT": "512",
    "PARLEY_GATEWAY_CALLS_PER_KEY": "512",
    "PARLEY_GATEWAY_SESSIONS_WAITING": "512",
    "PARLEY_GATEWAY_SESSIONS_WAITING_PER_KEY": "512",
}


@dataclass
class Way:
    """The times of all frames that went one way (milliseconds)."""

    there: list[float] = field(default_factory=list)
    back: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    """How late the client itself was with a frame: not the way's fault."""

    def note(self, stamps: bytes) -> None:
        """Take in an echoed frame."""
        now = time.monotonic_ns()
        sent, received, returned = (
            int.from_bytes(stamps[at * STAMP_BYTES : (at + 1) * STAMP_BYTES], "little") for at in range(3)
        )
        self.there.append((received - sent) / 1e6)
        self.back.append((now - returned) / 1e6)


async def _talk(
    send: Callable[[bytes], Any],
    heard: AsyncIterator[bytes],
    args: argparse.Namespace,
    way: Way,
    phase: float,
) -> None:
    """Send a frame every ``frame_ms``, and note what comes back; callers do not speak in step."""

    async def hear() -> None:
        async for stamps in heard:
            way.note(stamps)

    hearing = asyncio.create_task(hear())
    size = args.frame_ms * 32
    began = time.monotonic() + phase * args.frame_ms / 1000
    for number in range(int(args.seconds * 1000 / args.frame_ms)):
        due = began + number * args.frame_ms / 1000
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        way.late.append(1000 * (time.monotonic() - due))
        await send(time.monotonic_ns().to_bytes(STAMP_BYTES, "little") + bytes(size - STAMP_BYTES))
    await asyncio.sleep(_SETTLE_S)
    hearing.cancel()


async def _stamps_of_call(call: Call) -> AsyncIterator[bytes]:
    async for event in call:
        if isinstance(event, AgentAudio):
            yield event.samples[: 3 * STAMP_BYTES // 2].tobytes()


async def _stamps_of_socket(socket: ClientConnection) -> AsyncIterator[bytes]:
    async for message in socket:
        if isinstance(message, bytes):
            yield message


async def open_sockets(stack: AsyncExitStack, url: str, count: int) -> list[ClientConnection]:
    """Sessions that are connected."""
    sockets = []
    async with httpx.AsyncClient(base_url=url) as http:
        for _ in range(count):
            created = (await http.post("/v1/sessions")).raise_for_status().json()
            socket = await stack.enter_async_context(connect_socket(created["stream_url"], compression=None))
            assert json.loads(await socket.recv())["type"] == "connected"
            sockets.append(socket)
    return sockets


async def call_directly(server: str, args: argparse.Namespace, way: Way) -> None:
    """All callers, by gRPC."""
    async with AsyncExitStack() as stack:
        calls = [await stack.enter_async_context(connect(server)) for _ in range(args.sessions)]
        await asyncio.gather(
            *(
                _talk(call.send_audio, _stamps_of_call(call), args, way, place / len(calls))
                for place, call in enumerate(calls)
            )
        )


async def call_through(url: str, args: argparse.Namespace, way: Way, idle: int = 0) -> None:
    """All callers, through the gateway, beside ``idle`` sessions that say nothing."""
    async with AsyncExitStack() as stack:
        await open_sockets(stack, url, idle)
        sockets = await open_sockets(stack, url, args.sessions)
        await asyncio.gather(
            *(
                _talk(socket.send, _stamps_of_socket(socket), args, way, place / len(sockets))
                for place, socket in enumerate(sockets)
            )
        )


@contextmanager
def _echoing() -> Iterator[str]:
    """The address of a server that only echoes, in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="parley-echo-") as folder:
        machine = ThisMachine("echo")
        program = Program(machine, "echo", Path(folder))
        command = [sys.executable, gateway_echo.__file__]
        try:
            asyncio.run(program.start(command, lambda: program.find_line("ready"), ready_s=_START_S))
            yield program.find_line("ready").split()[1]
        finally:
            machine.kill()


def _row(table: Table, name: str, values: list[float]) -> None:
    table.add_row(
        name, *(f"{value:.2f}" for value in percentiles(values) or (0.0, 0.0, 0.0)), f"{len(values)}"
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
    title = f"{args.sessions} sessions, a frame of {args.frame_ms} ms each {args.frame_ms} ms; ms"
    table = make_table(title, "", "p50", "p95", "p99", "frames")
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
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all times to FILE")
    args = parser.parse_args()
    console = Console()
    with _echoing() as server, local_gateway(server, _LIMITS) as gateway:
        found = asyncio.run(_measure(args, server, gateway.url, psutil.Process(gateway.pid)))
        met = _report(args, found, console)
    if args.json:
        ways = {name: vars(found[name]) for name in ("direct", "through", "crowded")}
        write_json(args.json, {**found, **ways})
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
