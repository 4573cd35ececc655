"""What is measured: the figures of each stage, those of a level of load, and their tables."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.report import Table
from harness.stats import SHARES, Estimate, estimate, fewest, ratio_estimate

from stages.protocols import Stage
from stages.turns import Turn

_PUBLISHED = Path(__file__).parent / "published.toml"
_LATE_MS = 50
_NAMES = (0, 1, 2)


@dataclass(frozen=True)
class Figure:
    """One measured quantity."""

    stage: Stage
    title: str
    unit: str
    digits: int = 0
    """Behind the point."""


FIGURES: Mapping[str, Figure] = {
    "first_partial_ms": Figure(Stage.RECOGNIZER, "start of speech to first text", "ms"),
    "final_ms": Figure(Stage.RECOGNIZER, "true end of speech to final text", "ms"),
    "first_token_ms": Figure(Stage.LANGUAGE_MODEL, "request to first token", "ms"),
    "tokens_per_s": Figure(Stage.LANGUAGE_MODEL, "tokens a second, after the first", "1/s", 1),
    "first_audio_ms": Figure(Stage.VOICE, "request to first audio", "ms"),
    "first_audible_ms": Figure(Stage.VOICE, "request to first audible audio", "ms"),
    "real_time_factor": Figure(Stage.VOICE, "real-time factor", "", 2),
    "call_first_audio_ms": Figure(Stage.CALL, "true end of speech to first audio", "ms"),
    "call_first_audible_ms": Figure(Stage.CALL, "true end of speech to first audible audio", "ms"),
}


@dataclass(frozen=True)
class LevelResult:
    """All turns of one endpoint under one load."""

    endpoint: str
    stage: Stage
    concurrency: int
    turns: Sequence[Turn]
    wall_s: float
    active_s: float = 0.0
    """The sum of the times for which streams, requests or calls were under way."""
    server_cpu_s: float | None = None
    """Processor time of the server's processes; None: it is none of ours, or others were served too."""
    driver_cpu_s: float = 0.0
    """Processor time of this process."""
    loop_late_ms: Sequence[float] = field(default_factory=list)
    """How much later than asked for this process's event loop woke up."""

    @property
    def failures(self) -> Counter[str]:
        """Turns that failed, by reason."""
        return Counter(turn.failure for turn in self.turns if turn.failure)

    @property
    def word_error_rate(self) -> Estimate | None:
        """Words of turns that failed are errors; None: nothing was recognised here."""
        return ratio_estimate([turn.words for turn in self.turns if turn.words])

    @property
    def late_ms(self) -> list[float]:
        """The latest chunk of every turn with a microphone."""
        return [turn.late_ms for turn in self.turns if turn.late_ms is not None]

    @property
    def server_cpu_percent(self) -> float | None:
        """Share of one processor for each stream, request or call that is under way (percent)."""
        if self.server_cpu_s is None or not self.active_s:
            return None
        return 100 * self.server_cpu_s / self.active_s

    @property
    def driver_cpu_percent(self) -> float | None:
        """Share of one processor that this process took for all of them (percent); None: nothing ran."""
        return 100 * self.driver_cpu_s / self.wall_s if self.wall_s else None

    def values(self, figure: str) -> list[float]:
        """Of every turn that has the figure."""
        return [turn.figures[figure] for turn in self.turns if figure in turn.figures]

    def estimates(self, figure: str) -> dict[float, Estimate | None]:
        """By :data:`harness.stats.SHARES`; None: too few turns."""
        values = self.values(figure)
        return {share: estimate(values, share) for share in SHARES}

    def figure_names(self) -> list[str]:
        """Figures that at least one turn has."""
        return [name for name in FIGURES if any(name in turn.figures for turn in self.turns)]

    def summary(self) -> dict[str, Any]:
        """For JSON: figures with their values, failures, and how busy both sides were."""
        return {
            "endpoint": self.endpoint,
            "stage": self.stage,
            "concurrency": self.concurrency,
            "turns": len(self.turns),
            "failures": dict(self.failures),
            "figures": {
                name: {
                    "unit": FIGURES[name].unit,
                    "n": len(self.values(name)),
                    **{
                        f"p{round(100 * share)}": _interval(found)
                        for share, found in self.estimates(name).items()
                    },
                    "values": self.values(name),
                }
                for name in self.figure_names()
            },
            "word_error_rate": _interval(self.word_error_rate),
            "microphone_late_ms": self.late_ms,
            "loop_late_ms": {f"p{round(100 * s)}": _value(self.loop_late_ms, s) for s in SHARES},
            "wall_s": self.wall_s,
            "server_cpu_percent": self.server_cpu_percent,
            "driver_cpu_percent": self.driver_cpu_percent,
        }


def _interval(found: Estimate | None) -> dict[str, float] | None:
    return None if found is None else {"value": found.value, "low": found.low, "high": found.high}


def _value(values: Sequence[float], share: float) -> float | None:
    found = estimate(values, share)
    return None if found is None else found.value


def stage_tables(results: Sequence[LevelResult]) -> list[Table]:
    """One table for each stage that was measured."""
    head = ["endpoint", "at once", "figure", "n", *(f"p{round(100 * share)}" for share in SHARES)]
    return [
        Table(stage.value, head, [row for one in results if one.stage == stage for row in _rows(one)], _NAMES)
        for stage in Stage
        if any(one.stage == stage for one in results)
    ]


def load_table(results: Sequence[LevelResult]) -> Table:
    """Failures of each level, and how busy and how late both sides were."""
    head = ["endpoint", "at once", "stage", "turns", "failed", "server CPU each", "driver CPU"]
    head += ["microphone late p50 / max", "event loop late p99 / max"]
    return Table(
        "failures, and the driver itself",
        head,
        [
            [
                one.endpoint,
                str(one.concurrency),
                one.stage.value,
                str(len(one.turns)),
                ", ".join(f"{count} {reason}" for reason, count in sorted(one.failures.items())) or "0",
                _percent(one.server_cpu_percent),
                _percent(one.driver_cpu_percent),
                _pair(one.late_ms, 0.5),
                _pair(one.loop_late_ms, 0.99),
            ]
            for one in results
        ],
        _NAMES,
    )


def published_table(stages: Collection[Stage]) -> Table:
    """What others have published of these stages (published.toml)."""
    sources = tomllib.loads(_PUBLISHED.read_text(encoding="utf-8"))["source"]
    rows = [
        [source["stage"], service, *_columns(figures), source["figure"], f"{source['url']}, {source['read']}"]
        for source in sources
        if Stage(source["stage"]) in stages
        for service, figures in source["p50_p95_p99"].items()
    ]
    head = ["stage", "service", "p50", "p95", "p99", "figure", "source, as read on"]
    return Table("published by others, not measured here", head, rows, (0, 1, 5, 6))


def _columns(figures: Sequence[int]) -> list[str]:
    return [*(f"{figure:,}" for figure in figures), *[""] * (3 - len(figures))]


def notes(results: Sequence[LevelResult]) -> list[str]:
    """What the tables do not show."""
    found = []
    for share in SHARES:
        lacking = {
            one.endpoint
            for one in results
            for name in one.figure_names()
            if len(one.values(name)) < fewest(share)
        }
        if lacking:
            found.append(
                f"p{round(100 * share)} needs {fewest(share)} turns and is not printed below that "
                f"({len(lacking)} of {len({one.endpoint for one in results})} endpoints have such a level)."
            )
    if any(one.server_cpu_percent is None for one in results):
        found.append("The server's processor time is known only where the benchmark has started the server.")
    late = [one for one in results if max(one.late_ms, default=0.0) > _LATE_MS]
    if late:
        found.append(
            f"The driver was late: in {len(late)} of {len(results)} levels a piece of audio left more than "
            f"{_LATE_MS} ms after its time. Their latencies have some of that in them."
        )
    missing = [stage.value for stage in Stage if not any(one.stage == stage for one in results)]
    if missing:
        found.append(f"No endpoint was given for: {', '.join(missing)}.")
    found += [
        "Intervals are of 95 % (bootstrap over turns); turns of one call are taken to be independent.",
        "A turn that failed has no figures and is counted in the last table; its words count as errors.",
        "The driver runs on the machine that is named. A server on the same machine shares its processors.",
        "Server CPU is that of Triton and its models, without the gateway.",
        "GPUs, network conditions and the quality of answers and voices were not measured.",
    ]
    return found


def _rows(one: LevelResult) -> Iterator[list[str]]:
    start = [one.endpoint, str(one.concurrency)]
    for name in one.figure_names():
        figure = FIGURES[name]
        title = f"{figure.title}, {figure.unit}" if figure.unit else figure.title
        cells = [_cell(found, figure.digits) for found in one.estimates(name).values()]
        yield [*start, title, str(len(one.values(name))), *cells]
    rate = one.word_error_rate
    if rate is not None:
        words = sum(turn.words[1] for turn in one.turns if turn.words)
        percent = Estimate(100 * rate.value, 100 * rate.low, 100 * rate.high)
        yield [*start, f"word error rate of {words} words, %", str(len(one.turns)), _cell(percent, 1), "", ""]
    if not one.figure_names():
        yield [*start, "every turn failed", "0", "", "", ""]


def _cell(found: Estimate | None, digits: int) -> str:
    if found is None:
        return ""
    return f"{found.value:.{digits}f} ({found.low:.{digits}f}\N{EN DASH}{found.high:.{digits}f})"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0f} %"


def _pair(values: Sequence[float], share: float) -> str:
    found = estimate(values, share)
    if not values or found is None:
        return ""
    return f"{found.value:.0f} / {max(values):.0f} ms"
