"""The tables of a benchmark, for the terminal and for the report alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.report import Table
from harness.stats import SHARES, Estimate, estimate, fewest

from stages.figures import FIGURES, LevelResult
from stages.protocols import Stage

_LATE_MS = 50


_NAMES = (0, 1, 2)


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
