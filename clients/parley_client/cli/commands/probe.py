"""``parley probe``: does every model really answer?"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.markup import escape

from parley.canaries.asking import CanaryResult, ask_models
from parley.canaries.connection import address_of
from parley.errors import ParleyError
from parley.tls import TlsOptions
from parley_client.cli.arguments import add_server, read_tls_options
from parley_client.cli.output import plain_table
from parley_client.connection import connect
from parley_client.errors import ClientError
from parley_client.options import NO_RETRY, Deadlines
from parley_stages.server import open_server

EXAMPLES = """\
  parley probe                     every model of 127.0.0.1:8001
  parley probe --agent restaurant
                                   also opens a session of that agent
  parley probe --json --server 10.0.0.5:8001
                                   for a health check; the exit status says it, too"""
HELP = "ask every model something real: a health check that runs each model"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.add_argument(
        "--agent",
        dest="agents",
        action="append",
        default=[],
        metavar="NAME",
        help="also open a session of an agent that the server defines; repeatable",
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    add_server(parser, limits="connecting, and for each model")


async def run(args: argparse.Namespace, console: Console) -> int:
    """Ask every model of the server, and list what they answered.

    Returns:
        The exit status: 1 if a model failed, or the server did not answer and --json prints why.

    Raises:
        ParleyError: the server did not answer.
    """
    try:
        tls = read_tls_options(args)
        results = await _ask(args.server, tls, args.timeout)
        for name in args.agents:
            results.append(await _open_agent(name, args.server, tls, args.timeout))
    except ParleyError as error:
        if not args.json:
            raise
        failure = {"code": error.code, "error": str(error), "retryable": error.retryable}
        print(json.dumps({"server": args.server, "ok": False, **failure}))
        return 1
    is_ok = all(result.ok for result in results)
    if args.json:
        models = [asdict(result) for result in results]
        print(json.dumps({"server": args.server, "ok": is_ok, "models": models}))
    else:
        _print(results, console)
        failed = sum(not result.ok for result in results)
        console.print(
            f"[green]ok[/]: every model of {args.server} answers"
            if is_ok
            else f"[red]failed[/]: {failed} of the {len(results)} models of {args.server}"
        )
    return 0 if is_ok else 1


async def _open_agent(name: str, server: str, tls: TlsOptions | None, timeout_s: float) -> CanaryResult:
    """Open and close a session of an agent, which says nothing meanwhile."""
    began = time.perf_counter()
    detail, is_ok = "a session was opened", True
    try:
        async with connect(
            server,
            agent=name,
            greeting="",
            resume=False,
            retry=NO_RETRY,
            deadlines=Deadlines(connect_s=timeout_s),
            tls=tls,
        ):
            pass
    except ParleyError as error:
        detail, is_ok = str(error), False
    return CanaryResult(f"voice_agent {name}", is_ok, 1000 * (time.perf_counter() - began), detail)


async def _ask(server: str, tls: TlsOptions | None, timeout_s: float) -> list[CanaryResult]:
    # Connecting has the clearest errors for a wrong address.
    async with open_server(server, tls=tls, timeout_s=timeout_s):
        pass
    results = await asyncio.to_thread(ask_models, address_of(server, tls), timeout_s)
    if not results:
        raise ClientError(f"{server} has no model")
    return results


def _print(results: Sequence[CanaryResult], console: Console) -> None:
    table = plain_table("model", "", "ms", "", right=("ms",))
    for result in results:
        state = "[green]ok[/]" if result.ok else "[red]failed[/]"
        table.add_row(result.model, state, f"{result.duration_ms:.1f}", escape(result.detail))
    console.print(table)
