"""Calls that outlive their servers: ``make bench-moves``; perf/README.md.

Three servers, each in a network namespace of its own, take calls that hold conversations in real time. Then
one server is killed, one loses its network, or all three are restarted one after the other. It says what
became of the calls, how long their users heard nothing, what was not understood, and whether the
conversation that the agent remembers is the one that was held. It needs root.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import tempfile
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from harness.caller import CallReport, hold_calls
from harness.judge import Check, Outcome, check_answers, print_checks, print_outcomes, spoken_turns
from harness.network import Network
from harness.program import run_program
from harness.report import write_json
from harness.servers import Server, remove_left
from harness.stats import p50_p95, spoken_words, word_errors
from rich.console import Console

from parley.launcher.options import DEFAULT_PROFILE, TINY_PROFILE
from parley_client import ToolTable, connect
from parley_client.audio.microphone import DEFAULT_CHUNK_MS
from parley_client.call import Call
from parley_client.cli.commands.demo import default_script
from parley_client.cli.demo_tools import DEMO_TOOLS
from parley_client.cli.own_server import add_profile
from parley_client.cli.script import load_script
from parley_client.cli.turns import TurnReport

_CUT_S = 15.0
_DRAIN_S = 20
_BEFORE_S, _AFTER_S = 12.0, 25.0
_MOST_MISHEARD = 0.02
"""Share of the words near a move that may be misheard."""
_FAULTS = ("kill", "cut", "rolling")


def judge(fault: str, reports: Sequence[CallReport]) -> Outcome:
    """Add up what the callers have noticed."""
    near = [turn for report in reports for turn in report.turns if _is_near(turn, report)]
    others = [turn for report in reports for turn in report.turns if not _is_near(turn, report)]
    outcome = Outcome.of(fault, reports, others)
    moved = [report for report in reports if report.moves]
    outcome.moved = len(moved)
    outcome.gaps_ms = [_gap_ms(report, outcome) for report in moved]
    no_server_ms = p50_p95([move.gap_ms for report in moved for move in report.moves]) or (math.nan, math.nan)
    words, errors = _misheard(near)
    other_words, other_errors = _misheard(others)
    outcome.figures = {
        "without a server p50, ms": no_server_ms[0],
        "p95": no_server_ms[1],
        "words near a move": words,
        "misheard": errors,
        "words of other turns": other_words,
        "of them misheard": other_errors,
        "latest chunk of a microphone, ms": outcome.late_ms,
    }
    ended = [report for report in moved if not report.lost]
    remembered = [report.history_difference() for report in ended if report.history is not None]
    unknown = [f"{len(ended) - len(remembered)} are unknown"] if len(ended) != len(remembered) else []
    few = errors <= _MOST_MISHEARD * words
    outcome.checks = [
        Check("no call is refused", outcome.calls, outcome.refused),
        Check("no call is lost", outcome.calls - len(outcome.refused), outcome.lost),
        Check("calls move", outcome.moved),
        Check("what is remembered was played", len(remembered), [*filter(None, remembered), *unknown]),
        check_answers([*near, *others]),
        Check(
            f"at most {_MOST_MISHEARD:.0%} of the words near a move are misheard",
            words,
            [] if few else [f"{errors} of {words} words"],
        ),
    ]
    return outcome


def _is_near(turn: TurnReport, report: CallReport) -> bool:
    """Whether the call was without its server in this turn, or just before."""
    begin, end = turn.speech_began_s or 0.0, turn.answered_s or math.inf
    return any(begin - 2.0 <= move.at_s <= end + 5.0 for move in report.moves)


def _gap_ms(report: CallReport, outcome: Outcome) -> float:
    silences = [
        (begin_s, length_ms)
        for begin_s, length_ms in report.silences
        if any(
            move.at_s - 1.0 <= begin_s + length_ms / 1000 and begin_s <= move.at_s + 5.0
            for move in report.moves
        )
    ]
    return outcome.gap_ms(silences, [turn for turn in report.turns if _is_near(turn, report)])


def _misheard(turns: Sequence[TurnReport]) -> tuple[int, int]:
    """Words that were said, and errors of what was understood."""
    said = [spoken_words(turn.said) for turn in turns]
    heard = [spoken_words(turn.heard) for turn in turns]
    return sum(map(len, said)), sum(map(word_errors, said, heard))


class _Cluster:
    """The servers, and what is done to them."""

    def __init__(self, network: Network, folder: Path, args: argparse.Namespace) -> None:
        self._nodes = [network.add(f"worker-{number + 1}") for number in range(args.servers)]
        self.servers = [Server(node, args.profile, folder) for node in self._nodes]
        self._addresses = [server.address for server in self.servers]

    def connect(self, caller: int) -> AbstractAsyncContextManager[Call]:
        """A call of a caller, each of whom begins at another server."""
        first = caller % len(self._addresses)
        order = [*self._addresses[first:], *self._addresses[:first]]
        return connect(order, tools=ToolTable(DEMO_TOOLS), greeting="")

    async def kill(self) -> None:
        """Kill the first server."""
        self.servers[0].kill()

    async def cut(self) -> None:
        """Take the first server's network away, and give it back."""
        self._nodes[0].cut()
        try:
            await asyncio.sleep(_CUT_S)
        finally:
            self._nodes[0].mend()

    async def roll(self) -> None:
        """Restart every server, emptied before."""
        for server in self.servers:
            await server.drain(_DRAIN_S)
            await server.stop()
            await server.start()


async def _measure(args: argparse.Namespace, console: Console) -> list[Outcome]:
    turns = spoken_turns(load_script(default_script(args.profile)).turns)
    outcomes = []
    with (
        remove_left(),
        Network() as network,
        tempfile.TemporaryDirectory(prefix="parley-moves-") as folder,
    ):
        cluster = _Cluster(network, Path(folder), args)
        for server in cluster.servers:  # one after the other, because they share the processors
            console.print(f"starting {server.host.name} …")
            await server.start()
        for number, fault in enumerate(args.faults):
            console.print(f"{fault}: {args.calls} calls …")
            reports = await hold_calls(
                cluster.connect,
                turns,
                args.calls,
                {"kill": cluster.kill, "cut": cluster.cut, "rolling": cluster.roll}[fault],
                before_s=_BEFORE_S,
                after_s=_AFTER_S,
                chunk_ms=args.chunk_ms,
            )
            outcomes.append(judge(fault, reports))
            print_checks(console, outcomes[-1])
            if fault == "kill" and number + 1 < len(args.faults):
                await cluster.servers[0].start()
    return outcomes


def main() -> int:
    """Measure all faults.

    The exit status is 1 if a call was lost or refused, remembers another conversation, too many turns were
    not answered or words near a move misheard, and if none moved.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--calls", type=int, default=16, help="at once (default: %(default)s)")
    parser.add_argument("--servers", type=int, default=3, help="default: %(default)s")
    parser.add_argument(
        "--chunk-ms",
        type=int,
        default=DEFAULT_CHUNK_MS,
        metavar="MS",
        help="audio in one message of a caller: longer ones cost less (default: %(default)s)",
    )
    parser.add_argument("--faults", default=",".join(_FAULTS), help="in this order (default: %(default)s)")
    add_profile(parser, f"or {DEFAULT_PROFILE} (default: %(default)s)", TINY_PROFILE)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to FILE")
    args = parser.parse_args()
    args.faults = args.faults.split(",")
    if not set(args.faults) <= set(_FAULTS):
        parser.error(f"--faults are of {', '.join(_FAULTS)}")
    if args.calls < 1 or args.servers < 2 or args.chunk_ms < 1:
        parser.error("at least one call, two servers, and a millisecond")

    def measure(console: Console) -> int:
        outcomes = asyncio.run(_measure(args, console))
        print_outcomes(console, "calls that lose their server", outcomes)
        if args.json:
            write_json(args.json, [outcome.to_json() for outcome in outcomes])
        return 0 if outcomes and all(outcome.passed for outcome in outcomes) else 1

    return run_program("bench-moves", measure)
