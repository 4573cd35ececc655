"""``parley capacity``: how many calls at once a server holds, and what that means for a fleet."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from parley.tls import TlsOptions
from parley_client import NO_RETRY
from parley_client.cli.arguments import (
    add_pacing,
    add_session,
    add_timeout,
    add_tls,
    address,
    check_output,
    count,
    open_call,
    positive,
    read_tls_options,
    run_to_end,
    tool_table,
    within,
)
from parley_client.cli.capacity.callers import LOOKS, CallPlan, LevelResult, hold_level
from parley_client.cli.capacity.report import TARGET_UTILIZATION, Capacity
from parley_client.cli.capacity.search import Verdict, find_capacity, summarize
from parley_client.cli.capacity.tail import FEWEST
from parley_client.cli.capacity.usage import UsageMeter, gpu_reader
from parley_client.cli.commands.demo import default_script
from parley_client.cli.conversation import DEFAULT_TURN_TIMEOUT_S
from parley_client.cli.own_server import UNLIMITED, add_profile, default_profile, own_server
from parley_client.cli.script import ScriptTurn, load_script
from parley_client.connection import connect
from parley_client.errors import ClientError, UsageError

EXAMPLES = """\
  parley capacity --p95-ms 1000 --price-per-hour 0.40
                                   start a server, and find out what this machine holds and costs
  parley capacity --gateway https://voice.example.com --most 256
                                   through a gateway, as callers reach it
  parley capacity --server 10.0.0.5:8001 --most 256 --json capacity.json
                                   a running server; the file has the values of an autoscaler"""
HELP = "find the most calls at once that a server holds within a latency, and what they cost"
DEFAULT_P95_MS = 1_000.0
_WARM_UP_TURNS = 2
_KEY = "PARLEY_KEY"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.add_argument(
        "--server", type=address, metavar="HOST:PORT", help="use a running server instead of starting one"
    )
    add_tls(parser)
    parser.add_argument(
        "--gateway",
        metavar="URL",
        help=f"call through a gateway, http://host:port; a key is taken from {_KEY}",
    )
    add_profile(parser, "of the server that is started, or is running (see parley models)")
    parser.add_argument(
        "--p95-ms",
        type=positive,
        default=DEFAULT_P95_MS,
        metavar="MS",
        help="limit of the 95th percentile of true end of speech to first audio (default: %(default)g)",
    )
    parser.add_argument("--start", type=count, default=1, metavar="N", help="the first level (default: 1)")
    parser.add_argument(
        "--most", type=count, default=64, metavar="N", help="the highest level (default: %(default)s)"
    )
    parser.add_argument(
        "--turns",
        type=count,
        default=60,
        metavar="N",
        help="of a level; twice as many where it is close, fewer where it is clear (default: %(default)s)",
    )
    parser.add_argument(
        "--fill",
        type=within(0.05, 1.0),
        default=TARGET_UTILIZATION,
        metavar="SHARE",
        help="how full replicas are to be in the mean; the rest is the buffer "
        "(default: %(default)s, as in the chart)",
    )
    parser.add_argument(
        "--price-per-hour", type=positive, metavar="PRICE", help="of one replica, in any currency"
    )
    parser.add_argument("--script", type=Path, help="what callers say (default: one that fits the profile)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything for programs")
    add_pacing(parser, DEFAULT_TURN_TIMEOUT_S)
    add_timeout(parser)
    add_session(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Search for the capacity of a server, print it, and write it to ``--json``.

    Returns:
        The exit status: 1 if no level is held.

    Raises:
        UsageError: the arguments do not go together.
        ParleyError: the script cannot be read, the server cannot start, or a single call fails.
        KeyboardInterrupt: the search was interrupted; what it has found so far is printed and written.
    """
    if args.server and args.gateway:
        raise UsageError("give --server or --gateway, not both")
    if not 1 <= args.start <= args.most:
        raise UsageError("--start must be from 1 to --most")
    if args.turns < 1:
        raise UsageError("--turns must be at least 1")
    if args.turns * LOOKS[-1] < FEWEST:
        console.print(
            f"No level can be surely held: that takes {FEWEST} turns, so --turns 30.", style="yellow"
        )
    check_output(args.json)
    tool_table(args)
    levels: list[LevelResult] = []
    with _server(args, console) as server:
        args.server = server.address
        plan = CallPlan(
            connect=_connector(args, server.tls),
            turns=_questions(args),
            chunk_ms=args.chunk_ms,
            turn_timeout_s=args.turn_timeout,
        )
        search = _Search(args, console, plan, server, levels)
        try:
            status = run_to_end(search.run())
        except KeyboardInterrupt:
            _report(_result(args, levels, is_complete=False), args, console)
            raise
    result = _result(args, levels)
    _report(result, args, console)
    usual = args.script is None and args.p95_ms == DEFAULT_P95_MS
    if usual and result.found.held and result.found.is_bounded and not (args.gateway or server.cpu_s is None):
        from parley.launcher import ServerOptions, keep_calls  # noqa: PLC0415 - it is here: it started the server

        calls = result.found.held
        where = keep_calls(ServerOptions(profile=args.profile), os.environ, calls)
        console.print(f"From its next start on a server here takes {calls} calls ({where}).")
    return status


def _connector(args: argparse.Namespace, tls: TlsOptions | None) -> Callable[[], connect]:
    """Opens calls, each with a table of tools of its own, and tries once: refusals and losses are to be seen.

    Raises:
        ClientError: a gateway is called, and what that needs is not installed.
    """
    changes: dict[str, Any] = {"greeting": args.greeting or "", "retry": NO_RETRY, "resume": False}
    changes["tls"] = tls
    if args.gateway:
        try:
            from parley_client.gateway_transport import GatewayTransport  # noqa: PLC0415 - an optional extra
        except ImportError as error:
            raise ClientError(f"--gateway needs the packages of the extra gateway ({error})") from error
        changes["transport"] = partial(GatewayTransport, args.gateway, os.environ.get(_KEY, ""))
    return lambda: open_call(args, tool_table(args), **changes)


@dataclass(frozen=True)
class _Server:
    address: str
    cpu_s: Callable[[], float] | None
    """Processor time so far (seconds); None: the server is none of ours."""
    tls: TlsOptions | None = None


@contextmanager
def _server(args: argparse.Namespace, console: Console) -> Iterator[_Server]:
    if args.server or args.gateway:
        yield _Server(args.server or args.gateway, None, read_tls_options(args) if args.server else None)
        return
    args.profile = args.profile or default_profile()
    with own_server(console, "capacity", profile=args.profile, environment=UNLIMITED) as own:
        yield _Server(own.endpoints.grpc, lambda: sum(process.cpu_s for process in own.usage()))


def _questions(args: argparse.Namespace) -> list[ScriptTurn]:
    """What callers say: the turns that are spoken, one after the other's answer.

    Raises:
        ClientError: there are none.
    """
    path = args.script or default_script(args.profile)
    if args.script is None and not path.exists():
        raise ClientError("the recordings are in the repository: run this in a checkout, or give --script")
    turns = [turn for turn in load_script(path).turns if len(turn.samples) and turn.barge_in_ms is None]
    if not turns:
        raise ClientError(f"{path}: no turn of it is spoken after an answer")
    return turns


@dataclass(frozen=True)
class _Search:
    args: argparse.Namespace
    console: Console
    plan: CallPlan
    server: _Server
    levels: list[LevelResult]
    """Filled level by level, so that an interrupted search has those that were held."""

    async def run(self) -> int:
        self.console.print("Warming up with a call that does not count …")
        warm_up = await hold_level(self.plan, 1, _WARM_UP_TURNS, self.args.p95_ms)
        if warm_up.refused or warm_up.lost:
            async with self.plan.connect():  # its error has the reason, of which a level has the code
                pass
            raise ClientError(f"a single call failed: {', '.join(warm_up.refused + warm_up.lost)}")
        if warm_up.overdue_s is not None and not warm_up.turns:
            raise ClientError(f"a single call held no turn within {warm_up.overdue_s:.0f} s")
        found = await find_capacity(self._judge, start=self.args.start, most=self.args.most)
        return 0 if found.held else 1

    async def _judge(self, calls: int) -> Verdict:
        args = self.args
        self.console.print(f"{calls} at once …", highlight=False)
        gpus = gpu_reader() if self.server.cpu_s else None
        usage = UsageMeter(self.server.cpu_s, gpus)
        level = await hold_level(self.plan, calls, args.turns, args.p95_ms, usage)
        self.levels.append(level)
        tail = level.tail
        p95 = f"p95 {tail.value:.0f} ms ({tail.low:.0f} to {tail.high:.0f}), " if tail else ""
        self.console.print(f"  {level.verdict}: {p95}{level.turns} turns", style="dim", highlight=False)
        return level.verdict


def _result(args: argparse.Namespace, levels: list[LevelResult], *, is_complete: bool = True) -> Capacity:
    found = summarize([(level.calls, level.verdict) for level in levels])
    return Capacity(found, levels, args.p95_ms, args.fill, args.price_per_hour, is_complete)


def _report(capacity: Capacity, args: argparse.Namespace, console: Console) -> None:
    console.print(capacity.table())
    for line in capacity.lines():
        console.print(line, highlight=False)
    if args.json:
        try:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            args.json.write_text(json.dumps(capacity.to_json(), indent=1))
        except OSError as error:
            raise ClientError(f"{args.json} cannot be written: {error.strerror}") from error
        console.print(f"All figures: {args.json}", highlight=False)
