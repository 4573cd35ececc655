"""The figures of ``make bench-asr``, and their tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from parley_client.turns import percentile
from streams.paced import Paced


def figures(paced: Paced) -> dict[str, Any]:
    """What is written down of a level, times in milliseconds."""
    beside = [whole - answer.calls_ms for whole, answer in zip(paced.chunks, paced.answers, strict=True)]
    known = any(answer.calls_ms for answer in paced.answers)
    slowest = sorted(range(len(paced.chunks)), key=lambda at: -paced.chunks[at])
    slowest = slowest[: max(1, len(slowest) // 100)]
    return {
        "chunks": len(paced.chunks),
        "chunk_latency_ms": _percentiles(paced.chunks),
        "beside_model_ms": _percentiles(beside) if known else None,
        "slowest_ms": {
            "voice activity": _mean([paced.answers[at].vad_ms for at in slowest]),
            "encoder": _mean([paced.answers[at].encoder_ms for at in slowest]),
            "decoder": _mean([paced.answers[at].decoder_ms for at in slowest]),
            "waiting and the way": _mean([beside[at] for at in slowest]),
        }
        if known
        else None,
        "final_ms": _percentiles(paced.finals),
        "late_ms": _percentiles(paced.late),
        "first_text_ms": _percentiles(paced.first_texts),
        "partials": _mean(paced.partials),
    }


def _mean(values: Sequence[float]) -> float:
    return round(statistics.fmean(values), 2) if values else 0.0


def _percentiles(values: Sequence[float]) -> list[float]:
    """p50, p95, p99."""
    return [round(percentile(list(values), share) or 0.0, 2) for share in (0.5, 0.95, 0.99)]


def print_bare(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    """Streams that one processor holds."""
    table = Table(title="Streams that one processor holds in real time", title_justify="left")
    for name in ("chunk", "in a step", "parley", "sherpa-onnx", "ratio", "equal texts"):
        table.add_column(name, justify="right")
    for row in rows:
        for count in row["step_ms"]["parley"]:
            held = {name: count * row["chunk_ms"] / times[count] for name, times in row["step_ms"].items()}
            table.add_row(
                f"{row['chunk_ms']} ms",
                str(count),
                f"{held['parley']:.0f}",
                f"{held['sherpa']:.0f}",
                f"{held['parley'] / held['sherpa']:.2f}",
                f"{row['equal_texts']} of {row['clips']}",
            )
    console.print(table)


def print_paced(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    """Latencies of the servers, and where the longest come from."""
    table = Table(title="Paced streams, milliseconds: p50 / p95 / p99", title_justify="left")
    table.add_column("chunk", justify="right")
    table.add_column("streams", justify="right")
    for name in ("server", "chunk to answer", "of that, beside the model's calls", "end to final text"):
        table.add_column(name)
    for row in rows:
        cells = (row["chunk_latency_ms"], row["beside_model_ms"], row["final_ms"])
        table.add_row(
            f"{row['chunk_ms']} ms",
            str(row["streams"]),
            row["server"],
            *("" if cell is None else _joined(cell) for cell in cells),
        )
    console.print(table)
    for row in rows:
        if row["slowest_ms"]:
            parts = ", ".join(f"{name} {value:.1f}" for name, value in row["slowest_ms"].items())
            console.print(
                f"slowest hundredth at {row['chunk_ms']} ms, {row['streams']} streams (mean ms): {parts}"
            )


def _joined(values: Sequence[float]) -> str:
    return " / ".join(f"{value:.1f}" for value in values)


def print_batch(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    """Streaming against batch."""
    table = Table(title="Streaming and batch, milliseconds: p50 / p95 / p99", title_justify="left")
    for name in ("recognised", "streams", "to the first text", "partial texts", "chunk to answer"):
        table.add_column(name)
    table.add_column("end to final text")
    table.add_column("chunk sent too late, p95")
    for row in rows:
        table.add_row(
            row["server"],
            str(row["streams"]),
            _joined(row["first_text_ms"]),
            f"{row['partials']:.1f}",
            "" if row["server"] == "at the end" else _joined(row["chunk_latency_ms"]),
            _joined(row["final_ms"]),
            f"{row['late_ms'][1]:.1f}",
        )
    console.print(table)
