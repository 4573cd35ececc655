"""What a soak has shown, from its journal: growth, kills, sessions, and what went wrong."""

from __future__ import annotations

import collections
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harness.report import make_table
from rich.console import Console
from rich.table import Table

from soak.growth import HORIZON_H, Growth, Leftover, growth, leftovers

AGENT = "voice_agent"
ANSWERED = "answered"
"""How the outcome of a conversation begins that was held to its end."""
_NOT_AWAITED_S = 180.0
"""Before the end of the soak: a process that was killed so late need not be replaced."""
_LATE_S = 2.0
_STYLES = {"flat": "", "below": "", "unclear": "yellow", "grows": "red", "bounded": ""}
_SHOWN = 40


@dataclass
class Judgement:
    """Of one soak."""

    begin: dict[str, Any] = field(default_factory=dict)
    """The first record."""
    hours: float = 0.0
    is_complete: bool = False
    sessions: int = 0
    answered: int = 0
    """Conversations to their end."""
    outcomes: dict[str, dict[str, int]] = field(default_factory=dict)
    canaries: int = 0
    kills: list[dict[str, Any]] = field(default_factory=list)
    excused: dict[str, dict[str, int]] = field(default_factory=dict)
    """Failures near a kill, by kind of session and outcome."""
    problems: list[str] = field(default_factory=list)
    growth: list[Growth] = field(default_factory=list)
    leftovers: list[Leftover] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether nothing went wrong, and nothing grows."""
        return not self.problems and all(each.verdict != "grows" for each in self.growth)

    def summary(self) -> dict[str, Any]:
        """For JSON."""
        return {
            **asdict(self),
            "growth": [
                {**asdict(each), "verdict": each.verdict, "at_most": each.at_most} for each in self.growth
            ],
            "passed": self.passed,
        }


def read(path: Path) -> list[dict[str, Any]]:
    """The records of a journal. A last line that was cut off is left out."""
    records = []
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines):
        try:
            records.append(json.loads(line))
        except ValueError:
            if number < len(lines) - 1:
                raise
    return records


def judge(records: Sequence[Mapping[str, Any]]) -> Judgement:
    """Everything that a journal shows.

    Raises:
        ValueError: it has no samples.
    """
    samples = [record for record in records if record["record"] == "sample"]
    if not samples:
        raise ValueError("the soak took no sample")
    found = Judgement(
        begin=dict(next((record for record in records if record["record"] == "begin"), {})),
        hours=round(samples[-1]["at_s"] / 3600, 3),
        is_complete=any(record["record"] == "end" for record in records),
        sessions=samples[-1]["sessions"],
        answered=sum(
            count
            for outcomes in samples[-1]["outcomes"].values()
            for outcome, count in outcomes.items()
            if outcome.startswith(ANSWERED)
        ),
        outcomes=samples[-1]["outcomes"],
        canaries=sum(record["record"] == "canaries" for record in records),
        kills=_kills(records),
    )
    _judge_failures(found, records)
    _judge_kills(found, samples)
    found.growth = list(growth(samples, found.begin.get("unix_s", 0.0), len(found.kills)))
    found.leftovers = list(leftovers(samples, found.kills))
    for each in found.leftovers:
        allowed = each.quantity.left_by_kills
        if allowed is not None and each.median > allowed:
            found.problems.append(
                f"a kill leaves {each.median:.1f} {each.quantity.unit} ({each.name}); allowed: {allowed:g}"
            )
    if found.is_complete:
        found.problems += _not_shown(found)
    return found


def _not_shown(found: Judgement) -> Iterator[str]:
    """What a complete soak has not tried, so that its silence says nothing."""
    if not found.sessions:
        yield "no session was held"
    if not found.answered and any("conversation" in kind for kind in found.begin.get("kinds", ())):
        yield "no conversation was answered"
    if not found.canaries:
        yield "no canary was answered"
    if not found.kills:
        yield "nothing was killed"
    if found.kills and not found.leftovers:
        yield "what kills leave was not seen"
    if all(each.verdict == "too short" for each in found.growth):
        yield "no process was watched for long enough"


def _kills(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    kills: dict[float, dict[str, Any]] = {}
    for record in records:
        if record["record"] in ("kill", "restored"):
            kills[record["kill"]["at_s"]] = dict(record["kill"])
    return list(kills.values())


def _judge_failures(found: Judgement, records: Iterable[Mapping[str, Any]]) -> None:
    """What is a problem although, or because, nothing or something was killed."""
    killed = {kill["at_s"]: kill["model"] for kill in found.kills}
    excused: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for record in records:
        if record["record"] != "failure":
            continue
        outcome = record.get("outcome", "")
        models = {killed.get(at_s, "") for at_s in record["kills"]}
        what = f"{record['at_s']:.0f} s: {record['what']}: {record['error']}"
        if outcome == "did not end":
            found.problems.append(f"{what}: no end")
        elif outcome == "CrossedError":
            found.problems.append(f"{what}: crossed")
        elif not record["kills"]:
            found.problems.append(what)
        elif "CallLost" in outcome and AGENT not in models:
            found.problems.append(f"{what}: the call was lost with {', '.join(sorted(models))}")
        else:
            excused[record["what"]][outcome] += 1
    found.excused = {what: dict(counter) for what, counter in excused.items()}


def _judge_kills(found: Judgement, samples: Sequence[Mapping[str, Any]]) -> None:
    """Processes that were not replaced, and those that ended without a kill."""
    for kill in found.kills:
        ended_soon_after = found.hours * 3600 - kill["at_s"] < _NOT_AWAITED_S
        if kill["restored_s"] is None and not ended_soon_after:
            found.problems.append(f"{kill['instance']}, killed at {kill['at_s']:.0f} s, was not replaced")
    before: dict[str, tuple[int, float]] = {}
    seen_s = 0.0
    for sample in samples:
        now = {use["role"]: (use["pid"], use["started"]) for use in sample["processes"]}
        disturbed = [
            kill
            for kill in found.kills
            if kill["at_s"] <= sample["at_s"] and (kill["restored_s"] or sample["at_s"]) >= seen_s - _LATE_S
        ]
        ended = set()
        for role, process in before.items():
            excuse = any(kill["instance"] == role or kill["server_replaced"] for kill in disturbed)
            if now.get(role) != process and not excuse:
                found.problems.append(f"{role} ended at {sample['at_s']:.0f} s without having been killed")
                ended.add(role)
        before = {role: process for role, process in before.items() if role not in ended} | now
        seen_s = sample["at_s"]


def show(judgement: Judgement, console: Console) -> None:
    """Sessions, kills, growth, and problems."""
    console.print(_session_table(judgement))
    if judgement.kills:
        console.print(_kill_table(judgement))
    console.print(_growth_table(judgement))
    end = "" if judgement.is_complete else ", which did not end by itself"
    console.print(
        f"{judgement.hours:.2f} hours{end}: {judgement.sessions} sessions, "
        f"{judgement.answered} conversations answered, "
        f"{len(judgement.kills)} kills, all canaries answered {judgement.canaries} times"
    )
    console.print(
        f"{len(judgement.problems)} problems", style="red" if judgement.problems else "green", markup=False
    )
    for problem in judgement.problems[:_SHOWN]:
        console.print(problem, style="red", markup=False)


def _session_table(judgement: Judgement) -> Table:
    table = make_table("Sessions", "kind", "ended with", "count", "of them near a kill", left=2)
    for kind, outcomes in sorted(judgement.outcomes.items()):
        for outcome, count in sorted(outcomes.items(), key=lambda item: -item[1]):
            excused = judgement.excused.get(kind, {}).get(outcome, 0)
            table.add_row(kind, outcome, str(count), str(excused or ""))
    return table


def _kill_table(judgement: Judgement) -> Table:
    head = ("what", "kills", "median", "most", "allowed")
    table = make_table("Left by each process that was killed", *head)
    for each in judgement.leftovers:
        unit, allowed = each.quantity.unit, each.quantity.left_by_kills
        table.add_row(
            each.name,
            str(each.kills),
            f"{each.median:+.1f} {unit}",
            f"{each.most:+.1f} {unit}",
            "" if allowed is None else f"{allowed:g} {unit}",
        )
    return table


def _growth_table(judgement: Judgement) -> Table:
    horizon = f"in {HORIZON_H / 24:g} days at most"
    head = ("role", "what", "processes", "level", "per hour (99 %)", horizon, "bound", "gained (allowed)")
    table = make_table("Growth", *head, "verdict", left=2)
    for each in judgement.growth:
        if each.verdict != "too short":
            table.add_row(*_growth_row(each), style=_STYLES[each.verdict])
    short = sum(each.verdict == "too short" for each in judgement.growth)
    table.caption = f"for {short} more there were too few samples" if short else None
    return table


def _growth_row(growth: Growth) -> tuple[str, ...]:
    unit = growth.quantity.unit
    slope, at_most = growth.slope, growth.at_most
    return (
        growth.role,
        growth.name,
        str(growth.processes),
        "" if growth.level is None else f"{growth.level:.4g} {unit}",
        f"{slope.estimate:+.2f} ({slope.low:+.2f} … {slope.high:+.2f})" if slope else "",
        "" if at_most is None else f"{at_most:+.0f} {unit}",
        f"{growth.quantity.bound:g} {unit}",
        "" if growth.gain is None else f"{growth.gain:+.1f} ({growth.allowed:g})",
        growth.verdict,
    )
