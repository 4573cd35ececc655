"""The table, and the same figures for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from statistics import fmean
from typing import Any

from harness.report import make_table
from harness.stats import Share, p50_p95, text_of
from rich.console import Console

from simulate.scores import STEPS, Scores

_CASES = 12
_LONGEST = 240
_PAUSED = "false cut-offs, turns with a pause inside"
_ALOUD = "… in which the agent was heard"
_HALTED = "… pauses by what was none"
_LATENCY = "end of speech to first audio"


@dataclass(frozen=True)
class Row:
    """A figure."""

    name: str
    value: Callable[[Scores], Share | list[float] | str]
    goal: str = ""
    limits: tuple[float | None, ...] = ()
    """What must not be exceeded: of a share (0-1), or of p50 and p95; None: no limit."""
    rest: bool = False
    """Whether the row shows the complement: those that do not count against the agent."""


def _step(step: str, scores: Scores) -> list[float]:
    return scores.steps[step]


ROWS = (
    Row(_PAUSED, lambda s: s.paused_cut_off, "≤ 20 %", (0.2,)),
    Row("false cut-offs, all spoken turns", lambda s: s.cut_off, "≤ 5 %", (0.05,)),
    Row(_ALOUD, lambda s: s.cut_off_aloud, "≤ 1 %", (0.01,)),
    Row("missed turns", lambda s: s.missed),
    Row("unwanted answers", lambda s: s.uncalled, "≤ 3 %", (0.03,)),
    Row(_LATENCY, lambda s: s.latency),
    Row("… to the first word that carries the answer", lambda s: s.to_answer),
    Row("detection of silence to first audio", lambda s: s.latency_from_detection),
    *(Row(f"… until: {step}", partial(_step, step)) for step in STEPS),
    Row("wrongful interruptions, backchannels and noise", lambda s: s.wrongful, "< 2 %", (0.02,)),
    Row("wrongful interruptions, the agent's own echo", lambda s: s.wrongful_echo, "< 2 %", (0.02,)),
    Row(_HALTED, lambda s: s.halted),
    Row("… length of such a pause", lambda s: s.halt_ms),
    Row("missed interruptions", lambda s: s.missed_interruptions, "≤ 3 %", (0.03,)),
    Row("barge-in: onset to last audio received", lambda s: s.stop_sent, "p95 < 100", (None, 100.0)),
    Row("barge-in: onset to silence", lambda s: s.stop_heard),
    Row("… queued by the client then", lambda s: s.stop_queued),
    Row("history not what was played", lambda s: s.history, "none", (0.0,)),
    Row("audio after an interruption", lambda s: str(s.late_audio)),
    Row("answers with gaps in their audio", lambda s: s.gaps),
    Row("words misunderstood", lambda s: _of(s.words_wrong, s.words)),
    Row("turns without their key words", lambda s: s.keywords),
    Row("tool calls not as expected", lambda s: s.tools),
    Row("answers about the question", lambda s: s.answers, rest=True),
    Row("speculations used", lambda s: _of(s.speculated, s.speculations)),
    Row("microphone behind its time, at most", lambda s: f"{max(s.microphone_late, default=0.0):.0f}"),
    Row("τ-voice: response latency, mean in s", lambda s: _mean(s.interaction.response_s)),
    Row("τ-voice: turns answered", lambda s: s.interaction.unanswered, rest=True),
    Row("τ-voice: yield latency, mean in s", lambda s: _mean(s.interaction.yield_s)),
    Row("τ-voice: interruptions yielded to", lambda s: s.interaction.not_yielded, rest=True),
    Row(
        "τ-voice: backchannels talked through",
        lambda s: s.interaction.backchannels,
        "≥ 97 %",
        (0.03,),
        rest=True,
    ),
    Row("τ-voice: vocal tics ignored", lambda s: s.interaction.tics, "≥ 90 %", (0.1,), rest=True),
    Row("τ-voice: speech to others ignored", lambda s: s.interaction.others, rest=True),
)


def print_table(console: Console, scores: Scores, latency_ms: tuple[float, float]) -> None:
    """Every figure beside its goal."""
    title = f"{scores.exchanges} exchanges in {scores.calls} calls; times p50 / p95 in ms"
    table = make_table(title, "", "measured", "goal")
    for row in _rows(latency_ms):
        table.add_row(row.name, _cell(row, scores), row.goal)
    console.print(table)


def _rows(latency_ms: tuple[float, float]) -> list[Row]:
    goal = " / ".join(f"≤ {limit:.0f}" for limit in latency_ms)
    return [replace(row, goal=goal, limits=latency_ms) if row.name == _LATENCY else row for row in ROWS]


def print_cases(console: Console, scores: Scores, *, all_of_them: bool) -> None:
    """What counted against the agent, and what could not be tried."""
    groups: dict[str, list[str]] = {
        "broken": scores.broken,
        "not performed, or not done with": scores.not_staged,
        **{
            f"not: {row.name}" if row.rest else row.name: value.cases
            for row in ROWS
            if isinstance(value := row.value(scores), Share)
        },
    }
    # What counts with pauses inside stands in all turns again; that it paused is no fault.
    for redundant in (_PAUSED, _ALOUD, _HALTED):
        groups.pop(redundant)
    for name, cases in groups.items():
        if not cases:
            continue
        console.print(f"[bold]{name}[/]")
        different = Counter(_shortened(case) for case in cases)
        shown = len(different) if all_of_them else _CASES
        for case, count in islice(different.items(), shown):
            console.print(f"  {case}{f' ({count} times)' * (count > 1)}", markup=False, highlight=False)
        if len(different) > shown:
            console.print(f"  … {len(different) - shown} more (--all-cases)")


def summary(scores: Scores) -> dict[str, Any]:
    """For JSON."""
    figures: dict[str, Any] = {
        "calls": scores.calls,
        "exchanges": scores.exchanges,
        "broken": scores.broken,
        "not_staged": scores.not_staged,
    }
    for row in ROWS:
        value = row.value(scores)
        if isinstance(value, Share):
            count = value.rest if row.rest else value.count
            figures[row.name] = {"count": count, "of": value.of, "cases": value.cases}
        elif isinstance(value, str):
            figures[row.name] = value
        else:
            percentiles = p50_p95(value)
            figures[row.name] = {
                "count": len(value),
                "p50": percentiles and percentiles[0],
                "p95": percentiles and percentiles[1],
                "values": [round(one, 1) for one in value],
            }
    return figures


def _cell(row: Row, scores: Scores) -> str:
    value = row.value(scores)
    if isinstance(value, str):
        return value
    figures: tuple[float | None, ...]
    if isinstance(value, Share):
        text, figures = _of(value.rest if row.rest else value.count, value.of), (value.share,)
    else:
        figures = p50_p95(value) or ()
        text = text_of(figures)
    pairs = zip(figures, row.limits, strict=False)
    bad = any(figure is not None and limit is not None and figure > limit for figure, limit in pairs)
    return f"[red]{text}[/]" if bad else text


def _mean(values: list[float]) -> str:
    return f"{fmean(values):.2f} of {len(values)}" if values else ""


def _shortened(case: str) -> str:
    return case if len(case) <= _LONGEST else f"{case[: _LONGEST - 1]}…"


def _of(count: int, of: int) -> str:
    return f"{count} of {of} ({100 * count / of:.1f} %)" if of else ""
