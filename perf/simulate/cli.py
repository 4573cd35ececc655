"""The command."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.program import run_program
from harness.report import write_json
from rich.console import Console

from parley.launcher import LauncherError, ServerOptions, bring_weights
from parley.launcher.options import TINY_PROFILE
from parley.protocol import TurnOptions
from parley.turns.settings import EAGERNESSES
from parley_client.cli.own_server import UNLIMITED, add_profile, running_server
from parley_testing.caller import CallJob, run_calls
from parley_testing.log import CallLog, transcript
from parley_testing.rendering import Studio, lines
from parley_testing.scenario import Scenario, ScenarioError
from parley_testing.scenario_file import load_scenarios
from parley_testing.voices import ESPEAK, Cast, Line, LineCache, Spoken, cast_of, speak_all
from simulate.report import print_cases, print_table, summary
from simulate.scores import score

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class World:
    """All that callers of a profile have in common."""

    scenarios: Path
    cast: Cast
    latency_ms: tuple[float, float]
    """From the end of speech to the first audio, at most: p50 and p95."""


def world_of(profile: str) -> World:
    """Only the tiny models need callers who say what they have learned."""
    if (cast := cast_of(profile)) is ESPEAK:
        return World(_HERE / "scenarios", cast, (450.0, 700.0))
    return World(_HERE / "scenarios_open", cast, (700.0, 1_100.0))


_EPILOG = "perf/simulate/README.md describes the scenarios and the figures."


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate; the exit status is 1 if something broke, and 2 for wrong usage."""
    args = _arguments(argv)
    return run_program("simulate", lambda console: _simulate(args, console), ScenarioError, LauncherError)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="simulate", description="Simulated callers talk to the real server and judge it.", epilog=_EPILOG
    )
    add = parser.add_argument
    add_profile(parser, "of the server and its callers (default: %(default)s)", TINY_PROFILE)
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
    add("--repeat", type=int, default=1, help="how often each scenario is run")
    add("--turn", choices=EAGERNESSES, help="eagerness of the sessions (default: the server's choice)")
    add("--json", type=Path, metavar="FILE", help="write every figure to FILE")
    add("--all-cases", action="store_true", help="print all that counted against the agent")
    add("--show", action="store_true", help="print every call: who did what when, and why the agent did")
    add("--list", action="store_true", help="print the scenarios and stop")
    args = parser.parse_args(argv)
    if args.parallel < 1 or args.repeat < 1:
        parser.error("at least one call and one repetition are needed")
    return args


def _simulate(args: argparse.Namespace, console: Console) -> int:
    world = world_of(args.profile)

    def left_out(error: ScenarioError) -> None:
        console.print(f"left out: {error}", style="yellow", markup=False, highlight=False)

    scenarios = _chosen(load_scenarios(args.scenarios or [world.scenarios], left_out), args.scenario)
    if args.list:
        for one in scenarios:
            console.print(f"{one.name:24} {len(one.exchanges):3}  {one.title}", markup=False, highlight=False)
        return 0
    if world.cast.weights and not args.server:
        bring_weights(ServerOptions(profile=args.profile))
    studio = Studio(_speak(lines(scenarios), world.cast, console))
    for scenario in scenarios:
        studio.check(scenario)
    return _measure(args, console, world, scenarios, studio)


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


def _measure(
    args: argparse.Namespace, console: Console, world: World, scenarios: list[Scenario], studio: Studio
) -> int:
    """Hold all scenarios; the exit status."""
    turn = TurnOptions(eagerness=args.turn) if args.turn else None
    # The longest first, so that no single one is left at the end; who hears himself may talk for long.
    longest = sorted(scenarios, key=lambda one: (bool(one.caller.echo), len(one.exchanges)), reverse=True)
    jobs = [CallJob(one, seed) for seed in range(args.repeat) for one in longest]

    def print_call(log: CallLog) -> None:
        state = f"broke: {log.failure}" if log.failure else f"{log.ended_s:.0f} s"
        console.print(f"  {log.scenario.name}: {state}", style="dim", markup=False, highlight=False)
        for line in transcript(log) if args.show else ():
            text = f"  {line.at_s:8.2f} s  {line.who:>7}  {line.text}"
            console.print(text, markup=False, highlight=False, soft_wrap=True)

    with running_server(
        args.server, console, "simulate", profile=args.profile, environment=UNLIMITED
    ) as server:
        # The first conversation pays for caches that fill once; it is not measured.
        console.print("Warming up with two exchanges that do not count …")
        beginning = CallJob(replace(scenarios[0], exchanges=scenarios[0].exchanges[:2]))
        asyncio.run(run_calls(server, [beginning], studio, parallel=1, turn=None))
        total = sum(len(job.scenario.exchanges) for job in jobs)
        console.print(f"{total} exchanges in {len(jobs)} calls, {args.parallel} at once …")
        calls = run_calls(server, jobs, studio, parallel=args.parallel, turn=turn, on_done=print_call)
        scores = score(asyncio.run(calls))
    print_cases(console, scores, all_of_them=args.all_cases)
    print_table(console, scores, world.latency_ms)
    if args.json:
        machine = {"cpus": os.cpu_count(), "parallel": args.parallel, "repeat": args.repeat}
        write_json(args.json, {**machine, **summary(scores)})
        console.print(f"All figures: {args.json}")
    return 1 if scores.broken else 0
