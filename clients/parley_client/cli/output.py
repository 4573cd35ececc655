"""What the command prints: lines that keep their indent, errors, and tables of latencies."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from parley_client.cli.turns import TurnReport, percentile
from parley_client.errors import OutputClosedError

OUTPUT_CLOSED = 141
"""Exit status after the reader has closed the output: 128 + SIGPIPE, as in a shell."""
_LEAST_TEXT = 24

# Column heading and what it measures, by the name of the stage. All of them fit into 80 columns.
STAGES = {
    "voice_to_voice": ("voice→\nvoice", "true end of the user's speech to the first sample of the answer"),
    "detection": ("end\nheard", "true end of the user's speech to its detection"),
    "from_detection": ("then\nvoice", "that detection to the first sample of the answer"),
    "asr_final": ("ASR", "detection to the final transcript, by the server's clock as all that follow"),
    "end_of_turn": ("turn\nover", "final transcript to the decision that the user's turn is over"),
    "llm_first_token": ("LLM\nfirst", "that decision to the first token; 0: the answer was begun before"),
    "llm_total": ("LLM\nall", "the language model's whole answer"),
    "tool": ("tool", "waiting for tools"),
    "tts_first_audio": ("TTS\nfirst", "first speakable segment to its first audio"),
    "first_audio": ("audio\nsent", "detection to the first audio sent"),
    "barge_in_stop": (
        "barge\nin",
        "first sample of an interruption to the agent's last, by the client's clock",
    ),
}
_NAME_COLUMNS = 16
_INVALID = "-"
_INVALID_MEANS = (
    "no valid measurement, and not in p50 and p95: the turn failed, the call changed its server in it, or "
    "the stage ended before it began, as where an answer began in a pause of the user, or the agent's audio "
    "had a gap where it was interrupted"
)


class OutputConsole(Console):
    """A console whose reader may close the output.

    Rich's own raises :class:`SystemExit`, which ends an event loop in the middle of its tasks; an
    ordinary exception lets calls be hung up and servers be stopped.
    """

    def on_broken_pipe(self) -> NoReturn:
        """Called by rich.

        Raises:
            OutputClosedError: always.
        """
        raise OutputClosedError("the reader of the output has closed it")


def printable(text: str) -> str:
    """The text without control characters: it comes from a file."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def until_closed(program: Callable[[], int]) -> int:
    """The exit status of ``program``, and :data:`OUTPUT_CLOSED` if the reader of its output left."""
    try:
        status = program()
        sys.stdout.flush()
    except (OutputClosedError, BrokenPipeError):
        discard_output()
        return OUTPUT_CLOSED
    return status


def discard_output() -> None:
    """Write nothing more to standard output, on which a write has failed.

    What is still buffered would fail once more when Python flushes it at its end.
    """
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)


def print_error(message: str, code: str, advice: str = "") -> None:
    """Print a failure on standard error, and a line of advice."""
    console = OutputConsole(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"[red]parley: {escape(message)}[/] [dim]({code})[/]")
    if advice:
        console.print(escape(advice))


def print_warning(message: str, advice: str = "") -> None:
    """Print a warning on standard error, and a line of advice."""
    console = OutputConsole(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"[yellow]warning: {escape(message)}[/]")
    if advice:
        console.print(escape(advice))


def print_hanging(console: Console, head: str, text: str) -> None:
    """Print ``text`` behind ``head``, both with rich's markup; its lines wrap below its beginning."""
    first, rest = Text.from_markup(head), Text.from_markup(text)
    lines = rest.wrap(console, max(_LEAST_TEXT, console.width - first.cell_len))
    for line in lines:
        line.rstrip()
    indent = Text("\n" + " " * first.cell_len)
    console.print(Text.assemble(first, indent.join(lines)), soft_wrap=True)


def plain_table(*headings: str, right: Sequence[str] = ()) -> Table:
    """A table without lines; numbers stand to the right."""
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left")
    return table


def latency_table(reports: Sequence[TurnReport]) -> Table:
    """One row for each turn, and below several p50 and p95 of those with a measurement (milliseconds)."""
    table = Table(
        title="Latency of each turn (ms)", title_justify="left", box=SIMPLE_HEAD, padding=0, show_edge=False
    )
    table.add_column("turn", no_wrap=True, max_width=_NAME_COLUMNS, vertical="bottom")
    for heading, _ in STAGES.values():
        table.add_column(heading, justify="right", no_wrap=True, vertical="bottom")
    for report in reports:
        invalid = report.invalid_stages
        cells = (_INVALID if name in invalid else _ms(value) for name, value in report.stages.items())
        table.add_row(escape(report.name), *cells)
    if len(reports) > 1:
        count = sum(bool(_measured(report)) for report in reports)
        table.add_section()
        for share in (0.5, 0.95):
            percentiles = (percentile(values, share) for values in by_stage(reports).values())
            table.add_row(f"p{round(share * 100)} of {count}", *map(_ms, percentiles))
    return table


def by_stage(reports: Sequence[TurnReport]) -> dict[str, list[float]]:
    """Every measured value of each stage (milliseconds)."""
    values: dict[str, list[float]] = {stage: [] for stage in STAGES}
    for report in reports:
        for stage, value in report.stages.items():
            if value is not None:
                values[stage].append(value)
    return values


def print_reports(console: Console, reports: Sequence[TurnReport], *, explain: bool = False) -> None:
    """Print latencies and problems.

    Args:
        console: where to print.
        reports: of all turns.
        explain: a table in any case, and what its columns mean; otherwise one turn is one line.
    """
    measured = [report for report in reports if _measured(report)]
    rows = [report for report in reports if _measured(report) or report.invalid_stages]
    if len(rows) > 1 or (explain and measured):
        console.print(latency_table(rows))
        if explain and any(report.invalid_stages for report in rows):
            print_hanging(console, f"[dim]{_INVALID:>12}[/]  ", f"[dim]{_INVALID_MEANS}[/]")
    elif measured:
        parts = [
            f"{_one_line(STAGES[name][0])} {_ms(value)}" for name, value in _measured(measured[0]).items()
        ]
        print_hanging(console, "Latency (ms): ", ", ".join(parts))
    if explain and measured:
        for heading, meaning in STAGES.values():
            print_hanging(console, f"[dim]{_one_line(heading):>12}[/]  ", f"[dim]{meaning}[/]")
    _print_speculation(console, measured)
    for report in reports:
        if report.problem:
            print_hanging(console, f"[red]{escape(report.name)}:[/] ", f"[red]{escape(report.problem)}[/]")


def print_slowness(console: Console, reports: Sequence[TurnReport], slow_ms: float) -> None:
    """Print a warning where the median from the end of speech to the answer is above ``slow_ms``."""
    usual_ms = percentile(by_stage(reports)["voice_to_voice"], 0.5)
    if usual_ms is not None and usual_ms > slow_ms:
        console.print(
            f"[yellow]This machine is slow for these models: half of the answers began {usual_ms:.0f} ms "
            "after the end of speech, or later. Other programs may be using its processors.[/]"
        )


def _print_speculation(console: Console, reports: Sequence[TurnReport]) -> None:
    """How many answers were begun before the user's turn was over, and how many of them were used."""
    begun = sum(report.metrics.speculations for report in reports if report.metrics)
    used = sum(report.metrics.speculated for report in reports if report.metrics)
    if begun:
        print_hanging(console, "Answers begun early: ", f"{begun}, used: {used}")


def _measured(report: TurnReport) -> dict[str, float]:
    """The stages that this turn went through."""
    return {name: value for name, value in report.stages.items() if value is not None}


def _one_line(heading: str) -> str:
    return heading.replace("→\n", "→").replace("\n", " ")


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"
