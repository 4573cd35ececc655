"""``parley probe``: is the agent really answering?"""

from __future__ import annotations

import argparse
import json
import time

from rich.console import Console
from rich.markup import escape

from parley.errors import ParleyError
from parley_client.commands.advice import advice
from parley_client.commands.common import add_server
from parley_client.connection import connect
from parley_client.errors import ClientError
from parley_client.options import NO_RETRY, Deadlines

HELP = "open a session and close it again: a health check that does not lie"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    add_server(parser)


async def run(args: argparse.Namespace, console: Console) -> int:
    """Open and close a session.

    Returns:
        0 if the agent answered, 1 if it did not.
    """
    began = time.perf_counter()
    what_to_do = ""
    result: dict[str, object] = {"server": args.server, "ok": False}
    deadlines = Deadlines(connect_s=args.timeout, close_s=args.timeout)
    try:
        async with connect(args.server, retry=NO_RETRY, deadlines=deadlines) as call:
            result["connect_ms"] = _since_ms(began)
            closing = time.perf_counter()
            if await call.hang_up() is None:
                raise ClientError("the server did not close the session")
            result["close_ms"] = _since_ms(closing)
            result["ok"] = True
    except ParleyError as error:
        result |= {"code": error.code, "error": str(error), "retryable": error.retryable}
        what_to_do = advice(error, args.server)
    if args.json:
        print(json.dumps(result))
    elif result["ok"]:
        console.print(
            f"[green]ok[/]: {args.server} opened a session in {result['connect_ms']} ms "
            f"and closed it in {result['close_ms']} ms"
        )
    else:
        console.print(f"[red]not ok[/]: {escape(str(result['error']))} ({result['code']})")
        if what_to_do:
            console.print(what_to_do)
    return 0 if result["ok"] else 1


def _since_ms(began: float) -> float:
    return round(1000 * (time.perf_counter() - began), 1)
