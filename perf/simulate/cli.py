"""The command."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from parley.errors import ParleyError
from parley.protocol import TurnOptions
from parley.turns.settings import EAGERNESSES
from parley_client.commands.common import handle_signals
from parley_client.commands.own_server import running_server
from parley_client.errors import OutputClosedError
from parley_client.terminal.output import until_closed
from parley_client.terminal.view import make_console
from simulate.errors import ScenarioError
from simulate.log import CallLog
from simulate.rendering import Studio
from simulate.report import print_cases, print_table, summary
from simulate.running import Job, run_calls
from simulate.scenario import Scenario
from simulate.scenario_file import load_scenarios
from simulate.scores import Scores, score
from simulate.transcript import transcript

SCENARIOS = Path(__file__).with_name("scenarios")
_EPILOG = "Scenarios are TOML files; docs/simulator.md says what they may say and what the figures mean."


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate; the exit status is 1 if something broke, 2 for wrong usage, and 130 after Ctrl-C."""
    args, console = _arguments(argv), make_console()
    return until_closed(lambda: _simulate(args, console))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="simulate", description="Simulated callers talk to the real server and judge it.", epilog=_EPILOG
    )
    parser.add_argument("--server", metavar="HOST:PORT", help="a running server (default: starts one)")
    parser.add_argument(
        "--scenarios",
        type=Path,
        nargs="+",
        default=[SCENARIOS],
        metavar="PATH",
        help="files or folders (default: all of the project's)",
    )
    parser.add_argument(
        "--scenario", action="append", default=[], metavar="TEXT", help="only those with TEXT in name or tags"
    )
    parser.add_argument("--parallel", type=int, default=4, help="calls at once (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=1, help="how often each scenario is held")
    parser.add_argument(
        "--turn", choices=EAGERNESSES, help="eagerness of the sessions (default: the server's choice)"
    )
    parser.add_argument(
        "--compare-vad", action="store_true", help="hold the scenarios with pauses again with --turn off"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to FILE")
    parser.add_argument("--all-cases", action="store_true", help="print all that counted against the agent")
    parser.add_argument(
        "--show", action="store_true", help="print every call: who did what when, and why the agent did"
    )
    parser.add_argument("--list", action="store_true", help="print the scenarios and stop")
    args = parser.parse_args(argv)
    if args.parallel < 1 or args.repeat < 1:
        parser.error("at least one call and one repetition are needed")
    return args


def _simulate(args: argparse.Namespace, console: Console) -> int:
    try:
        scenarios = _chosen(load_scenarios(args.scenarios), args.scenario)
        if args.list:
            for one in scenarios:
                console.print(
                    f"{one.name:24} {len(one.exchanges):3}  {one.title}", markup=False, highlight=False
                )
            return 0
        studio = Studio(scenarios)
        for scenario in scenarios:
            studio.check(scenario)
        with (
            handle_signals(signal.default_int_handler),
            running_server(args.server, console, "simulate") as server,
        ):
            return _measure(args, console, server, scenarios, studio)
    except OutputClosedError:
        raise
    except ScenarioError as error:
        console.print(f"simulate: {error}", style="red", markup=False)
        return 2
    except ParleyError as error:
        console.print(f"simulate: {error}", style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("Interrupted.")
        return 130


def _chosen(scenarios: list[Scenario], wanted: list[str]) -> list[Scenario]:
    if not wanted:
        return scenarios
    chosen = [one for one in scenarios if any(text in one.name or text in one.tags for text in wanted)]
    if not chosen:
        raise ScenarioError(f"no scenario has {' or '.join(wanted)} in its name or tags")
    return chosen


def _beginning(scenario: Scenario) -> Job:
    return Job(replace(scenario, exchanges=scenario.exchanges[:2]))


def _measure(
    args: argparse.Namespace, console: Console, server: str, scenarios: list[Scenario], studio: Studio
) -> int:
    def told(log: CallLog) -> None:
        state = f"broke: {log.failure}" if log.failure else f"{log.ended_s:.0f} s"
        console.print(f"  {log.scenario.name}: {state}", style="dim", markup=False, highlight=False)
        for line in transcript(log) if args.show else ():
            text = f"  {line.at_s:8.2f} s  {line.who:>7}  {line.text}"
            console.print(text, markup=False, highlight=False, soft_wrap=True)

    def hold(chosen: Sequence[Scenario], turn: TurnOptions | None) -> Scores:
        # The longest first, so that no single one is left at the end; who hears himself may talk for long.
        longest = sorted(chosen, key=lambda one: (bool(one.caller.echo), len(one.exchanges)), reverse=True)
        jobs = [Job(one, seed) for seed in range(args.repeat) for one in longest]
        logs = asyncio.run(run_calls(server, jobs, studio, parallel=args.parallel, turn=turn, on_done=told))
        return score(logs)

    # The first conversation pays for caches that fill once; it is not measured.
    console.print("Warming up with two exchanges that do not count …")
    asyncio.run(run_calls(server, [_beginning(scenarios[0])], studio, parallel=1, turn=None))
    total = sum(len(one.exchanges) for one in scenarios) * args.repeat
    console.print(f"{total} exchanges in {len(scenarios) * args.repeat} calls, {args.parallel} at once …")
    turn = TurnOptions(eagerness=args.turn) if args.turn else None
    columns = [(f"turn: {args.turn or 'as the server has it'}", hold(scenarios, turn))]
    if args.compare_vad and (paused := [one for one in scenarios if one.has_pauses]):
        console.print("Once more, with every pause an end …")
        columns.append(("turn: off, pauses only", hold(paused, TurnOptions(eagerness="off"))))
    print_cases(console, columns[0][1], all_of_them=args.all_cases)
    print_table(console, columns)
    if args.json:
        machine = {"cpus": os.cpu_count(), "parallel": args.parallel, "repeat": args.repeat}
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps({**machine, **{name: summary(s) for name, s in columns}}, indent=1))
        console.print(f"All figures: {args.json}")
    return 1 if any(scores.broken for _, scores in columns) else 0
