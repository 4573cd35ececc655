"""``parley demo``: a recorded conversation with an agent of your own, on this machine."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from parley_client.cli import CHECKOUT
from parley_client.cli.arguments import (
    add_events,
    add_pacing,
    add_session,
    add_timeout,
    add_verbose,
    address,
    check_output,
    run_to_end,
)
from parley_client.cli.commands.calls import own_calls
from parley_client.cli.commands.say import play
from parley_client.cli.conversation import DEFAULT_TURN_TIMEOUT_S
from parley_client.cli.own_server import add_profile, default_profile, running_server
from parley_client.cli.script import Script, load_script
from parley_client.errors import ClientError

PORT = 8080
"""The gateway's own; if that is taken, any free one."""

EXAMPLES = """\
  parley demo                      a server, a recorded conversation with it, and where the time goes
  parley demo --stay               keep the server and its page up afterwards
  parley demo --server 127.0.0.1:8001 --no-demo-tools
                                   with a server that runs already, and has tools of its own"""
HELP = "start a server, play a recorded conversation with it, and show where the time goes"
_EXAMPLES = CHECKOUT / "examples"
_SMALL_WORLD = "tiny"
"""The profile whose models understand a few sentences only."""
_SLOW_MS = 1_100.0
"""The goal for the 95th percentile in the profile open; a median above it is that of a slow machine."""
_OUT = Path("out") / "demo-call.wav"


@asynccontextmanager
async def serve_page(server: str, calls: Path | None) -> AsyncIterator[str | None]:
    """A gateway on this machine in front of a server; its URL, or None if it is not installed.

    ``calls``: where the server records calls, which the page shows; None: it shows none.
    """
    if importlib.util.find_spec("fastapi") is None:
        yield None
        return
    from parley_gateway.errors import GatewaySettingsError  # noqa: PLC0415 - an optional extra
    from parley_gateway.serving import running  # noqa: PLC0415
    from parley_gateway.settings import load_settings  # noqa: PLC0415

    async with AsyncExitStack() as stack:
        url = None
        for port in (PORT, 0):
            flags: dict[str, dict[str, Any]] = {
                "listen": {"host": "127.0.0.1", "port": port},
                "servers": {"addresses": [server]},
                "calls": {"folder": str(calls) if calls is not None else None},
            }
            try:
                url = (await stack.enter_async_context(running(load_settings(None, {}, flags)))).url
            except GatewaySettingsError:
                if port == 0:
                    raise
            else:
                break
        yield url


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.add_argument(
        "--server", type=address, metavar="HOST:PORT", help="use a running server instead of starting one"
    )
    add_profile(parser, "of the models of the server that is started, or is running (see parley models)")
    parser.add_argument(
        "--script", type=Path, help="the conversation (default: one of examples/ that fits the profile)"
    )
    parser.add_argument(
        "--out", type=Path, default=_OUT, help="the call as stereo WAV (default: %(default)s)"
    )
    parser.add_argument(
        "--stay",
        action=argparse.BooleanOptionalAction,
        help="keep server and page up afterwards, until Ctrl-C (default: on a terminal)",
    )
    add_verbose(parser)
    add_events(parser)
    add_pacing(parser, DEFAULT_TURN_TIMEOUT_S)
    add_timeout(parser)
    add_session(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Play the demonstration.

    Raises:
        ParleyError: the script cannot be read, the server cannot start, or the call failed.
    """
    path = args.script or default_script(args.profile)
    if args.script is None and not path.exists():
        raise ClientError("the demonstration needs the repository: run `make demo` in a checkout of it")
    check_output(args.out)
    own = load_script(path) if args.script else None
    options: dict[str, Any] = {}
    args.calls = own_calls() if args.server is None else None
    if args.server is None:
        profile = args.profile or default_profile()
        options = {"profile": profile, "is_brief": not args.verbose, "usual_ports": True}
    with running_server(args.server, console, "demo", **options) as args.server:
        # The recordings of people come with the weights, which may not have been there before.
        script = own or load_script(path)
        if script.title:
            console.rule(escape(script.title))
        for text in script.left_out:
            console.print(escape(f"Left out, as its recording is not here: “{text}”"))
        return run_to_end(_hold(args, console, script))


def default_script(profile: str | None) -> Path:
    """The conversation that a profile's models understand; None: the usual profile."""
    return _EXAMPLES / ("conversation.toml" if profile == _SMALL_WORLD else "open_conversation.toml")


async def _hold(args: argparse.Namespace, console: Console, script: Script) -> int:
    stay = console.is_terminal and sys.stdin.isatty() if args.stay is None else args.stay
    async with AsyncExitStack() as stack:
        # A page that ends with the conversation is of no use.
        url = await stack.enter_async_context(serve_page(args.server, args.calls)) if stay else None
        if url is not None:
            console.print(_invitation(url))
        status = await play(args, console, script, args.out, slow_ms=_SLOW_MS)
        if url is not None:
            console.print(f"\nNow it is your turn: [bold]{url}/[/] (Ctrl-C ends it)")
            with suppress(asyncio.CancelledError):  # Ctrl-C is the usual end
                await asyncio.Event().wait()
        return status


def _invitation(url: str) -> str:
    taken = "" if url.endswith(f":{PORT}") else f"Port {PORT} is taken, so the page has another one.\n"
    return f"{taken}Talk to it yourself at [bold]{url}/[/]\n"
