"""``make cluster``: what scaling, deployments and faults do to calls; each part has a node of its own."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.judge import Outcome, print_checks, print_outcomes, spoken_turns
from harness.network import Network
from harness.report import write_json
from harness.servers import remove_left
from rich.console import Console

from cluster.scenarios import SCENARIOS, Scene
from cluster.site import Site
from parley.errors import ParleyError
from parley.launcher.options import DEFAULT_PROFILE, TINY_PROFILE
from parley_client.cli.arguments import run_to_end
from parley_client.cli.commands.demo import default_script
from parley_client.cli.output import until_closed
from parley_client.cli.own_server import profile_name
from parley_client.cli.script import load_script
from parley_client.cli.view import make_console


async def _measure(args: argparse.Namespace, console: Console, outcomes: list[Outcome]) -> int:
    """Run the scenarios; returns the exit status."""
    turns = spoken_turns(load_script(default_script(args.profile)).turns)
    with remove_left(), Network() as network, _logs(args.logs) as folder:
        site = Site(
            network,
            folder,
            profile=args.profile,
            workers=args.workers,
            gateways=args.gateways,
            calls=args.calls,
        )
        await site.start(lambda text: console.print(text, highlight=False))
        for name in args.scenarios:
            console.print(f"{name}: {args.calls} callers …", highlight=False)
            scene = Scene(name, site, turns, args.calls, args.turns)
            await SCENARIOS[name].run(scene)
            outcomes.append(scene.outcome)
            print_checks(console, scene.outcome)
    return 0 if outcomes and all(outcome.passed for outcome in outcomes) else 1


@contextmanager
def _logs(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True)
        yield kept.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="parley-cluster-") as folder:
        yield Path(folder)


def main() -> int:
    """Run the scenarios.

    The exit status is 1 if a check failed or had nothing to check, and 130 after Ctrl-C.
    """
    args, console = _arguments(), make_console()
    return until_closed(lambda: _run(args, console))


def _run(args: argparse.Namespace, console: Console) -> int:
    outcomes: list[Outcome] = []
    try:
        status = run_to_end(_measure(args, console, outcomes))
    except ParleyError as error:
        console.print(f"cluster: {error}", style="red", markup=False)
        status = 1
    except KeyboardInterrupt:
        console.print("Interrupted.")
        status = 130
    if outcomes:
        print_outcomes(console, "calls through nginx, gateways and servers", outcomes)
        for outcome in outcomes:
            if promise := SCENARIOS[outcome.name].promise:
                console.print(f"{outcome.name}: not promised to {promise}", highlight=False)
        if args.json:
            write_json(args.json, [outcome.to_json() for outcome in outcomes])
    return status


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--calls", type=int, default=6, help="at once (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=4, help="of each call (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=3, help="servers (default: %(default)s)")
    parser.add_argument("--gateways", type=int, default=2, help="default: %(default)s")
    parser.add_argument(
        "--scenarios", default=",".join(SCENARIOS), help="in this order (default: %(default)s)"
    )
    parser.add_argument(
        "--profile",
        type=profile_name,
        metavar="NAME",
        default=TINY_PROFILE,
        help=f"or {DEFAULT_PROFILE} (default: %(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure and check to FILE")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keep the logs of all nodes in FOLDER")
    args = parser.parse_args()
    args.scenarios = args.scenarios.split(",")
    if unknown := set(args.scenarios) - SCENARIOS.keys():
        parser.error(f"--scenarios: no {', '.join(sorted(unknown))}; there are {', '.join(SCENARIOS)}")
    if args.calls < 1 or args.turns < 1 or args.workers < 2 or args.gateways < 2:
        parser.error("at least one call and one turn, two servers and two gateways")
    return args
