"""What a disturbance did to calls, whether that is what was promised, and how both are printed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console

from harness.caller import CallReport
from harness.report import finite, make_table
from harness.stats import p50_p95, text_of
from parley_client.cli.script import ScriptTurn
from parley_client.cli.turns import TurnReport

_MOST_UNANSWERED = 0.02
"""Of all turns, the part that may stay without an answer."""
_SHOWN = 3
"""Problems of one check that are printed."""


@dataclass
class Check:
    """One thing that was promised."""

    name: str
    counted: int
    """How much there was to check; 0: the check fails, because it has shown nothing."""
    problems: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether there was something to check, and nothing was wrong with it."""
        return self.counted > 0 and not self.problems


@dataclass
class Outcome:
    """What a disturbance did to the calls."""

    name: str
    """Of the disturbance."""
    calls: int = 0
    refused: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    moved: int = 0
    """Calls that went on at another server."""
    gaps_ms: list[float] = field(default_factory=list)
    """Of each affected call: the longest silence within an answer near the disturbance, or by how much longer
    than usual an answer was waited for, whichever is more. Infinite: one did not come."""
    turns: int = 0
    unanswered: int = 0
    usual_wait_ms: float = math.nan
    """Median of the turns that the disturbance did not come near; NaN: there are none."""
    late_ms: float = 0.0
    """By how much the latest chunk of all microphones left after its time."""
    figures: dict[str, float] = field(default_factory=dict)
    """What else was measured."""
    checks: list[Check] = field(default_factory=list)

    @classmethod
    def of(cls, name: str, reports: Sequence[CallReport], undisturbed: Iterable[TurnReport]) -> Outcome:
        """What the callers' reports add up to, without gaps, moves and checks."""
        turns = [turn for report in reports for turn in report.turns]
        waits = [wait for turn in undisturbed if (wait := turn.voice_to_voice_ms) is not None and wait > 0]
        return cls(
            name,
            len(reports),
            refused=[report.refused for report in reports if report.refused],
            lost=[report.lost for report in reports if report.lost],
            turns=len(turns),
            unanswered=sum(map(is_unanswered, turns)),
            usual_wait_ms=statistics.median(waits) if waits else math.nan,
            late_ms=max((report.late_ms for report in reports), default=0.0),
        )

    @property
    def passed(self) -> bool:
        """Whether all checks passed, and there was one."""
        return bool(self.checks) and all(check.passed for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """For JSON, which has neither infinity nor NaN."""
        return {**finite(asdict(self)), "passed": self.passed}

    def gap_ms(self, silences: Iterable[tuple[float, float]], turns: Iterable[TurnReport]) -> float:
        """The gap of one call.

        Args:
            silences: Near the disturbance, within answers: when each began (seconds), and its length (ms).
            turns: Near the disturbance.
        """
        # Where no other turn says what is usual, only answers that did not come count.
        usual_ms = self.usual_wait_ms if math.isfinite(self.usual_wait_ms) else math.inf
        waits = [
            math.inf if wait is None else wait - usual_ms
            for turn in turns
            for wait in (turn.voice_to_voice_ms,)
        ]
        return max([0.0, *(length_ms for _, length_ms in silences), *waits])


def is_unanswered(turn: TurnReport) -> bool:
    """Whether a turn got no answer, or not a whole one."""
    return bool(turn.problem) or turn.answered_s is None


def check_answers(turns: Sequence[TurnReport]) -> Check:
    """Few of the turns stay without an answer."""
    problems = [turn.problem or "no answer" for turn in turns if is_unanswered(turn)]
    few = len(problems) <= _MOST_UNANSWERED * len(turns)
    name = f"at most {_MOST_UNANSWERED:.0%} of the turns without an answer"
    return Check(name, len(turns), [] if few else problems)


def spoken_turns(turns: Iterable[ScriptTurn]) -> list[ScriptTurn]:
    """The turns of a script that are spoken, one after the other's answer."""
    return [turn for turn in turns if len(turn.samples) and turn.barge_in_ms is None]


def print_checks(console: Console, outcome: Outcome) -> None:
    """Name the checks that did not pass, with some of their problems."""
    for check in outcome.checks:
        if check.passed:
            continue
        console.print(f"  not so: {check.name} ({check.counted} checked)", style="red", markup=False)
        for problem in check.problems[:_SHOWN]:
            console.print(f"    {problem}", style="red", markup=False)
        if len(check.problems) > _SHOWN:
            console.print(f"    and {len(check.problems) - _SHOWN} more", style="red")


def print_outcomes(console: Console, title: str, outcomes: Sequence[Outcome]) -> None:
    """A table with a row for each outcome, and what else was measured."""
    head = ("calls; refused; lost", "moved", "gap p50 / p95, ms", "turns; unanswered", "usual wait, ms")
    table = make_table(title, "", *head, "checks", box=None)
    for one in outcomes:
        table.add_row(
            one.name,
            f"{one.calls}; {len(one.refused)}; {len(one.lost)}",
            str(one.moved),
            text_of(p50_p95(one.gaps_ms)),
            f"{one.turns}; {one.unanswered}",
            "" if math.isnan(one.usual_wait_ms) else f"{one.usual_wait_ms:.0f}",
            "passed" if one.passed else "FAILED",
        )
    console.print(table)
    for one in outcomes:
        figures = [f"{name}: {value:.1f}" for name, value in one.figures.items()]
        console.print(f"{one.name}: {'; '.join(figures)}", highlight=False, soft_wrap=True)
