"""A server of one's own on this machine, for as long as a command or a measurement needs it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rich.console import Console

from parley_client.cli import CHECKOUT
from parley_client.cli.arguments import handle_signals
from parley_client.errors import ClientError, OutputClosedError

if TYPE_CHECKING:
    from parley.launcher import EmbeddedServer


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
def own_server(console: Console, name: str, **options: Any) -> Iterator[EmbeddedServer]:
    """A server that is started now, on free ports, and stopped afterwards.

    Args:
        console: shows the progress.
        name: of the folder in ``.server`` for its state and log.
        options: further ones of :class:`parley.launcher.ServerOptions`.

    Raises:
        ClientError: it cannot start.
    """
    launcher = _load_launcher()
    chosen = launcher.ServerOptions(
        state_dir=CHECKOUT / ".server" / name, grpc_port=0, http_port=0, metrics_port=0, **options
    )
    server = launcher.EmbeddedServer(chosen, on_progress=partial(_print_line, console))
    try:
        server.check_settings()
        launcher.bring_weights(chosen)
        console.print("Starting Triton with the agent's models …")
        began = time.perf_counter()
        with console.status("Loading the models …"):
            server.start()
        console.print(f"Ready after {time.perf_counter() - began:.1f} s at {server.endpoints.grpc}.\n")
        yield server
    except launcher.LauncherError as error:
        raise ClientError(str(error)) from error
    finally:
        _stop(server, console)


def default_profile() -> str:
    """The profile of the commands that start a server.

    Raises:
        ClientError: something that the server needs is not installed.
    """
    profile: str = _load_launcher().DEFAULT_PROFILE
    return profile


def project_profiles() -> list[str]:
    """Names of the profiles of the project's models.

    Raises:
        ClientError: something that the server needs is not installed.
    """
    profiles: list[str] = _load_launcher().list_profiles(CHECKOUT / "model_repository")
    return profiles


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
