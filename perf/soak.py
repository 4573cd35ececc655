"""Whether the server survives callers that behave badly: ``make soak``.

Sessions that are refused, given up at random moments, broken off and never ended, and normal ones, so many
at once, directly and through a gateway, against a real server that is started for it. The soak ends by
itself, early if the server's process dies. It fails if that happens, if a canary or the health endpoint
does not answer, or if a session is answered otherwise than it has to be. It reports how often each kind
was held and its outcomes, and how fast the server's memory, open files, threads and shared memory grew.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import os
import random
import signal
import sys
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from soak_callers import CANCELLING, SESSIONS, Session, Target
from soak_gateway import SESSIONS as VISITS
from soak_gateway import gateway

from parley.canaries import CanaryError, call_canaries
from parley.errors import ParleyError
from parley.launcher.server import EmbeddedServer
from parley_client.cli.arguments import handle_signals
from parley_client.cli.output import until_closed
from parley_client.cli.own_server import own_server
from parley_client.cli.view import make_console
from parley_client.errors import OutputClosedError
from parley_client.transport import open_triton_channel

_SESSION_S = 60.0
_CANARY_S = 30.0
_HTTP_S = 10.0
_SHOWN = 20
# A client that is never heard of again loses its session soon, or they would fill the server.
_ENVIRONMENT = {"PARLEY_VOICE_AGENT_IDLE_LIMIT_S": "10"}
_SETTLE_S = 15.0
_ALL: dict[Session, int] = {**SESSIONS, **VISITS, **CANCELLING}


@dataclass(frozen=True)
class Sample:
    """What the server's processes use at one moment."""

    at_s: float
    """Since the beginning of the soak."""
    sessions: int
    """That were held so far."""
    open_files: int
    threads: int
    private_mib: float
    shared_mib: float
    """Of the regions in the shared memory file system."""


@dataclass
class Soak:
    """One run."""

    seed: int
    minutes: float
    outcomes: dict[str, collections.Counter[str]] = field(
        default_factory=lambda: collections.defaultdict(collections.Counter)
    )
    """Counts of the outcomes of each kind."""
    problems: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    canaries: int = 0
    """How often every canary answered."""
    server_end: int | None = None
    """The status with which the server's process ended; None: it lives."""

    @property
    def sessions(self) -> int:
        """That were held."""
        return sum(sum(counter.values()) for counter in self.outcomes.values())

    def slopes(self) -> dict[str, float]:
        """Growth for each 1000 sessions: of the second half, by least squares."""
        half = self.samples[len(self.samples) // 2 :]
        held = [sample.sessions / 1000 for sample in half]
        if len(half) < 3 or held[0] == held[-1]:
            return {}
        names = ("open_files", "threads", "private_mib", "shared_mib")
        return {
            name: float(np.polyfit(held, [float(getattr(sample, name)) for sample in half], 1)[0])
            for name in names
        }

    def summary(self) -> dict[str, object]:
        """For JSON."""
        return {
            "seed": self.seed,
            "minutes": self.minutes,
            "cpus": os.cpu_count(),
            "sessions": self.sessions,
            "outcomes": {kind: dict(counter) for kind, counter in self.outcomes.items()},
            "problems": self.problems,
            "canaries": self.canaries,
            "server_end": self.server_end,
            "growth_per_1000_sessions": self.slopes(),
            "samples": [asdict(sample) for sample in self.samples],
        }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="default: %(default)g")
    parser.add_argument("--at-once", type=int, default=16, help="callers (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of what the callers do (default: %(default)s)")
    parser.add_argument(
        "--cancelling",
        action="store_true",
        help="with clients that cancel what Triton before 25.04 is about to end",
    )
    parser.add_argument("--kinds", help=f"only these, of {','.join(map(_name, _ALL))}")
    parser.add_argument("--sample-s", type=float, default=15.0, help="between two looks (%(default)g)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to FILE")
    args = parser.parse_args()
    if args.minutes <= 0 or args.at_once < 1 or args.sample_s <= 0:
        parser.error("minutes, callers and the time between two looks are above 0")
    usual = {**SESSIONS, **VISITS, **(CANCELLING if args.cancelling else {})}
    chosen = args.kinds.split(",") if args.kinds else list(map(_name, usual))
    args.kinds = {kind: weight for kind, weight in _ALL.items() if _name(kind) in chosen}
    if len(args.kinds) != len(chosen):
        parser.error(f"--kinds: there are {', '.join(map(_name, _ALL))}")
    return args


def main() -> int:
    """Run the soak; the exit status is 1 if anything went wrong, and 130 after Ctrl-C."""
    args, console = _arguments(), make_console()
    return until_closed(lambda: _measure(args, console))


def _measure(args: argparse.Namespace, console: Console) -> int:
    soak = Soak(args.seed, args.minutes)
    try:
        with (
            handle_signals(signal.default_int_handler),
            own_server(console, "soak", environment=_ENVIRONMENT) as server,
            gateway(server.endpoints.grpc) as url,
        ):
            asyncio.run(_run(args, soak, server, url, console))
    except OutputClosedError:
        raise
    except ParleyError as error:
        console.print(f"soak: {error}", style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("Interrupted.")
        return 130
    finally:
        if args.json and soak.samples:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            args.json.write_text(json.dumps(soak.summary(), indent=1))
    _print(soak, console)
    return 1 if soak.problems else 0


async def _run(
    args: argparse.Namespace, soak: Soak, server: EmbeddedServer, url: str, console: Console
) -> None:
    began = time.monotonic()
    address = server.endpoints.grpc
    watch = asyncio.create_task(_watch(soak, server, began, args.sample_s, console))
    channel = open_triton_channel(address)
    try:
        targets = [
            Target(address, channel, url, random.Random(f"{args.seed}-{number}"))
            for number in range(args.at_once)
        ]
        callers = [asyncio.create_task(_call(soak, server, target, args.kinds)) for target in targets]
        # They end by themselves only when the server is lost.
        await asyncio.wait({watch, *callers}, timeout=60 * args.minutes, return_when=asyncio.FIRST_COMPLETED)
        for caller in callers:
            caller.cancel()
        for end in await asyncio.gather(*callers, return_exceptions=True):
            if isinstance(end, Exception):
                soak.problems.append(f"a caller ended: {end!r}")
    finally:
        await channel.close()
    if not watch.done():
        await asyncio.sleep(_SETTLE_S)
    watch.cancel()
    for end in await asyncio.gather(watch, return_exceptions=True):
        if isinstance(end, Exception):
            soak.problems.append(f"the watch ended: {end!r}")
    await _look(soak, server, time.monotonic() - began)


async def _call(soak: Soak, server: EmbeddedServer, target: Target, kinds: Mapping[Session, int]) -> None:
    """One caller: session after session, as long as there is a server."""
    choices, weights = list(kinds), list(kinds.values())
    while server.poll() is None:
        kind = target.random.choices(choices, weights)[0]
        try:
            async with asyncio.timeout(_SESSION_S):
                outcome = await kind(target)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what the soak looks for
            outcome = f"{type(error).__name__}"
            soak.problems.append(f"{_name(kind)}: {error!r}")
        soak.outcomes[_name(kind)][outcome] += 1


async def _watch(
    soak: Soak, server: EmbeddedServer, began: float, interval_s: float, console: Console
) -> None:
    """Look at the server again and again; returns when it is lost."""
    shown = 0
    while await _look(soak, server, time.monotonic() - began):
        last = soak.samples[-1]
        console.print(
            f"{last.at_s:6.0f} s  {last.sessions} sessions, {len(soak.problems)} problems, "
            f"{last.open_files} files, {last.private_mib:.0f} MiB, {last.shared_mib:.0f} MiB shared"
        )
        for problem in soak.problems[shown:_SHOWN]:
            console.print(problem, style="red", markup=False)
        shown = min(len(soak.problems), _SHOWN)
        await asyncio.sleep(interval_s)


async def _look(soak: Soak, server: EmbeddedServer, at_s: float) -> bool:
    """Take a sample, and ask the server's health and every canary; whether the server is there."""
    server.follow_log()
    soak.server_end = server.poll()
    if soak.server_end is not None:
        soak.problems.append(f"the server's process ended with {soak.server_end}: {server.log_path}")
        return False
    used = server.usage()
    soak.samples.append(
        Sample(
            at_s=round(at_s, 1),
            sessions=soak.sessions,
            open_files=sum(one.open_files for one in used),
            threads=sum(one.threads for one in used),
            private_mib=round(sum(one.private_bytes for one in used) / 2**20, 2),
            shared_mib=round(server.shared_memory_bytes() / 2**20, 2),
        )
    )
    try:
        for path in ("live", "ready"):
            await asyncio.to_thread(_get, f"http://{server.endpoints.http}/v2/health/{path}")
    except OSError as error:
        soak.problems.append(f"health: {error!r}")
    try:
        await asyncio.to_thread(call_canaries, server.endpoints.grpc, server.models, _CANARY_S)
        soak.canaries += 1
    except CanaryError as error:
        soak.problems.append(f"canary: {error}")
    return True


def _get(url: str) -> None:
    with urllib.request.urlopen(url, timeout=_HTTP_S):  # noqa: S310 - the server's own address
        pass


def _name(kind: object) -> str:
    return str(getattr(kind, "__name__", kind))


def _print(soak: Soak, console: Console) -> None:
    table = Table(title=f"{soak.sessions} sessions, seed {soak.seed}", title_justify="left")
    for column in ("sessions", "ended with", "count"):
        table.add_column(column, justify="right" if column == "count" else "left")
    for kind, counter in sorted(soak.outcomes.items()):
        for outcome, count in counter.most_common():
            table.add_row(kind, outcome, str(count))
    console.print(table)
    for name, slope in soak.slopes().items():
        console.print(f"growth in the second half: {slope:+.2f} {name.replace('_', ' ')} for 1000 sessions")
    console.print(f"every canary answered {soak.canaries} of {len(soak.samples)} times")
    console.print(f"{len(soak.problems)} problems", style="red" if soak.problems else "green")
    for problem in soak.problems[:_SHOWN]:
        console.print(problem, style="red", markup=False)


if __name__ == "__main__":
    sys.exit(main())
