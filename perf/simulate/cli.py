"""The command."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.report import write_json
from rich.console import Console

from parley.errors import ParleyError
from parley.launcher import LauncherError, ServerOptions, bring_weights
from parley.launcher.options import TINY_PROFILE
from parley.protocol import TurnOptions
from parley.turns.settings import EAGERNESSES
from parley_client.cli.arguments import handle_signals
from parley_client.cli.output import until_closed
from parley_client.cli.own_server import UNLIMITED, profile_name, running_server
from parley_client.cli.view import make_console
from parley_client.errors import OutputClosedError
from simulate.caller import Job, run_calls
from simulate.log import CallLog, transcript
from simulate.rendering import Studio, lines
from simulate.report import (
    LADDER_TAG,
    Rung,
    jobs_of,
    ladder_summary,
    parse_rungs,
    print_cases,
    print_ladder,
    print_table,
    summary,
)
from simulate.scenario import Scenario, ScenarioError
from simulate.scenario_file import load_scenarios
from simulate.scores import Scores, score
from simulate.voices import Cast, Line, LineCache, Spoken, World, speak_all, world_of

_EPILOG = "Scenarios are TOML files; perf/simulate/README.md describes them and the figures."
_WORDS_ALONE = {"PARLEY_VOICE_AGENT_TURN": "none"}


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate; the exit status is 1 if something broke, 2 for wrong usage, and 130 after Ctrl-C."""
    args, console = _arguments(argv), make_console()
    return until_closed(lambda: _simulate(args, console))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="simulate", description="Simulated callers talk to the real server and judge it.", epilog=_EPILOG
    )
    add = parser.add_argument
    add(
        "--profile",
        type=profile_name,
        metavar="NAME",
        default=TINY_PROFILE,
        help="of the server and its callers (default: %(default)s)",
    )
    add("--server", metavar="HOST:PORT", help="a running server (default: starts one)")
    add(
        "--scenarios",
        type=Path,
        nargs="+",
        metavar="PATH",
        help="files or folders (default: all of the project's for the profile)",
    )
    add(
        "--scenario", action="append", default=[], metavar="TEXT", help="only those with TEXT in name or tags"
    )
    add("--parallel", type=int, default=4, help="calls at once (default: %(default)s)")
    add("--repeat", type=int, default=1, help="how often each scenario is held")
    add("--turn", choices=EAGERNESSES, help="eagerness of the sessions (default: the server's choice)")
    add("--compare-vad", action="store_true", help="hold the scenarios with pauses again with --turn off")
    add(
        "--compare-words",
        action="store_true",
        help="hold them again with a server that judges pauses by words and silence alone",
    )
    add(
        "--ladder",
        type=_rungs,
        metavar="N,N,…",
        help=f"numbers of calls at once to try, with the scenarios of the tag {LADDER_TAG!r}",
    )
    add("--json", type=Path, metavar="FILE", help="write every figure to FILE")
    add("--all-cases", action="store_true", help="print all that counted against the agent")
    add("--show", action="store_true", help="print every call: who did what when, and why the agent did")
    add("--list", action="store_true", help="print the scenarios and stop")
    args = parser.parse_args(argv)
    if args.parallel < 1 or args.repeat < 1:
        parser.error("at least one call and one repetition are needed")
    if args.server and args.compare_words:
        parser.error("--compare-words starts a server of its own, and --server takes a running one")
    return args


def _rungs(written: str) -> list[int]:
    try:
        return parse_rungs(written)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{written!r} is not numbers of calls such as 1,2,4") from error


def _simulate(args: argparse.Namespace, console: Console) -> int:
    try:
        world = world_of(args.profile)
        wanted = args.scenario or ([LADDER_TAG] if args.ladder else [])

        def left_out(error: ScenarioError) -> None:
            console.print(f"left out: {error}", style="yellow", markup=False, highlight=False)

        scenarios = _chosen(load_scenarios(args.scenarios or [world.scenarios], left_out), wanted)
        if args.list:
            for one in scenarios:
                console.print(
                    f"{one.name:24} {len(one.exchanges):3}  {one.title}", markup=False, highlight=False
                )
            return 0
        with handle_signals(signal.default_int_handler):
            if world.cast.weights and not args.server:
                bring_weights(ServerOptions(profile=args.profile))
            studio = Studio(_speak(lines(scenarios), world.cast, console))
            for scenario in scenarios:
                studio.check(scenario)
            bench = _Bench(args, console, world, scenarios, studio)
            return bench.climb() if args.ladder else bench.measure()
    except OutputClosedError:
        raise
    except ScenarioError as error:
        console.print(f"simulate: {error}", style="red", markup=False)
        return 2
    except (ParleyError, LauncherError) as error:
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


def _speak(wanted: Sequence[Line], cast: Cast, console: Console) -> Mapping[Line, Spoken]:
    if not cast.weights:
        return speak_all(wanted, cast)
    cache = LineCache(cast)
    if missing := cache.missing(wanted):
        console.print(f"Speaking {len(missing)} lines that are new; they are cached …")
    return cache.speak(wanted)


def _beginning(scenario: Scenario) -> Job:
    return Job(replace(scenario, exchanges=scenario.exchanges[:2]))


@dataclass(frozen=True)
class _Bench:
    """All that a measurement needs."""

    args: argparse.Namespace
    console: Console
    world: World
    scenarios: list[Scenario]
    studio: Studio

    def measure(self) -> int:
        """Hold all scenarios, and those with pauses again in other ways; the exit status."""
        args, console = self.args, self.console
        paused = [one for one in self.scenarios if one.has_pauses]
        with running_server(
            args.server, console, "simulate", profile=args.profile, environment=UNLIMITED
        ) as server:
            self._warm_up(server)
            total = sum(len(one.exchanges) for one in self.scenarios) * args.repeat
            calls = len(self.scenarios) * args.repeat
            console.print(f"{total} exchanges in {calls} calls, {args.parallel} at once …")
            turn = TurnOptions(eagerness=args.turn) if args.turn else None
            name = f"turn: {args.turn or 'as the server has it'}"
            columns = [(name, self._hold(server, self.scenarios, turn))]
            if args.compare_vad and paused:
                console.print("Once more, with every pause an end …")
                off = TurnOptions(eagerness="off")
                columns.append(("silence alone, pauses only", self._hold(server, paused, off)))
        if args.compare_words and paused:
            console.print("Once more, without a network that detects the end of a turn …")
            options = {"profile": args.profile, "environment": {**UNLIMITED, **_WORDS_ALONE}}
            with running_server(None, console, "simulate", **options) as server:
                self._warm_up(server)
                columns.append(("words and silence, pauses only", self._hold(server, paused, turn)))
        print_cases(console, columns[0][1], all_of_them=args.all_cases)
        print_table(console, columns, self.world.latency_ms)
        self._write({name: summary(scores) for name, scores in columns})
        return 1 if any(scores.broken for _, scores in columns) else 0

    def climb(self) -> int:
        """Hold the scenarios with more and more calls at once; the exit status."""
        args, console = self.args, self.console
        rungs = []
        with running_server(
            args.server, console, "simulate", profile=args.profile, environment=UNLIMITED
        ) as server:
            self._warm_up(server)
            for parallel in args.ladder:
                console.print(f"{parallel} at once …")
                jobs = jobs_of(self.scenarios, parallel)
                rungs.append(Rung(parallel, self._score(server, jobs, parallel, None)))
        print_ladder(console, rungs, self.world.latency_ms)
        self._write(ladder_summary(rungs, self.world.latency_ms))
        return 1 if any(rung.scores.broken for rung in rungs) else 0

    def _warm_up(self, server: str) -> None:
        # The first conversation pays for caches that fill once; it is not measured.
        self.console.print("Warming up with two exchanges that do not count …")
        asyncio.run(run_calls(server, [_beginning(self.scenarios[0])], self.studio, parallel=1, turn=None))

    def _hold(self, server: str, chosen: Sequence[Scenario], turn: TurnOptions | None) -> Scores:
        # The longest first, so that no single one is left at the end; who hears himself may talk for long.
        longest = sorted(chosen, key=lambda one: (bool(one.caller.echo), len(one.exchanges)), reverse=True)
        jobs = [Job(one, seed) for seed in range(self.args.repeat) for one in longest]
        return self._score(server, jobs, self.args.parallel, turn)

    def _score(self, server: str, jobs: Sequence[Job], parallel: int, turn: TurnOptions | None) -> Scores:
        calls = run_calls(server, jobs, self.studio, parallel=parallel, turn=turn, on_done=self._print_call)
        return score(asyncio.run(calls))

    def _print_call(self, log: CallLog) -> None:
        state = f"broke: {log.failure}" if log.failure else f"{log.ended_s:.0f} s"
        self.console.print(f"  {log.scenario.name}: {state}", style="dim", markup=False, highlight=False)
        for line in transcript(log) if self.args.show else ():
            text = f"  {line.at_s:8.2f} s  {line.who:>7}  {line.text}"
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _write(self, figures: Mapping[str, Any]) -> None:
        args = self.args
        if args.json:
            machine = {"cpus": os.cpu_count(), "parallel": args.parallel, "repeat": args.repeat}
            write_json(args.json, {**machine, **figures})
            self.console.print(f"All figures: {args.json}")
