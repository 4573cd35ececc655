"""Whether server and gateway survive hours of calls, cancels and kills: ``make soak HOURS=2``.

Callers hold conversations with words of their own, directly and through a gateway, drop some at random
moments, and send sessions that are refused, given up, broken off and never ended. In the first half of the
time the process of a model is killed at random intervals (SIGKILL), which the supervisor replaces. What
happens is written to a file at once, one JSON object a line; ``--judge FILE`` reads it again.
perf/README.md has the method.

The exit status is 1 if a call got what belongs to another one, a request did not end, something failed that
no kill explains, a process was not replaced, or a resource grew.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import os
import platform
import random
import sys
import time
import traceback
import urllib.request
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TextIO

import httpx
from harness.program import run_program
from harness.servers import Gateway, Server, local_gateway, local_server
from rich.console import Console

from parley.canaries.asking import call_canaries
from parley.canaries.models import CanaryError
from parley.launcher.options import ROOT
from parley.timeouts import cancel_all
from parley_client.transport import open_triton_channel
from soak import counted_gateway
from soak.conversations import SESSIONS as CALLS
from soak.conversations import learn
from soak.judgement import judge, read, show
from soak.kills import Kill, Killer
from soak.processes import counts, look, shared_memory
from soak.scripts import LostTurnError, UnexpectedAnswerError
from soak.sessions import SESSIONS, Session, Target
from soak.visits import SESSIONS as VISITS

_CALLERS = 4
_SEED = 1
"""Of what the callers do, and of the kills."""
_KILL_EVERY_S = 150.0
"""The mean in the first half of the time; in a short soak a tenth of it."""
_SESSION_S = 120.0
_CANARY_S = 30.0
_HTTP_S = 10.0
_SETTLE_S = 60.0
_PAUSE_S = 1.0
"""The longest between two sessions of a caller."""
_LONGEST_SAMPLE_S, _SAMPLES = 15.0, 120
# A client that is never heard of again loses its session soon, or they would fill the server.
_ENVIRONMENT = {"PARLEY_VOICE_AGENT_IDLE_LIMIT_S": "10"}
# A session that is created and left is forgotten soon.
_GATEWAY = {"PARLEY_GATEWAY_SESSIONS_CONNECT_S": "5", "PARLEY_GATEWAY_REALTIME_WEBRTC": "true"}
_KINDS: dict[Session, int] = {**CALLS, **SESSIONS, **VISITS}


class Journal:
    """The file of a soak: one JSON object a line, each written at once."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.began = time.monotonic()
        """Time of the journal: 0 s."""
        self.sessions = 0
        self.problems = 0
        self.outcomes: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        """Counts of the outcomes of each kind."""

    @property
    def now_s(self) -> float:
        """Since the begin of the soak."""
        return round(time.monotonic() - self.began, 2)

    def write(self, record: str, **fields: Any) -> None:
        """Append one object."""
        self._file.write(json.dumps({"record": record, "at_s": self.now_s, **fields}) + "\n")
        self._file.flush()

    def fail(self, what: str, error: str, kills: list[Kill], **fields: Any) -> None:
        """Something that went wrong, and the kills that may be the reason."""
        self.problems += not kills
        self.write("failure", what=what, error=error, kills=[kill.at_s for kill in kills], **fields)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--hours", type=float, default=1.0, help="of calls (default: %(default)g)")
    length.add_argument("--minutes", type=float, help="of calls, in place of hours; at least five are judged")
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        default=ROOT / ".server" / "soak" / "soak.json",
        help="the journal: everything that happens, a line at a time (default: .server/soak/soak.json)",
    )
    parser.add_argument("--judge", type=Path, metavar="FILE", help="only judge a journal")
    args = parser.parse_args()
    if args.minutes is not None:
        args.hours = args.minutes / 60
    if args.hours <= 0:
        parser.error("hours are above 0")
    return args


def main() -> int:
    """Run the soak; the exit status is 1 if anything went wrong."""
    args = _arguments()
    if args.judge:
        return run_program("soak", lambda console: _judge(args.judge, console), OSError, ValueError)
    counted_gateway.count_channels()
    failures = (UnexpectedAnswerError, LostTurnError, ValueError)
    return run_program("soak", lambda console: _measure(args, console), *failures)


def _measure(args: argparse.Namespace, console: Console) -> int:
    args.json.parent.mkdir(parents=True, exist_ok=True)
    console.print(f"--judge {args.json} judges what there is, at any time.", markup=False)
    with (
        args.json.open("w") as file,
        local_server("soak", _ENVIRONMENT) as server,
        local_gateway(server.address, _GATEWAY, [sys.executable, counted_gateway.__file__]) as gateway,
    ):
        asyncio.run(_Soak(args, server, gateway, Journal(file), console).run())
    return _judge(args.json, console)


def _judge(file: Path, console: Console) -> int:
    """Judge a journal, print what it shows, and write it beside it; returns the exit status.

    Raises:
        OSError: it cannot be read.
        ValueError: it is none, or has no samples.
    """
    judgement = judge(read(file))
    file.with_suffix(".judgement.json").write_text(json.dumps(judgement.summary(), indent=1))
    show(judgement, console)
    return 0 if judgement.passed else 1


class _Soak:
    """One run."""

    def __init__(
        self,
        args: argparse.Namespace,
        server: Server,
        gateway: Gateway,
        journal: Journal,
        console: Console,
    ) -> None:
        self._args = args
        self._server = server
        self._gateway = gateway
        self._journal = journal
        self._console = console
        kill_every_s = min(_KILL_EVERY_S, 3600 * args.hours / 10)
        self._killer = Killer(server, random.Random(f"{_SEED}-kills"), kill_every_s, journal.began)
        self._looks = 0

    async def run(self) -> None:
        """Until the time is over, or the launcher has ended."""
        args, address = self._args, self._server.address
        self._journal.write(
            "begin",
            unix_s=time.time(),
            cpus=os.cpu_count(),
            machine=platform.platform(),
            hours=args.hours,
            kinds={_name(kind): weight for kind, weight in _KINDS.items()},
        )
        channel = open_triton_channel(address)
        try:
            first = Target(address, channel, self._gateway.url, random.Random(f"{_SEED}-first"))
            scripts = await learn(first, self._console)
            targets = [
                replace(first, random=random.Random(f"{_SEED}-{number}"), scripts=scripts)
                for number in range(_CALLERS)
            ]
            watch = asyncio.create_task(self._watch())
            # The second half is undisturbed: growth shows only in a long time without a replaced process.
            self._killer.until_s = self._journal.now_s + 3600 * args.hours / 2
            end = asyncio.create_task(asyncio.sleep(3600 * args.hours))
            callers = [asyncio.create_task(self._call(target)) for target in targets]
            tasks = [end, *callers, asyncio.create_task(self._kill())]
            await asyncio.wait({watch, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            await self._end(tasks)
        finally:
            await channel.close()
        if not watch.done():
            await asyncio.sleep(_SETTLE_S)
        await self._end([watch])
        self._journal.write("end", outcomes=self._journal.outcomes, launcher=self._server.status)

    async def _end(self, tasks: list[asyncio.Task[Any]]) -> None:
        for end in await cancel_all(tasks):
            if isinstance(end, Exception):
                self._journal.fail("soak", "".join(traceback.format_exception(end)), [])

    async def _kill(self) -> None:
        while True:
            kill = await self._killer.next(lambda kill: self._journal.write("kill", kill=asdict(kill)))
            if kill is not None:
                self._journal.write("restored", kill=asdict(kill))
                self._console.print(f"killed {kill.instance}, restored {kill.restored_s}", markup=False)

    async def _call(self, target: Target) -> None:
        """One caller: session after session."""
        choices, weights = list(_KINDS), list(_KINDS.values())
        journal = self._journal
        while True:
            kind = target.random.choices(choices, weights)[0]
            began_s = journal.now_s
            try:
                async with asyncio.timeout(_SESSION_S) as limit:
                    outcome = await kind(target)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is what the soak looks for
                outcome = "did not end" if limit.expired() else type(error).__name__
                kills = self._killer.excuses(began_s, journal.now_s)
                journal.fail(
                    _name(kind),
                    repr(error),
                    kills,
                    outcome=outcome,
                    began_s=began_s,
                    cause=repr(error.__cause__),
                )
                if not kills:
                    self._console.print(f"{_name(kind)}: {error!r}", style="red", markup=False)
            journal.outcomes[_name(kind)][outcome] += 1
            journal.sessions += 1
            await asyncio.sleep(_PAUSE_S * target.random.random())

    async def _watch(self) -> None:
        """Look again and again; returns when the launcher has ended."""
        while self._server.status is None:
            await self._look()
            await asyncio.sleep(min(_LONGEST_SAMPLE_S, 3600 * self._args.hours / _SAMPLES))
        self._journal.fail("launcher", f"ended with {self._server.status}", [])

    async def _look(self) -> None:
        """Take a sample, and ask health and canaries while nothing is being replaced."""
        journal = self._journal
        self._looks += 1
        try:
            counted = await counts(self._gateway.url)
        except httpx.HTTPError as error:
            journal.fail("gateway", repr(error), [])
            counted = {}
        uses = look(self._server, self._gateway.pid)
        journal.write(
            "sample",
            sessions=journal.sessions,
            processes=[asdict(use) for use in uses],
            shared_memory=shared_memory(self._server),
            load=os.getloadavg(),
            outcomes=journal.outcomes,
            **counted,
        )
        if self._looks % 4 == 1:
            self._console.print(
                f"{journal.now_s:6.0f} s  {journal.sessions} sessions, {len(self._killer.kills)} kills, "
                f"{journal.problems} problems"
            )
            await self._ask()

    async def _ask(self) -> None:
        if self._killer.is_disturbed:
            return
        began_s = self._journal.now_s
        try:
            for path in ("live", "ready"):
                await asyncio.to_thread(_get, f"http://{self._server.http}/v2/health/{path}")
            models = sorted(self._server.record()["models"])
            await asyncio.to_thread(call_canaries, self._server.address, models, _CANARY_S)
        except (OSError, CanaryError) as error:
            kills = self._killer.excuses(began_s, self._journal.now_s)
            self._journal.fail("canary", repr(error), kills, began_s=began_s)
        else:
            self._journal.write("canaries", models=models)


def _get(url: str) -> None:
    with urllib.request.urlopen(url, timeout=_HTTP_S):  # noqa: S310 - the server's own address
        pass


def _name(kind: object) -> str:
    return str(getattr(kind, "__name__", kind))
