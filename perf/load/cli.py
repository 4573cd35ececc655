"""The command: a server, a gateway, locust before them, and what came of it."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from soak_gateway import gateway

from load.plan import CHUNKS_MS, Habits
from load.recordings import load_repertoire
from load.report import NAME, Report, read_report, tables
from parley.errors import ParleyError
from parley.launcher.options import ROOT, TINY_PROFILE
from parley_client.cli.arguments import handle_signals
from parley_client.cli.output import until_closed
from parley_client.cli.own_server import UNLIMITED, own_server, profile_name
from parley_client.cli.view import make_console
from parley_client.errors import AudioFileError, ClientError, OutputClosedError

LOCUST = ROOT / ".venv-frameworks" / "bin" / "locust"
_LOCUSTFILE = ROOT / "perf" / "locustfile.py"
_TINY_RECORDINGS = ROOT / "tests" / "data" / "conversation"
_RECORDINGS = ROOT / "tests" / "data" / "open_conversation"
# A caller that vanishes keeps its session until it was idle for so long.
_SERVER = {**UNLIMITED, "PARLEY_VOICE_AGENT_IDLE_LIMIT_S": "10"}
# All callers have one address. What the gateway holds as a whole is not changed.
_GATEWAY = {"PARLEY_GATEWAY_CALLS_PER_KEY": "100000", "PARLEY_GATEWAY_SESSIONS_WAITING_PER_KEY": "100000"}
_START_S = 60.0
_END_S = 120.0
_KILL_S = 10.0
_CLASSES = {"grpc": "GrpcCaller", "websocket": "WebSocketCaller"}


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line; exits with 2 where it is wrong."""
    parser = argparse.ArgumentParser(
        prog="load", description="Many callers talk to a server and its gateway.", epilog="See docs/load.md."
    )
    add = parser.add_argument
    add("--users", type=int, default=4, help="callers at once, half of each kind (default: %(default)s)")
    add("--minutes", type=float, default=5.0, help="then all hang up (default: %(default)g)")
    add(
        "--arrivals-per-minute",
        type=float,
        default=0.0,
        metavar="RATE",
        help="calls begin at this rate, however many last; --users has no meaning then",
    )
    add("--spawn-rate", type=float, default=1.0, help="new callers per second (default: %(default)g)")
    add("--workers", type=int, default=2, help="processes of locust (default: %(default)s)")
    add(
        "--profile",
        type=profile_name,
        metavar="NAME",
        default=TINY_PROFILE,
        help="of the server, and of what is said (default: %(default)s)",
    )
    add("--server", metavar="HOST:PORT", help="a running server (default: starts one)")
    add("--gateway", metavar="URL", help="a running gateway (default: starts one)")
    add("--only", choices=list(_CLASSES), help="only callers of this kind")
    add("--recordings", type=Path, metavar="FOLDER", help="what is said (default: that of the profile)")
    habits = Habits()
    add("--turns", default=f"{habits.turns[0]}-{habits.turns[1]}", help="of a call (default: %(default)s)")
    for name, meaning in (
        ("interrupt", "that an answer is spoken over"),
        ("early", "that a call is hung up in the middle of a turn"),
        ("vanish", "that a connection is dropped in the middle of a turn"),
    ):
        usual = getattr(habits, name)
        add(f"--{name}", type=float, default=usual, metavar="P", help=f"probability {meaning} ({usual:g})")
    add("--cancel-streams", action="store_true", help="vanish by cancelling: for Triton 25.04 and later")
    add("--chunk-ms", choices=[*map(str, CHUNKS_MS), "any"], default="any", help="of the microphones")
    add("--seed", type=int, default=1, help="of what the callers do (default: %(default)s)")
    add("--out", type=Path, default=ROOT / "out" / "load", metavar="FOLDER", help="default: out/load")
    args = parser.parse_args(argv)
    if args.users < 1 or args.workers < 1 or args.minutes <= 0 or args.spawn_rate <= 0:
        parser.error("users, workers, minutes and the spawn rate are above 0")
    if args.arrivals_per_minute < 0:
        parser.error("the rate of arrivals is above 0")
    if args.only == "grpc" and args.gateway:
        parser.error("--only grpc calls no gateway")
    if not args.recordings:
        args.recordings = _TINY_RECORDINGS if args.profile == TINY_PROFILE else _RECORDINGS
    try:
        fewest, _, most = args.turns.partition("-")
        args.turns = (int(fewest), int(most or fewest))
        Habits(turns=args.turns, interrupt=args.interrupt, early=args.early, vanish=args.vanish)
        load_repertoire(args.recordings)  # the callers read it only when there is a server
    except (ValueError, AudioFileError) as error:
        parser.error(str(error))
    return args


def locust_command(args: argparse.Namespace, addresses: Mapping[str, str], port: int) -> list[str]:
    """The command of locust.

    Args:
        args: of the command line.
        addresses: of the ways that are taken, by their name: of the server (``grpc``), of the gateway
            (``websocket``).
        port: that the workers reach their master at.
    """
    # With a rate each user is one of the sources whose arrivals add up to it.
    users = len(addresses) * args.workers if args.arrivals_per_minute else args.users
    options: dict[str, object] = {
        "--locustfile": _LOCUSTFILE,
        "--users": users,
        "--spawn-rate": args.spawn_rate,
        "--processes": args.workers,
        "--master-host": "127.0.0.1",
        "--master-port": port,
        "--master-bind-host": "127.0.0.1",
        "--master-bind-port": port,
        "--expect-workers-max-wait": round(_START_S),
        "--csv": args.out / NAME,
        "--html": args.out / "report.html",
        "--exit-code-on-error": 0,
        "--minutes": args.minutes,
        "--arrivals-per-minute": args.arrivals_per_minute,
        "--turns-from": args.turns[0],
        "--turns-to": args.turns[1],
        "--interrupt": args.interrupt,
        "--early": args.early,
        "--vanish": args.vanish,
        "--chunk-ms": args.chunk_ms,
        "--seed": args.seed,
        "--recordings": args.recordings,
    }
    if "grpc" in addresses:
        options["--server"] = addresses["grpc"]
    if "websocket" in addresses:
        options["--gateway"] = addresses["websocket"]
    flags = ["--headless", "--csv-full-history", "--only-summary"]
    flags += ["--cancel-streams"] if args.cancel_streams else []
    named = [str(part) for pair in options.items() for part in pair]
    return [str(LOCUST), *flags, *named, *(_CLASSES[way] for way in addresses)]


def main(argv: Sequence[str] | None = None) -> int:
    """Make the load; the exit status is 1 if a call was lost, and 130 after Ctrl-C."""
    args, console = parse(argv), make_console()
    return until_closed(lambda: _load(args, console))


def _load(args: argparse.Namespace, console: Console) -> int:
    try:
        with handle_signals(signal.default_int_handler), ExitStack() as stack:
            addresses = _addresses(args, console, stack)
            _run(args, addresses, console)
        report = read_report(args.out)
    except OutputClosedError:
        raise
    except (ParleyError, OSError) as error:
        console.print(f"load: {error}", style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("Interrupted.")
        return 130
    return _print(args, report, console)


def _addresses(args: argparse.Namespace, console: Console, stack: ExitStack) -> dict[str, str]:
    """Of the ways that are taken; starts what is not given."""
    server = args.server
    if args.gateway and not server:
        return {"websocket": args.gateway}  # the server behind it is not known
    if not server:
        own = own_server(console, "load", profile=args.profile, environment=_SERVER)
        server = stack.enter_context(own).endpoints.grpc
    found = {} if args.only == "websocket" else {"grpc": server}
    if args.only != "grpc":
        found["websocket"] = args.gateway or stack.enter_context(gateway(server, _GATEWAY))
    return found


def _run(args: argparse.Namespace, addresses: Mapping[str, str], console: Console) -> None:
    """Run locust to its end.

    Raises:
        ClientError: it failed.
    """
    if not LOCUST.exists():
        raise ClientError(".venv-frameworks is missing: use `make load`")
    args.out.mkdir(parents=True, exist_ok=True)
    for old in args.out.glob(f"{NAME}_*.csv"):
        old.unlink()
    log = args.out / "locust.log"
    command = locust_command(args, addresses, _free_port())
    rate = args.arrivals_per_minute
    who = f"{rate:g} calls a minute" if rate else f"{args.users} callers"
    console.print(f"{who} for {args.minutes:g} minutes; the log is {log} …", highlight=False)
    environment = os.environ | {"PYTHONPATH": str(_LOCUSTFILE.parent), "GRPC_ENABLE_FORK_SUPPORT": "0"}
    with log.open("w") as output:
        print(shlex.join(command), file=output, flush=True)
        # A group of its own, so that the workers can be ended with their master.
        process = subprocess.Popen(
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environment, process_group=0
        )
        try:
            status = process.wait(_START_S + 60 * args.minutes + _END_S)
        except subprocess.TimeoutExpired as error:
            raise ClientError(f"locust did not end; its log is {log}") from error
        finally:
            _end(process)
    if status:
        raise ClientError(f"locust ended with status {status}; its log is {log}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End locust and all of its workers."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, how)
            process.wait(_KILL_S)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait(_KILL_S)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


def _print(args: argparse.Namespace, report: Report, console: Console) -> int:
    for table in tables(report):
        console.print(table)
    ended = f"{report.calls} calls, {report.lost} lost, {report.refused} refused"
    console.print(f"{ended}. The report is {args.out / 'report.html'}.", highlight=False)
    if report.problem:
        console.print(f"load: {report.problem}", style="red", markup=False)
    return 1 if report.problem else 0
