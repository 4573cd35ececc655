"""The command line of ``make chaos``."""

from __future__ import annotations

import argparse
import asyncio
import fnmatch
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from harness.network import Network
from harness.report import make_table, write_json
from rich.console import Console
from simulate.scenario import ScenarioError

from chaos.deployment import PARTS, Deployment
from chaos.faults import Fault, make_faults
from chaos.runner import HEAD, Verdict, run_fault
from chaos.words import CITIES, Part, make_parts
from parley.errors import ParleyError
from parley_client.cli.arguments import handle_signals
from parley_client.cli.view import make_console

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
    args, console = _arguments(list(faults)), make_console()
    verdicts: list[Verdict] = []
    try:
        parts = make_parts(args.calls + _OTHERS)
        chosen = [faults[name] for name in args.faults]
        # Also a supervisor's SIGTERM must not leave servers behind.
        with handle_signals(signal.default_int_handler):
            asyncio.run(_run_all(chosen, parts, args, console, verdicts))
    except KeyboardInterrupt:
        console.print("Interrupted.")
        return 130
    except (ParleyError, ScenarioError) as error:
        console.print(f"chaos: {error}", style="red", markup=False)
        return 1
    finally:
        if verdicts:
            _show(verdicts, console)
    return 0 if len(verdicts) == len(args.faults) and all(one.passed for one in verdicts) else 1


def _arguments(faults: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(sys.modules["__main__"].__doc__ or "").partition("\n")[0])
    parser.add_argument("--faults", default="*", help="names or patterns with commas between them (all)")
    parser.add_argument("--list", action="store_true", help="list the faults")
    parser.add_argument(
        "--calls", type=int, default=8, help=f"at once, in {len(PARTS)} places (default: %(default)s)"
    )
    parser.add_argument(
        "--total",
        type=float,
        default=7_200.0,
        metavar="SECONDS",
        help="no fault begins later, and the run fails (%(default)g)",
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
    verdicts: list[Verdict],
) -> None:
    end = time.monotonic() + args.total
    with Network() as network, tempfile.TemporaryDirectory(prefix="parley-chaos-") as temporary:
        folder = args.logs or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        deployment = Deployment(network, folder)
        console.print("starting two servers and two gateways …")
        await deployment.start()
        for fault in faults:
            began = time.monotonic()
            if began > end:
                console.print(f"no time is left for {fault.name}", style="red", markup=False)
                continue
            verdict = await _run(deployment, fault, parts, args.calls)
            verdicts.append(verdict)
            _write(args, verdicts)  # a run of all faults is long
            console.print(
                f"{fault.name} ({time.monotonic() - began:.0f} s): {'; '.join(verdict.row()[1:])}",
                markup=False,
            )
            for text in verdict.complaints():
                console.print(text, style="red", markup=False)


async def _run(deployment: Deployment, fault: Fault, parts: Sequence[Part], calls: int) -> Verdict:
    try:
        return await run_fault(deployment, fault, parts, calls)
    except ParleyError as error:
        failed = Verdict(fault.name, fault.what, calls=calls)
        failed.problems.append(str(error))
        await deployment.until_healthy()
        return failed


def _show(verdicts: Sequence[Verdict], console: Console) -> None:
    """Print the table, and what did not hold."""
    table = make_table("what faults did", *HEAD)
    for verdict in verdicts:
        table.add_row(*verdict.row(), style="" if verdict.passed else "red")
    console.print(table)
    for verdict in verdicts:
        for text in verdict.complaints():
            console.print(text, style="red", markup=False)


def _write(args: argparse.Namespace, verdicts: Sequence[Verdict]) -> None:
    if args.json:
        figures = [{**asdict(one), "passed": one.passed, "late": one.late()} for one in verdicts]
        write_json(args.json, figures)
