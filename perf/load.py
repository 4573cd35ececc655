"""Load from callers by gRPC and by the gateway's WebSocket, with locust: ``make load``; perf/README.md."""

from __future__ import annotations

import argparse
import subprocess
from contextlib import ExitStack
from pathlib import Path

from harness.program import run_program
from harness.servers import local_gateway
from rich.console import Console

from parley.launcher.options import ROOT, TINY_PROFILE
from parley_client.cli.commands.demo import default_script
from parley_client.cli.own_server import UNLIMITED, own_server, profile_name

_LOCUST = ROOT / ".venv-frameworks" / "bin" / "locust"
# All callers have one address. What the gateway holds as a whole is not changed.
_GATEWAY = {"PARLEY_GATEWAY_CALLS_PER_KEY": "100000", "PARLEY_GATEWAY_SESSIONS_WAITING_PER_KEY": "100000"}
_CLASSES = {"--server": "GrpcProcess", "--gateway": "WebSocketProcess"}


def _arguments() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        prog="load",
        allow_abbrev=False,
        description="Many callers talk to a server and its gateway.",
        epilog="Other options are those of locust and of perf/locustfile.py: perf/README.md.",
    )
    add = parser.add_argument
    add("--users", type=int, default=4, help="callers at once, half of each kind (default: %(default)s)")
    add("--call-processes", type=int, default=2, help="that hold the calls (default: %(default)s)")
    add("--minutes", type=float, default=5.0, help="then all hang up (default: %(default)g)")
    add("--profile", type=profile_name, metavar="NAME", default=TINY_PROFILE, help="of the server")
    add("--server", metavar="HOST:PORT", help="a running server (default: starts one)")
    add("--gateway", metavar="URL", help="a running gateway (default: starts one)")
    add("--out", type=Path, default=ROOT / "out" / "load", metavar="FOLDER", help="default: out/load")
    args, rest = parser.parse_known_args()
    if args.call_processes < 1 or args.users < args.call_processes or args.minutes <= 0:
        parser.error("minutes are above 0, and there are as many users as processes, or more")
    return args, rest


def _addresses(args: argparse.Namespace, console: Console, stack: ExitStack) -> dict[str, str]:
    """What is called, by the option of locust; starts what no option names."""
    server, gateway = args.server, args.gateway
    if not (server or gateway):
        own = own_server(console, "load", profile=args.profile, environment=UNLIMITED)
        server = stack.enter_context(own).endpoints.grpc
    if not gateway:
        gateway = stack.enter_context(local_gateway(server, _GATEWAY)).url
    # The server behind a gateway that was given alone is not known.
    return {"--server": server, "--gateway": gateway} if server else {"--gateway": gateway}


def _locust(args: argparse.Namespace, addresses: dict[str, str], rest: list[str]) -> int:
    """Run locust to its end; its exit status."""
    options = {
        "--locustfile": ROOT / "perf" / "locustfile.py",
        "--users": args.call_processes,
        "--spawn-rate": args.call_processes,
        "--callers": args.users // args.call_processes,
        "--run-time": f"{round(60 * args.minutes)}s",
        "--stop-timeout": 60,  # a turn is heard out before its caller hangs up
        "--csv": args.out / "load",
        "--html": args.out / "report.html",
        "--script": default_script(args.profile),
        **addresses,
    }
    command = [str(_LOCUST), "--headless", "--only-summary", "--csv-full-history"]
    command += [str(part) for pair in options.items() for part in pair]
    args.out.mkdir(parents=True, exist_ok=True)
    return subprocess.run([*command, *rest, *(_CLASSES[one] for one in addresses)], check=False).returncode


def main() -> int:
    """Make the load; the exit status is 1 if a call was lost."""
    args, rest = _arguments()

    def measure(console: Console) -> int:
        with ExitStack() as stack:
            status = _locust(args, _addresses(args, console, stack), rest)
        console.print(f"The report is {args.out / 'report.html'}.", highlight=False)
        return status

    return run_program("load", measure, OSError)
