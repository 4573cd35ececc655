"""What a capacity means for a fleet: replicas, cost, and the values of an autoscaler."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from parley_client.cli.capacity.callers import LevelResult
from parley_client.cli.capacity.search import Found, Verdict
from parley_client.cli.capacity.tail import CONFIDENCE
from parley_client.cli.turns import percentile

EXAMPLES = (10, 100, 1_000)
"""Calls for which the formula is worked out."""
TARGET_UTILIZATION = 0.7
"""How full replicas are to be in the mean: ``worker.targetUtilization`` of the chart, as a test checks."""


@dataclass(frozen=True)
class Capacity:
    """All that a search has found."""

    found: Found
    levels: Sequence[LevelResult]
    """In the order in which they were held."""
    limit_ms: float
    """Of the 95th percentile of true end of speech to first audio."""
    fill: float
    """How full replicas are to be in the mean, 0-1; the rest is for bursts and for replicas that fail."""
    price_per_hour: float | None
    """Of one replica, in any currency; None: unknown."""
    is_complete: bool = True
    """False: the search was interrupted."""

    @property
    def calls_per_replica(self) -> float:
        """Calls of a replica in the mean: what it holds, less the buffer."""
        return self.found.held * self.fill

    def replicas(self, calls: int) -> int | None:
        """Replicas for so many calls; None: a replica does not hold one."""
        if not self.found.held:
            return None
        return math.ceil(round(calls / self.calls_per_replica, 9))

    @property
    def at_capacity(self) -> LevelResult | None:
        """The level that is held; None: none is."""
        return next((level for level in self.levels if level.calls == self.found.held), None)

    def cost_per_minute(self, calls_per_replica: float) -> float | None:
        """Of one call; None: nothing is held, or the price is unknown."""
        if self.price_per_hour is None or not calls_per_replica:
            return None
        return self.price_per_hour / 60 / calls_per_replica

    def to_json(self) -> dict[str, Any]:
        """For programs; what is not known is null."""
        at = self.at_capacity
        return {
            "complete": self.is_complete,
            "limit_p95_ms": self.limit_ms,
            "confidence": CONFIDENCE,
            "calls_held": self.found.held,
            "is_bounded": self.found.is_bounded,
            "fill": self.fill,
            "calls_per_replica": round(self.calls_per_replica, 3),
            "cpus_per_call": _each(at.cpus if at else None, self.found.held),
            "gpus_per_call": _each(at.gpus if at else None, self.found.held),
            "price_per_hour": self.price_per_hour,
            "cost_per_call_minute": self.cost_per_minute(self.calls_per_replica),
            "replicas": {str(calls): self.replicas(calls) for calls in EXAMPLES},
            "levels": [_level_json(level) for level in self.levels],
        }

    def lines(self) -> list[str]:
        """The result in words."""
        held = self.found.held
        unsure = [level.calls for level in self.levels if level.verdict == Verdict.UNSURE]
        doubts = [
            f"At {calls} the limit is within the interval of the p95: unsure, so not held; use more --turns."
            for calls in unsure
        ]
        doubts += [
            f"At {level.calls} the level was not over within {level.overdue_s:.0f} s: given up, and broken."
            for level in self.levels
            if level.overdue_s is not None
        ]
        if not held:
            return [
                f"No level is surely held with a p95 of {self.limit_ms:.0f} ms." + self._interrupted(),
                *doubts,
            ]
        bound = "" if self.found.is_bounded else " or more: no level above was measured"
        lines = [
            f"Calls held with a p95 of {self.limit_ms:.0f} ms: {held}{bound}." + self._interrupted(),
            *doubts,
        ]
        at = self.at_capacity
        for what, busy in (("processors", at.cpus if at else None), ("GPUs", at.gpus if at else None)):
            if busy is not None:
                lines.append(f"Busy {what} per call: {busy / held:.2f}.")
        full, filled = self.cost_per_minute(held), self.cost_per_minute(self.calls_per_replica)
        if full is not None and filled is not None:
            lines.append(
                f"Cost per minute of a call: {filled:.5f} at a fill of {self.fill:.0%} "
                f"({full:.5f} at 100 %), for {self.price_per_hour:g} per hour and replica."
            )
        examples = ", ".join(f"{calls} calls: {self.replicas(calls)}" for calls in EXAMPLES)
        lines.append(
            f"Replicas for N calls: ceil(N / ({held} * {self.fill:g})). {examples}. "
            f"The buffer is {1 - self.fill:.0%} of each replica."
        )
        return lines

    def _interrupted(self) -> str:
        return "" if self.is_complete else " The search was interrupted."

    def table(self) -> Table:
        """A row for each level, by calls."""
        table = Table(box=SIMPLE_HEAD, padding=(0, 1), show_edge=False)
        for head in ("calls", "", "p50 ms", f"p95 ms ({CONFIDENCE:.0%} interval)", "turns", "unanswered"):
            table.add_column(head, justify="left" if not head else "right", vertical="bottom")
        for head in ("cut off", "failures", "CPUs", "GPUs", "mic late ms"):
            table.add_column(head, justify="right", vertical="bottom")
        for level in sorted(self.levels, key=lambda one: one.calls):
            table.add_row(*_row(level))
        return table


def _row(level: LevelResult) -> list[str]:
    tail = level.tail
    p50 = percentile(level.waits_ms, 0.5)
    failed = [*level.refused, *level.lost, *([] if level.overdue_s is None else ["overdue"])]
    return [
        str(level.calls),
        level.verdict.value,
        "" if p50 is None else _ms(p50),
        "" if tail is None else f"{_ms(tail.value)} ({_ms(tail.low)} to {_ms(tail.high)})",
        str(level.turns),
        str(level.unanswered),
        str(level.cut_off),
        ", ".join(dict.fromkeys(failed)) or "0",
        "" if level.cpus is None else f"{level.cpus:.2f}",
        "" if level.gpus is None else f"{level.gpus:.2f}",
        f"{level.late_ms:.0f}",
    ]


def _level_json(level: LevelResult) -> dict[str, Any]:
    tail = level.tail
    return {
        "calls": level.calls,
        "verdict": level.verdict.value,
        "p50_ms": _finite(percentile(level.waits_ms, 0.5)),
        "p95_ms": _finite(tail.value) if tail else None,
        "p95_low_ms": _finite(tail.low) if tail else None,
        "p95_high_ms": _finite(tail.high) if tail else None,
        "turns": level.turns,
        "unanswered": level.unanswered,
        "cut_off": level.cut_off,
        "refused": level.refused,
        "lost": level.lost,
        "overdue_s": level.overdue_s,
        "busy_cpus": level.cpus,
        "busy_gpus": level.gpus,
        "microphone_late_ms": level.late_ms,
        "seconds": level.wall_s,
    }


def _each(busy: float | None, calls: int) -> float | None:
    return None if busy is None or not calls else busy / calls


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _ms(value: float) -> str:
    return f"{value:.0f}" if math.isfinite(value) else "\N{INFINITY}"
