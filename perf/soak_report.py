"""The terminal's tables of a soak."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from soak_growth import HORIZON_H, Growth
from soak_judgement import Judgement

_STYLES = {"flat": "", "below": "", "unclear": "yellow", "grows": "red", "bounded": ""}
_SHOWN = 40


def show(judgement: Judgement, console: Console) -> None:
    """Sessions, kills, growth, and problems."""
    console.print(_sessions(judgement))
    if judgement.kills:
        console.print(_kills(judgement))
    console.print(_growths(judgement))
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


def _sessions(judgement: Judgement) -> Table:
    table = Table(title="Sessions", title_justify="left")
    for column in ("kind", "ended with", "count", "of them near a kill"):
        table.add_column(column, justify="left" if column in ("kind", "ended with") else "right")
    for kind, outcomes in sorted(judgement.outcomes.items()):
        for outcome, count in sorted(outcomes.items(), key=lambda item: -item[1]):
            excused = judgement.excused.get(kind, {}).get(outcome, 0)
            table.add_row(kind, outcome, str(count), str(excused or ""))
    return table


def _kills(judgement: Judgement) -> Table:
    table = Table(title="Left by each process that was killed", title_justify="left")
    for column in ("what", "kills", "median", "most", "allowed"):
        table.add_column(column, justify="left" if column == "what" else "right")
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


def _growths(judgement: Judgement) -> Table:
    table = Table(title="Growth", title_justify="left")
    headings = (
        "role",
        "what",
        "processes",
        "level",
        "per hour (99 %)",
        f"in {HORIZON_H / 24:g} days at most",
    )
    for column in (*headings, "bound", "gained (allowed)", "verdict"):
        table.add_column(column, justify="left" if column in ("role", "what", "verdict") else "right")
    for each in judgement.growth:
        if each.verdict != "too short":
            table.add_row(*_row(each), style=_STYLES[each.verdict])
    short = sum(each.verdict == "too short" for each in judgement.growth)
    table.caption = f"for {short} more there were too few samples" if short else None
    return table


def _row(growth: Growth) -> tuple[str, ...]:
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
