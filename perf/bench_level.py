"""One load level: several conversations at once, and what they measured."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bench_rail import RailProbe

from parley.errors import ParleyError
from parley.launcher.processes import ProcessUsage
from parley_client import Backoff, Deadlines, ToolTable, connect
from parley_client.conversation import ScriptedConversation
from parley_client.demo_tools import DEMO_TOOLS
from parley_client.script import ScriptTurn
from parley_client.terminal.report import by_stage
from parley_client.turns import TurnReport, percentile

_STAGGER_S = 1.7  # between two sessions' beginnings: no multiple of any turn's length


@dataclass
class Level:
    """What one load level measured; milliseconds unless a name says otherwise."""

    sessions: int
    turns: int = 0
    problems: list[str] = field(default_factory=list)
    values: dict[str, list[float]] = field(default_factory=dict)
    """Every measured value by name."""
    wall_s: float = 0.0
    client_cpu_s: float = 0.0
    server_cpu_s: dict[str, float] = field(default_factory=dict)
    """Processor time by process; empty if the server is not ours."""

    def summary(self) -> dict[str, object]:
        """For JSON: p50, p95 and count of each value, and the shares of a processor."""
        return {
            "sessions": self.sessions,
            "turns": self.turns,
            "problems": self.problems,
            "latency_ms": {
                name: {"p50": percentile(values, 0.5), "p95": percentile(values, 0.95), "count": len(values)}
                for name, values in self.values.items()
            },
            "chunk_overhead_ms": self.chunk_overhead_ms,
            "wall_s": round(self.wall_s, 1),
            "cpu_percent_per_session": self.cpu_percent_per_session,
            "cpu_percent_by_process": {
                name: round(100 * seconds / self.wall_s, 1) for name, seconds in self.server_cpu_s.items()
            },
            "client_cpu_percent": round(100 * self.client_cpu_s / self.wall_s, 1) if self.wall_s else None,
        }

    @property
    def chunk_overhead_ms(self) -> tuple[float, float] | None:
        """What everything but the models' compute adds to a chunk at most: p50 and p95 (milliseconds).

        The sum of both ways' percentiles: a real chunk goes the second way inside the server,
        without the probe's own gRPC call.
        """
        ways = [self.values.get("chunk_voice_agent", []), self.values.get("chunk_recogniser", [])]
        low = [percentile(way, 0.5) for way in ways]
        high = [percentile(way, 0.95) for way in ways]
        if None in low or None in high:
            return None
        return sum(value or 0.0 for value in low), sum(value or 0.0 for value in high)

    @property
    def cpu_percent_per_session(self) -> float | None:
        """The server's share of one processor for each session (percent)."""
        if not self.server_cpu_s:
            return None
        return round(100 * sum(self.server_cpu_s.values()) / self.wall_s / self.sessions, 1)


async def run_level(
    server: str,
    sessions: int,
    turns: tuple[ScriptTurn, ...],
    chunk_ms: int,
    usage: Callable[[], list[ProcessUsage]],
) -> Level:
    """Hold ``sessions`` conversations at once, begun one after the other.

    Raises:
        ParleyError: the probe of the recogniser failed; a session's failure is a problem of the level.
    """
    level = Level(sessions)
    before = _cpu(usage())
    began, client_began = time.perf_counter(), time.process_time()
    async with RailProbe(server) as probe:
        results = await asyncio.gather(
            *(_session(server, number, turns, chunk_ms) for number in range(sessions))
        )
    level.wall_s = time.perf_counter() - began
    level.client_cpu_s = time.process_time() - client_began
    level.server_cpu_s = {name: value - before.get(name, 0.0) for name, value in _cpu(usage()).items()}
    reports = [report for result in results for report in result.reports]
    level.turns = len(reports)
    level.values = by_stage(reports)
    level.values["chunk_voice_agent"] = [value for result in results for value in result.round_trips_ms]
    level.values["chunk_recogniser"] = probe.overheads_ms
    level.values["microphone_late"] = [result.late_ms for result in results]
    level.values["audio_gaps"] = [float(result.gaps) for result in results]
    level.problems = [problem for result in results for problem in result.problems]
    return level


@dataclass
class _Result:
    reports: list[TurnReport] = field(default_factory=list)
    round_trips_ms: list[float] = field(default_factory=list)
    late_ms: float = 0.0
    gaps: int = 0
    problems: list[str] = field(default_factory=list)


async def _session(server: str, number: int, turns: tuple[ScriptTurn, ...], chunk_ms: int) -> _Result:
    await asyncio.sleep(number * _STAGGER_S)
    result = _Result()
    try:
        line = connect(
            server,
            tools=ToolTable(DEMO_TOOLS),
            retry=Backoff(attempts=3),
            deadlines=Deadlines(connect_s=30),
        )
        async with line as call:
            conversation = ScriptedConversation(call, chunk_ms=chunk_ms, record=False)
            result.reports = await conversation.run(turns)
            result.round_trips_ms = list(call.stats.round_trips_ms)
            result.gaps = conversation.tracker.playout.underruns
            result.late_ms = 1000 * conversation.microphone.worst_late_s
    except ParleyError as error:
        result.problems.append(f"session {number + 1}: {error.to_wire()}")
    result.problems += [
        f"session {number + 1}, {report.name}: {report.problem}"
        for report in result.reports
        if report.problem
    ]
    return result


def _cpu(processes: list[ProcessUsage]) -> dict[str, float]:
    """Processor seconds by process name."""
    totals: dict[str, float] = {}
    for process in processes:
        totals[process.name] = totals.get(process.name, 0.0) + process.cpu_s
    return totals
