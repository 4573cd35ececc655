"""Tables of what a conversation took."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from parley_client.turns import TurnReport, percentile

# Column heading and what it measures, by the name of the stage.
STAGES = {
    "voice_to_voice": ("voice→\nvoice", "true end of the user's speech to the first sample of the answer"),
    "detection": ("speech\nend", "true end of the user's speech to its detection"),
    "from_detection": ("to\nvoice", "that detection to the first sample of the answer"),
    "asr_final": ("ASR", "detection to the final transcript, by the server's clock as all that follow"),
    "llm_first_token": ("LLM\nfirst", "final transcript to the first token"),
    "llm_total": ("LLM\nall", "the language model's whole answer"),
    "tool": ("tools", "waiting for tools"),
    "tts_first_audio": ("TTS\nfirst", "first speakable segment to its first audio"),
    "first_audio": ("server", "detection to the first audio sent"),
    "barge_in_stop": (
        "barge-\nin",
        "first sample of an interruption to the agent's last, by the client's clock",
    ),
}


def latency_table(reports: Sequence[TurnReport]) -> Table:
    """One row for each turn, and p50 and p95 of them all (milliseconds)."""
    table = Table(title="Latency of each turn (ms)", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("turn", no_wrap=True)
    for heading, _ in STAGES.values():
        table.add_column(heading, justify="right")
    for report in reports:
        table.add_row(escape(report.name), *(_ms(value) for value in report.stages.values()))
    table.add_section()
    for share in (0.5, 0.95):
        table.add_row(
            f"p{round(share * 100)}",
            *(_ms(percentile(values, share)) for values in by_stage(reports).values()),
        )
    return table


def by_stage(reports: Sequence[TurnReport]) -> dict[str, list[float]]:
    """Every measured value of each stage (milliseconds)."""
    values: dict[str, list[float]] = {stage: [] for stage in STAGES}
    for report in reports:
        for stage, value in report.stages.items():
            if value is not None:
                values[stage].append(value)
    return values


def print_reports(console: Console, reports: Sequence[TurnReport]) -> None:
    """The table, what its columns mean, and what went wrong."""
    console.print(latency_table(reports))
    for heading, meaning in STAGES.values():
        console.print(f"[dim]{_one_line(heading):>14}  {meaning}[/]")
    for report in reports:
        if report.problem:
            console.print(f"[red]{escape(f'{report.name}: {report.problem}')}[/]")


def _one_line(heading: str) -> str:
    return heading.replace("-\n", "-").replace("→\n", "→").replace("\n", " ")


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"
