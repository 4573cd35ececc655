"""``scripts/serve``: run the embedded server until a signal stops it."""

from __future__ import annotations

import argparse
import itertools
import math
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from parley.launcher.errors import LauncherError, LauncherSettingsError, StartInterruptedError
from parley.launcher.models import bring_weights, check_models
from parley.launcher.options import (
    DEFAULT_PROFILE,
    GPU_PROFILE,
    GPU_READY_TIMEOUT_S,
    READY_TIMEOUT_S,
    ROOT,
    Endpoints,
    ServerOptions,
)
from parley.launcher.restarts import SupervisorLimits
from parley.launcher.server import EmbeddedServer
from parley.launcher.tls import ServerTls
from parley.python import parley_command
from parley.runtime.drain import process_start

EXAMPLES = """\
examples:
  scripts/serve                                   every model of the profile, on ports 8001, 8000 and 8002
  scripts/serve --load-model espeak --name mine --any-port
                                                  one model on free ports, while other servers run
  scripts/serve --verbose                         with Triton's log

When the server answers, one line is printed for programs to read:
  ready grpc=127.0.0.1:8001 http=127.0.0.1:8000 metrics=127.0.0.1:8002

A model whose process dies, is stopped or does not answer is loaded again by itself; where that does not
help, and when the server itself dies, the server is started again on the same ports. After three such
starts in ten minutes it ends with status 1. .server/NAME/supervisor.json counts all of it.
The first Ctrl-C (or SIGTERM) ends open conversations, whose clients get closed: shutdown, the
second one kills the server.
Weights that the profile needs are downloaded before the start if they are not here (docs/models.md).
Environment: PARLEY_MODELS_DIR (folder of the weights), PARLEY_LOG_FORMAT (text or json),
VLLM_CACHE_ROOT, OMP_NUM_THREADS are passed on to the models. Log: .server/NAME/triton.log
"""
_PORTS = ("grpc", "http", "metrics")
_ADDRESS = "default: %(default)s"


def parser() -> argparse.ArgumentParser:
    """The command line of ``scripts/serve``."""
    defaults = ServerOptions()
    found = argparse.ArgumentParser(
        prog="scripts/serve",
        description="Run a real Triton server with the model repository, without a container.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = found.add_argument
    add("--model-repository", type=Path, default=defaults.model_repository, metavar="DIR")
    add("--profile", default=DEFAULT_PROFILE, help="models and their configuration (default: %(default)s)")
    add(
        "--load-model",
        action="append",
        default=[],
        metavar="NAME",
        help="load only this model; may be repeated, and must name the models that it calls too",
    )
    add("--name", default="default", help="its state is kept in .server/NAME (default: %(default)s)")
    for name in _PORTS:
        usual = f"default: {getattr(defaults, f'{name}_port')}; 0: any free port"
        add(f"--{name}-port", *(["--port"] if name == "grpc" else []), type=_port, metavar="N", help=usual)
    add("--any-port", action="store_true", help="take free ports where none is given")
    for name in _PORTS:
        add(f"--{name}-address", default=getattr(defaults, f"{name}_address"), metavar="IP", help=_ADDRESS)
    add(
        "--tls-cert",
        type=Path,
        metavar="FILE",
        help="speak TLS at the gRPC port, with this certificate (PEM)",
    )
    add("--tls-key", type=Path, metavar="FILE", help="its private key (PEM)")
    add(
        "--tls-client-ca",
        type=Path,
        metavar="FILE",
        help="demand certificates of clients that this authority has signed (mutual TLS); that of the server "
        "has to be signed by it too",
    )
    add(
        "--ready-timeout",
        type=_seconds,
        metavar="SECONDS",
        help=f"limit of a start (default: {READY_TIMEOUT_S:g}, for the profile gpu {GPU_READY_TIMEOUT_S:g})",
    )
    add("--exit-timeout", type=_whole_seconds, default=defaults.exit_timeout_s, metavar="SECONDS")
    add(
        "--no-fetch",
        dest="fetch",
        action="store_false",
        help="do not download weights that the profile needs and that are not here",
    )
    add(
        "--no-restart",
        action="store_true",
        help="end with status 1 when a model or the server fails, for a supervisor of your own",
    )
    add(
        "--triton",
        type=Path,
        metavar="DIR",
        help="an installed Triton, such as /opt/tritonserver (default: that of the package nvidia-pytriton)",
    )
    add("--verbose", "-v", action="store_true", help="show Triton's log")
    add(
        "flags",
        nargs="*",
        metavar="-- TRITON_FLAGS",
        help="passed on to tritonserver, for example: -- --log-verbose=1",
    )
    return found


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) >= 65_536:
        raise argparse.ArgumentTypeError(f"a port expected, 0 to 65535, not {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"a number above 0 expected, not {text!r}")
    return value


def _whole_seconds(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"a whole number expected, not {text!r}")
    return int(text)


def read_options(arguments: argparse.Namespace) -> ServerOptions:
    """The options that the command line gives."""
    tls = None
    if arguments.tls_cert:
        tls = ServerTls(
            cert_file=arguments.tls_cert,
            key_file=arguments.tls_key,
            client_ca_file=arguments.tls_client_ca,
        )
    endpoints: dict[str, Any] = {}
    for name in _PORTS:
        port, given = f"{name}_port", getattr(arguments, f"{name}_port")
        usual = 0 if arguments.any_port else getattr(ServerOptions, port)
        endpoints[port] = usual if given is None else given
        endpoints[f"{name}_address"] = getattr(arguments, f"{name}_address").strip("[]")
    ready_timeout_s = arguments.ready_timeout
    if ready_timeout_s is None:
        ready_timeout_s = GPU_READY_TIMEOUT_S if arguments.profile == GPU_PROFILE else READY_TIMEOUT_S
    return ServerOptions(
        model_repository=arguments.model_repository.resolve(),
        profile=arguments.profile,
        load_models=tuple(arguments.load_model),
        state_dir=ROOT / ".server" / arguments.name,
        ready_timeout_s=ready_timeout_s,
        exit_timeout_s=arguments.exit_timeout,
        triton=arguments.triton,
        tls=tls,
        extra_flags=tuple(arguments.flags),
        **endpoints,
    )


DEFAULT_GRPC = "127.0.0.1:8001"
"""The address that clients use by default."""


class Console:
    """Writes to the terminal, also from a signal handler."""

    def __init__(self) -> None:
        self._begin = time.monotonic()

    def write_line(self, text: str) -> None:
        """Write a line; one that cannot be written, as on a full disk, is lost."""
        # The supervisor and the handlers of signals report before they act, and have to act.
        with suppress(OSError):
            # Not print: a signal handler must not enter a buffered file that it may have interrupted.
            # A text may have names of files that are not UTF-8.
            os.write(sys.stderr.fileno(), f"{text}\n".encode(errors="backslashreplace"))

    def write_timed(self, text: str) -> None:
        """Write a line with the time since the start."""
        self.write_line(f"[{time.monotonic() - self._begin:5.1f} s] {text}")


def stop_on_signals(server: EmbeddedServer, console: Console) -> None:
    """Stop the server at the first signal, and kill it at the second one."""
    signals = itertools.count(1)

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if next(signals) == 1:
            console.write_timed(f"{signal.Signals(number).name}: stopping")
            server.request_stop()
        else:
            console.write_timed("stopping at once")
            server.kill()

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup leaves it
        numbers.append(signal.SIGHUP)
    for number in numbers:
        signal.signal(number, on_signal)


def invitation(endpoints: Endpoints, tls: ServerTls | None = None) -> str:
    """Commands for the next steps, once every model is loaded."""
    if tls is not None:
        return "It speaks TLS: docs/client.md#tls, docs/security.md#between-gateway-and-triton"
    server = "" if endpoints.grpc == DEFAULT_GRPC else f" --server {endpoints.grpc}"
    parley = parley_command(ROOT, os.environ)
    talk, gateway = f"{parley} talk{server}", f"{parley} gateway{server}"
    if not server and (ROOT / "Makefile").is_file():  # which also sets up what they need
        talk, gateway = "make talk", "make gateway"
    return (
        "Next, in another terminal:\n"
        f"  {talk}    talk to it with your microphone\n"
        f"  {parley} say{server} FILE.wav    speak a recording to it\n"
        f"  {gateway}    let browsers and other clients in"
    )


def _parse(argv: list[str] | None) -> argparse.Namespace:
    command_line = parser()
    arguments = command_line.parse_args(argv)
    if bool(arguments.tls_cert) != bool(arguments.tls_key) or (
        arguments.tls_client_ca and not arguments.tls_cert
    ):
        command_line.error("--tls-cert and --tls-key are given together, and --tls-client-ca only with them")
    return arguments


def main(argv: list[str] | None = None) -> int:
    """Run the server and return the exit status."""
    arguments = _parse(argv)
    console = Console()
    options = read_options(arguments)
    server = EmbeddedServer(
        options,
        limits=SupervisorLimits(model_attempts=0, server_attempts=0)
        if arguments.no_restart
        else SupervisorLimits(),
        # A pod that is deleted while this program is still being loaded.
        launched_at=process_start(os.getpid()),
        on_progress=console.write_timed,
        on_log=console.write_line if arguments.verbose else lambda _: None,
    )
    try:
        check_models(options)  # a profile or model that there is not, whatever else runs
        server.check_free()
        server.check_settings()
        if arguments.fetch:
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            bring_weights(options)
        stop_on_signals(server, console)
        endpoints = server.start()
        print(endpoints.line(), flush=True)
        if not arguments.load_model:
            console.write_line(invitation(endpoints, options.tls))
        server.wait()
    except (StartInterruptedError, KeyboardInterrupt):
        return 130
    except LauncherError as error:
        console.write_line(f"error: {error}")
        return 2 if isinstance(error, LauncherSettingsError) else 1
    finally:
        server.stop()
    console.write_timed("stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
