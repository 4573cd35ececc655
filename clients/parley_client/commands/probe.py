"""``parley probe``: is the agent really answering?"""

from __future__ import annotations

import argparse
import json
import time

from rich.console import Console

from parley.errors import ParleyError
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
        The exit status: 1 if the agent did not answer and --json says why.

    Raises:
        ParleyError: the agent did not answer.
    """
    began = time.perf_counter()
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
        if not args.json:
            raise
        result |= {"code": error.code, "error": str(error), "retryable": error.retryable}
    if args.json:
        print(json.dumps(result))
    else:
        console.print(
            f"[green]ok[/]: {args.server} opened a session in {result['connect_ms']} ms "
            f"and closed it in {result['close_ms']} ms"
        )
    return 0 if result["ok"] else 1


def _since_ms(began: float) -> float:
    return round(1000 * (time.perf_counter() - began), 1)
