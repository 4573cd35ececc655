"""The verdicts as a table, for people and for documents."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from chaos.runner import Verdict

HEADINGS = (
    "fault",
    "calls; spared; touched",
    "turns; without an answer",
    "requests; errors; longest",
    "texts; answers; crossed",
    "endless",
    "processors busy",
    "first answer in a new call (at most)",
)


def row(verdict: Verdict) -> tuple[str, ...]:
    """The cells of a table."""
    recoveries = [
        f"{where} {'never' if took is None else f'{took:.1f}'} ({verdict.allowed_s[where]:g}) s"
        for where, took in verdict.recovery_s.items()
    ]
    return (
        verdict.what,
        f"{verdict.calls}; {verdict.spared}; {len(verdict.touched)}",
        f"{verdict.turns}; {verdict.unanswered}",
        f"{verdict.requests}; {sum(verdict.failed.values())}; {verdict.longest_s:.1f} s",
        f"{verdict.texts}; {verdict.answers}; {len(verdict.crossed)}",
        str(len(verdict.endless)),
        "" if verdict.busy is None else f"{100 * verdict.busy:.0f} %",
        ", ".join(recoveries),
    )


def complaints(verdict: Verdict) -> list[str]:
    """All that did not hold."""
    named = (
        ("touched", verdict.touched),
        ("crossed", verdict.crossed),
        ("endless", verdict.endless),
        ("late", verdict.late()),
        ("problem", verdict.problems),
    )
    return [f"{verdict.fault}: {name}: {text}" for name, texts in named for text in texts]


def show(verdicts: Sequence[Verdict], console: Console) -> None:
    """Print the table, and what did not hold."""
    table = Table(*HEADINGS)
    for verdict in verdicts:
        table.add_row(*row(verdict), style="" if verdict.passed else "red")
    console.print(table)
    for verdict in verdicts:
        for text in complaints(verdict):
            console.print(text, style="red", markup=False)


def to_markdown(verdicts: Sequence[Verdict]) -> str:
    """The table, for a document."""
    rows = [HEADINGS, ("---",) * len(HEADINGS), *map(row, verdicts)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)
