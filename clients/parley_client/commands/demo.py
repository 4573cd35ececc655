"""``parley demo``: a recorded conversation with an agent of your own, on this machine."""

from __future__ import annotations

import argparse
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from parley_client.commands.advice import CHECKOUT
from parley_client.commands.common import (
    add_pacing,
    add_timeout,
    address,
    check_output,
    handle_signals,
    positive,
    run_to_end,
)
from parley_client.commands.play import play
from parley_client.commands.session import add_session
from parley_client.conversation import DEFAULT_TURN_TIMEOUT_S
from parley_client.errors import ClientError, OutputClosedError
from parley_client.script import load_script

if TYPE_CHECKING:
    from parley.launcher import EmbeddedServer

HELP = "start a server, play a recorded conversation with it, and show where the time goes"
_SCRIPT = CHECKOUT / "examples" / "conversation.toml"
_OUT = Path("out") / "demo-call.wav"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.add_argument(
        "--server", type=address, metavar="HOST:PORT", help="use a running server instead of starting one"
    )
    parser.add_argument(
        "--script", type=Path, default=_SCRIPT, help="the conversation (default: %(default)s)"
    )
    parser.add_argument(
        "--out", type=Path, default=_OUT, help="the call as stereo WAV (default: %(default)s)"
    )
    parser.add_argument(
        "--turn-timeout",
        type=positive,
        default=DEFAULT_TURN_TIMEOUT_S,
        metavar="S",
        help="longest wait for an answer (default: %(default)s s)",
    )
    parser.set_defaults(verbose=True)
    add_pacing(parser)
    add_timeout(parser)
    add_session(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Play the demonstration.

    Raises:
        ParleyError: the script cannot be read, the server cannot start, or the call failed.
    """
    if args.script == _SCRIPT and not _SCRIPT.exists():
        raise ClientError("the demonstration needs the repository: run `make demo` in a checkout of it")
    check_output(args.out)
    script = load_script(args.script)
    if script.title:
        console.rule(escape(script.title))
    with running_server(args.server, console) as args.server:
        return run_to_end(play(args, console, script, args.out))


@contextmanager
def running_server(given: str | None, console: Console) -> Iterator[str]:
    """The gRPC address of a server: the given one, or one that is started now and stopped afterwards.

    Raises:
        ClientError: it cannot start.
    """
    if given is not None:
        yield given
        return
    launcher = _load_launcher()
    options = launcher.ServerOptions(
        state_dir=CHECKOUT / ".server" / "demo", grpc_port=0, http_port=0, metrics_port=0
    )
    server = launcher.EmbeddedServer(options, on_progress=partial(_tell, console))
    console.print("Starting Triton with the agent's models …")
    began = time.perf_counter()
    try:
        with console.status("Loading the models …"):
            server.start()
        console.print(f"Ready after {time.perf_counter() - began:.1f} s at {server.endpoints.grpc}.\n")
        yield server.endpoints.grpc
    except launcher.LauncherError as error:
        raise ClientError(str(error)) from error
    finally:
        stop(server, console)


def _tell(console: Console, line: str) -> None:
    with suppress(OSError, OutputClosedError):  # a reader that left must not keep the server up
        console.print(f"server: {line}", style="dim", markup=False)


def _load_launcher() -> ModuleType:
    """The launcher, which a client without the server's packages does not have.

    Raises:
        ClientError: something that the server needs is not installed.
    """
    try:
        import parley.launcher  # noqa: PLC0415
    except ImportError as error:
        raise ClientError(
            f"no server can be started here ({error}); run `make demo` in a checkout, or use --server"
        ) from error
    return parley.launcher


def stop(server: EmbeddedServer, console: Console) -> None:
    """Stop; a further signal does not interrupt the clean-up but hastens it."""
    with handle_signals(lambda *_: server.kill(), signal.SIGINT):
        if server.pid:
            _tell(console, "stopping … (Ctrl-C: at once)")
        server.stop()
