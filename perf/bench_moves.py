"""Calls that outlive their servers: ``make bench-moves``; perf/README.md.

Three servers, each in a network namespace of its own, take calls that hold conversations in real time. Then
one server is killed, one loses its network, all three are restarted one after the other, or a gateway is
killed (of two, which share a Redis; the callers of this fault call through them). It says what
became of the calls, how long their users heard nothing, what was not understood, and whether the
conversation that the agent remembers is the one that was held. It needs root.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from cluster.gateways import Gateway, ServersFile, read_history, shared_settings
from cluster.judging import MOST_UNANSWERED, Check, is_unanswered
from cluster.network import Network
from cluster.redis import Redis
from cluster.site import servers_removed
from cluster.workers import Worker
from harness.caller import CallReport, hold_calls
from harness.report import finite, make_table, write_json
from harness.stats import p50_p95, spoken_words, text_of, word_errors
from rich.console import Console

from parley.checkpoint import HistoryState
from parley.errors import ParleyError
from parley.launcher.options import DEFAULT_PROFILE, TINY_PROFILE
from parley_client import ToolTable, connect
from parley_client.audio.microphone import DEFAULT_CHUNK_MS
from parley_client.call import Call
from parley_client.cli.commands.demo import default_script
from parley_client.cli.demo_tools import DEMO_TOOLS
from parley_client.cli.own_server import profile_name
from parley_client.cli.script import ScriptTurn, load_script
from parley_client.cli.turns import TurnReport

_CUT_S = 15.0
_DRAIN_S = 20
_BEFORE_S, _AFTER_S = 12.0, 25.0
_MOST_MISHEARD = 0.02
"""Share of the words near a move that may be misheard."""
_GATEWAY = "gateway"
_FAULTS = ("kill", "cut", "rolling", _GATEWAY)


@dataclass
class Outcome:
    """What a disturbance did to the calls."""

    fault: str
    calls: int
    refused: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    moved: int = 0
    """Calls that changed their server."""
    no_server_ms: list[float] = field(default_factory=list)
    """Of each move: the time without a server."""
    gaps_ms: list[float] = field(default_factory=list)
    """Of each call that moved: the longest silence within an answer near a move, or by how much longer than
    usual an answer was waited for, whichever is more."""
    turns: int = 0
    unanswered: int = 0
    usual_wait_ms: float = 0.0
    """Median of the turns that no move came near."""
    words: int = 0
    word_errors: int = 0
    """Of the turns near a move."""
    usual_words: int = 0
    usual_word_errors: int = 0
    """Of the others."""
    histories: int = 0
    """Calls that moved and were asked what the agent remembers at their end."""
    differing: list[str] = field(default_factory=list)
    """Of them, where that is not what was said and played."""
    late_ms: float = 0.0
    """By how much the latest chunk of all microphones left after its time."""
    checks: list[Check] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return bool(self.checks) and all(check.passed for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """For JSON: what is infinite, or not a number, is null."""
        return {**finite(asdict(self)), "passed": self.passed}


def _near(turn: TurnReport, report: CallReport) -> bool:
    """Whether the call was without its server in this turn, or just before."""
    begin, end = turn.speech_began_s or 0.0, turn.answered_s or math.inf
    return any(begin - 2.0 <= move.at_s <= end + 5.0 for move in report.moves)


def judge(fault: str, reports: Sequence[CallReport]) -> Outcome:
    """Add up what the callers have noticed."""
    outcome = Outcome(fault, len(reports))
    undisturbed = [turn for report in reports for turn in report.turns if not _near(turn, report)]
    waits = [wait for turn in undisturbed if (wait := turn.voice_to_voice_ms) is not None and wait > 0]
    outcome.usual_wait_ms = statistics.median(waits) if waits else math.nan
    for report in reports:
        outcome.late_ms = max(outcome.late_ms, report.late_ms)
        if report.refused:
            outcome.refused.append(report.refused)
        if report.lost:
            outcome.lost.append(report.lost)
        for turn in report.turns:
            _count_turn(outcome, turn, near=_near(turn, report))
        if not report.moves:
            continue
        outcome.moved += 1
        outcome.no_server_ms += [move.gap_ms for move in report.moves]
        outcome.gaps_ms.append(_gap_ms(report, outcome.usual_wait_ms))
        if report.history is not None and not report.lost:
            outcome.histories += 1
            if difference := report.history_difference():
                outcome.differing.append(difference)
    outcome.checks = list(_checks(outcome, reports))
    return outcome


def _checks(outcome: Outcome, reports: Sequence[CallReport]) -> Iterator[Check]:
    """What has to hold, and that there was something to see of it."""
    yield Check("no call is refused", outcome.calls, outcome.refused)
    yield Check("no call is lost", outcome.calls - len(outcome.refused), outcome.lost)
    yield Check("calls move", outcome.moved)
    ended = sum(bool(report.moves) and not report.lost for report in reports)
    unknown = [f"{ended - outcome.histories} are unknown"] if ended != outcome.histories else []
    yield Check("what is remembered was played", outcome.histories, outcome.differing + unknown)
    few = outcome.unanswered <= MOST_UNANSWERED * outcome.turns
    problem = [] if few else [f"{outcome.unanswered} of {outcome.turns} turns without an answer"]
    yield Check(f"at most {MOST_UNANSWERED:.0%} of the turns stay without an answer", outcome.turns, problem)
    few = outcome.word_errors <= _MOST_MISHEARD * outcome.words
    problem = [] if few else [f"{outcome.word_errors} of {outcome.words} words"]
    yield Check(f"at most {_MOST_MISHEARD:.0%} of the words near a move are misheard", outcome.words, problem)


def _count_turn(outcome: Outcome, turn: TurnReport, *, near: bool) -> None:
    outcome.turns += 1
    outcome.unanswered += is_unanswered(turn)
    said = spoken_words(turn.said)
    errors = word_errors(said, spoken_words(turn.heard))
    if near:
        outcome.words += len(said)
        outcome.word_errors += errors
    else:
        outcome.usual_words += len(said)
        outcome.usual_word_errors += errors


def _gap_ms(report: CallReport, usual_wait_ms: float) -> float:
    silences = [
        length_ms
        for begin_s, length_ms in report.silences
        if any(
            move.at_s - 1.0 <= begin_s + length_ms / 1000 and begin_s <= move.at_s + 5.0
            for move in report.moves
        )
    ]
    # Where no other turn says what is usual, only answers that did not come count.
    usual_ms = usual_wait_ms if math.isfinite(usual_wait_ms) else math.inf
    waits = [
        math.inf if wait is None else wait - usual_ms
        for turn in report.turns
        if _near(turn, report)
        for wait in (turn.voice_to_voice_ms,)
    ]
    return max([0.0, *silences, *waits])


class _Cluster:
    """The servers, and gateways if need be; and what is done to them.

    Args:
        network: Gets their nodes.
        folder: For their logs.
        args: Of the command.
        console: Shows what is being started.
    """

    def __init__(self, network: Network, folder: Path, args: argparse.Namespace, console: Console) -> None:
        self._console = console
        self._workers = [
            Worker(network.add(f"worker-{number + 1}"), args.profile, folder)
            for number in range(args.servers)
        ]
        self._addresses = [worker.address for worker in self._workers]
        self._redis: Redis | None = None
        self._gateways: list[Gateway] = []
        if _GATEWAY in args.faults:
            self._redis = Redis(network.add("redis"), folder)
            servers = ServersFile(folder / "servers")
            servers.write(self._addresses)
            settings = shared_settings(self._redis.url, folder)
            settings["PARLEY_GATEWAY_CALLS_LIMIT"] = str(max(32, 4 * args.calls))
            self._gateways = [
                Gateway(network.add(f"gateway-{number + 1}"), servers, folder, settings)
                for number in range(2)
            ]

    async def start(self) -> None:
        """Start everything; one server after the other, because they share the processors."""
        for worker in self._workers:
            self._console.print(f"starting {worker.node.name} …")
            await worker.start()
        if self._redis is not None:
            self._console.print("starting Redis and gateways …")
            await self._redis.start()
        for gateway in self._gateways:
            await gateway.start()

    def connect(self, fault: str, caller: int) -> AbstractAsyncContextManager[Call]:
        """A call of a caller, each of whom begins at another server, or gateway."""
        gateways = [f"http://{gateway.address}" for gateway in self._gateways]
        names = gateways if fault == _GATEWAY else self._addresses
        first = caller % len(names)
        return connect([*names[first:], *names[:first]], tools=ToolTable(DEMO_TOOLS), greeting="")

    async def read_history(self, call: Call, report: CallReport) -> HistoryState | None:
        """What the agent remembers, which clients of gateways ask those for."""
        return call.history or await read_history(self._gateways, report.session_id)

    async def disturb(self, fault: str) -> None:
        """Do it."""
        faults = {"kill": self._kill, "cut": self._cut, "rolling": self._roll, _GATEWAY: self._kill_gateway}
        await faults[fault]()

    async def repair(self, fault: str) -> None:
        """Bring back what a fault has ended."""
        if fault == "kill":
            await self._workers[0].start()
        elif fault == _GATEWAY:
            await self._gateways[0].start()

    async def _kill(self) -> None:
        self._workers[0].kill()

    async def _kill_gateway(self) -> None:
        self._gateways[0].kill()

    async def _cut(self) -> None:
        """Take the first server's network away, and give it back."""
        self._workers[0].node.cut()
        try:
            await asyncio.sleep(_CUT_S)
        finally:
            self._workers[0].node.mend()

    async def _roll(self) -> None:
        """Restart every server, emptied before."""
        for worker in self._workers:
            await worker.drain(_DRAIN_S)
            await worker.stop()
            await worker.start()


async def _measure(args: argparse.Namespace, console: Console) -> list[Outcome]:
    turns = _turns(args.profile)
    outcomes = []
    with (
        servers_removed(args.servers),
        Network() as network,
        tempfile.TemporaryDirectory(prefix="parley-moves-") as folder,
    ):
        cluster = _Cluster(network, Path(folder), args, console)
        await cluster.start()
        for number, fault in enumerate(args.faults):
            console.print(f"{fault}: {args.calls} calls …")
            reports = await hold_calls(
                partial(cluster.connect, fault),
                turns,
                args.calls,
                partial(cluster.disturb, fault),
                before_s=_BEFORE_S,
                after_s=_AFTER_S,
                read_history=cluster.read_history,
                chunk_ms=args.chunk_ms,
            )
            outcomes.append(judge(fault, reports))
            if number + 1 < len(args.faults):
                await cluster.repair(fault)
    return outcomes


def _turns(profile: str) -> list[ScriptTurn]:
    """What callers say: the turns that are spoken, one after the other's answer."""
    turns = load_script(default_script(profile)).turns
    return [turn for turn in turns if len(turn.samples) and turn.barge_in_ms is None]


def _print(console: Console, outcomes: Sequence[Outcome]) -> None:
    faults = (outcome.fault for outcome in outcomes)
    table = make_table("calls that lose their server", "", *faults, box=None)

    def add(name: str, value: Callable[[Outcome], str]) -> None:
        table.add_row(name, *map(value, outcomes))

    add("calls; refused; lost", lambda one: f"{one.calls}; {len(one.refused)}; {len(one.lost)}")
    add("moved to another server", lambda one: str(one.moved))
    add("… without a server, p50 / p95, ms", lambda one: text_of(p50_p95(one.no_server_ms)))
    add("… gap that is heard, p50 / p95, ms", lambda one: text_of(p50_p95(one.gaps_ms)))
    add("turns; without an answer", lambda one: f"{one.turns}; {one.unanswered}")
    add("words not understood near a move", lambda one: _share(one.word_errors, one.words))
    add("… in other turns", lambda one: _share(one.usual_word_errors, one.usual_words))
    add("memories compared; different", lambda one: f"{one.histories}; {len(one.differing)}")
    add("usual wait for an answer, ms", lambda one: f"{one.usual_wait_ms:.0f}")
    add("latest chunk of a microphone, ms", lambda one: f"{one.late_ms:.0f}")
    console.print(table)
    for outcome in outcomes:
        for check in outcome.checks:
            if not check.passed:
                why = "; ".join(check.problems) or "there was nothing to check"
                console.print(f"{outcome.fault}: not so: {check.name}: {why}", style="red", markup=False)


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole}"


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
    parser.add_argument(
        "--profile",
        type=profile_name,
        metavar="NAME",
        default=TINY_PROFILE,
        help=f"or {DEFAULT_PROFILE} (default: %(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to FILE")
    args, console = parser.parse_args(), Console()
    args.faults = args.faults.split(",")
    if not set(args.faults) <= set(_FAULTS):
        parser.error(f"--faults are of {', '.join(_FAULTS)}")
    if args.calls < 1 or args.servers < 2 or args.chunk_ms < 1:
        parser.error("at least one call, two servers, and a millisecond")
    try:
        outcomes = asyncio.run(_measure(args, console))
    except ParleyError as error:
        console.print(f"bench-moves: {error}", style="red", markup=False)
        return 1
    _print(console, outcomes)
    if args.json:
        figures = [outcome.to_json() for outcome in outcomes]
        write_json(args.json, figures)
    return 0 if outcomes and all(outcome.passed for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
