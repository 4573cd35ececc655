"""A server of one's own on this machine, for as long as a command or a measurement needs it."""

from __future__ import annotations

import argparse
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from parley.names import suggest_name
from parley_client.cli import CHECKOUT
from parley_client.cli.arguments import handle_signals
from parley_client.errors import ClientError, OutputClosedError

if TYPE_CHECKING:
    from parley.launcher import EmbeddedServer


UNLIMITED = {
    "PARLEY_VOICE_AGENT_MAX_SESSIONS": "32",
    "PARLEY_VOICE_AGENT_MAX_CALLS": "0",
    "PARLEY_VOICE_AGENT_REFUSE_WHEN_LATE": "false",
}
"""Environment of a server that is measured: it accepts more calls than it is to hold."""
_MOST_LINES = 10_000


@contextmanager
def running_server(given: str | None, console: Console, name: str, **options: Any) -> Iterator[str]:
    """The gRPC address of a server: the given one, or an own one; see :func:`own_server`.

    Raises:
        ClientError: it cannot start.
    """
    if given is not None:
        yield given
        return
    with own_server(console, name, **options) as server:
        yield server.endpoints.grpc


@contextmanager
def own_server(
    console: Console, name: str, *, is_brief: bool = False, usual_ports: bool = False, **options: Any
) -> Iterator[EmbeddedServer]:
    """A server that is started now, on free ports, and stopped afterwards.

    Args:
        console: shows the progress.
        is_brief: the launcher's lines while it starts are shown one at a time in a terminal, and kept in
            the file of those that come later.
        usual_ports: take the ports of `make serve` where they are free.
        name: of the folder in ``.server`` for its state and log.
        options: further ones of :class:`parley.launcher.ServerOptions`.

    Raises:
        ClientError: it cannot start.
    """
    launcher = _load_launcher()
    state = CHECKOUT / ".server" / name
    if usual_ports:
        chosen = launcher.leave_busy_ports(launcher.ServerOptions(state_dir=state, **options))
    else:
        chosen = launcher.ServerOptions(state_dir=state, grpc_port=0, http_port=0, metrics_port=0, **options)
    progress = _Progress(console, state / "launcher.log")
    server = launcher.EmbeddedServer(chosen, on_progress=progress.on_line)
    try:
        server.check_free()
        server.check_settings()
        launcher.bring_weights(chosen)
        console.print("Starting Triton with the agent's models …")
        began = time.perf_counter()
        with console.status("Loading the models …") as status:
            progress.status = status if is_brief else None
            server.start()
        progress.status = None
        console.print(f"Ready after {time.perf_counter() - began:.1f} s at {server.endpoints.grpc}.")
        progress.is_apart = True
        yield server
    except launcher.LauncherError as error:
        raise ClientError(str(error)) from error
    finally:
        progress.is_apart, progress.status = False, None
        _stop(server, console)
        if progress.count_apart:
            _print_line(console, f"{progress.count_apart} lines about it meanwhile: {progress.file}")


class _Progress:
    """The launcher's lines: on the console while the server starts and stops, in a file while it is used."""

    def __init__(self, console: Console, file: Path) -> None:
        self.is_apart = False
        self.status: Status | None = None
        """Shows the newest line while the server starts; None: each line stays."""
        self.count_apart = 0
        """How many lines have come while they went to the file."""
        self.file = file
        self._console = console
        self._noted = 0

    def on_line(self, line: str) -> None:
        """Take a line; called by the launcher's threads, too, one at a time."""
        status = self.status  # the main thread ends it
        if status is not None:
            status.update(f"Loading the models: {escape(line)}")
            self._note(line)
        elif self.is_apart:
            self.count_apart += 1
            self._note(line)
        else:
            _print_line(self._console, line)

    def _note(self, line: str) -> None:
        self._noted += 1
        if self._noted <= _MOST_LINES:
            with suppress(OSError), self.file.open("a" if self._noted > 1 else "w") as file:
                file.write(f"{time.strftime('%H:%M:%S')} {line}\n")


def default_profile() -> str:
    """The profile of the commands that start a server.

    Raises:
        ClientError: something that the server needs is not installed.
    """
    profile: str = _load_launcher().DEFAULT_PROFILE
    return profile


def add_profile(parser: Any, what: str, default: str | None = None) -> None:
    """``--profile``, to a parser or a group of one."""
    parser.add_argument("--profile", type=profile_name, metavar="NAME", default=default, help=what)


def profile_name(text: str) -> str:
    """The name of a profile of the project's models, as an argument.

    A client without the server's packages, or without a checkout, has no list of them: any name will do.
    """
    try:
        profiles: list[str] = _load_launcher().list_profiles(CHECKOUT / "model_repository")
    except ClientError:
        return text
    if profiles and text not in profiles:
        raise argparse.ArgumentTypeError(
            f"no profile {text!r}{suggest_name(text, profiles)}; there are {', '.join(profiles)}"
        )
    return text


def _print_line(console: Console, line: str) -> None:
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


def _stop(server: EmbeddedServer, console: Console) -> None:
    """Stop; a further signal does not interrupt the clean-up but kills the server at once."""
    with handle_signals(lambda *_: server.kill(), signal.SIGINT):
        if server.pid:
            _print_line(console, "stopping … (Ctrl-C: at once)")
        server.stop()
