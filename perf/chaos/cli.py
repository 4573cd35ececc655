"""The command line of ``make chaos``."""

from __future__ import annotations

import argparse
import asyncio
import fnmatch
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from harness.judge import Check, Outcome, print_checks, print_outcomes
from harness.network import Network
from harness.program import run_program
from harness.report import write_json
from rich.console import Console

from chaos.deployment import PARTS, Deployment
from chaos.faults import Fault, make_faults
from chaos.runner import run_fault
from chaos.words import CITIES, Part, make_parts
from parley.errors import ParleyError
from parley_testing.scenario import ScenarioError

_OTHERS = 3
"""Parts of requests and of those who call later."""


def choose(patterns: str, faults: Sequence[str]) -> list[str]:
    """The faults that patterns with commas between them match, in the order of the patterns.

    Raises:
        ValueError: a pattern matches none.
    """
    chosen: dict[str, None] = {}
    for pattern in patterns.split(","):
        found = fnmatch.filter(faults, pattern)
        if not found:
            raise ValueError(f"no fault is named {pattern!r}; there are {', '.join(faults)}")
        chosen |= dict.fromkeys(found)
    return list(chosen)


def main() -> int:
    """Cause all faults; the exit status is 1 where something did not hold, or was not checked."""
    faults = make_faults()
    args = _arguments(list(faults))

    def measure(console: Console) -> int:
        outcomes: list[Outcome] = []
        try:
            parts = make_parts(args.calls + _OTHERS)
            asyncio.run(_run_all([faults[name] for name in args.faults], parts, args, console, outcomes))
        finally:
            if outcomes:
                print_outcomes(console, "what faults did", outcomes)
        return 0 if len(outcomes) == len(args.faults) and all(one.passed for one in outcomes) else 1

    return run_program("chaos", measure, ScenarioError)


def _arguments(faults: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(sys.modules["__main__"].__doc__ or "").partition("\n")[0])
    parser.add_argument("--faults", default="*", help="names or patterns with commas between them (all)")
    parser.add_argument("--list", action="store_true", help="list the faults")
    parser.add_argument(
        "--calls", type=int, default=8, help=f"at once, in {len(PARTS)} places (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to FILE")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep the logs there")
    args = parser.parse_args()
    if args.list:
        parser.exit(message="".join(f"{name}\n" for name in faults))
    most = len(CITIES) - _OTHERS
    if not len(PARTS) <= args.calls <= most:
        parser.error(f"--calls: {len(PARTS)} to {most}")
    try:
        args.faults = choose(args.faults, faults)
    except ValueError as error:
        parser.error(str(error))
    return args


async def _run_all(
    faults: Sequence[Fault],
    parts: Sequence[Part],
    args: argparse.Namespace,
    console: Console,
    outcomes: list[Outcome],
) -> None:
    with Network() as network, tempfile.TemporaryDirectory(prefix="parley-chaos-") as temporary:
        folder = args.logs or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        deployment = Deployment(network, folder)
        console.print("starting two servers and two gateways …")
        await deployment.start()
        for fault in faults:
            began = time.monotonic()
            outcomes.append(await _run(deployment, fault, parts, args.calls))
            if args.json:  # after each, because a run of all faults is long
                write_json(args.json, [outcome.to_json() for outcome in outcomes])
            console.print(f"{fault.name} ({fault.what}): {time.monotonic() - began:.0f} s", markup=False)
            print_checks(console, outcomes[-1])


async def _run(deployment: Deployment, fault: Fault, parts: Sequence[Part], calls: int) -> Outcome:
    try:
        return await run_fault(deployment, fault, parts, calls)
    except ParleyError as error:
        await deployment.until_healthy()
        return Outcome(fault.name, calls, checks=[Check("the fault can be caused", 1, [str(error)])])
