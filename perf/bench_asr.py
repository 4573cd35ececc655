"""Streaming recognition against sherpa-onnx on the same model: ``make bench-asr``.

First the bare recognisers, each on one processor and one thread, by turns: how long a step of 1, 8
and 32 streams takes, and whether they write the same texts. Then the servers, Triton and
sherpa-onnx's own, with streams that speak in real time; the client shares the machine with them.
Both get the same weights: ``build/export_sherpa.py`` only splits the files.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from streams.bare import Bare, compare
from streams.paced import Line, Paced, SherpaLine, Speech, TritonLine, run_level
from streams.servers import sherpa, triton

from parley.errors import ParleyError
from parley.launcher import LauncherError
from parley.launcher.options import ROOT
from parley_client.terminal.view import make_console
from parley_client.turns import percentile

MODEL = ROOT / "models" / "tiny-nemotron-streaming"
CLIPS = ROOT / "tests" / "data" / "asr_eval"
PEERS = ROOT / ".venv-peers" / "bin"
WORK = ROOT / "out" / "bench-asr"
RAIL = "nemotron_streaming"
FRAME_MS = 80
BATCHES = (1, 8, 32)
LEAD = np.zeros(16 * 120, np.float32)
"""Silence that stands for the frames before the first chunk (:mod:`streams.sherpa_runtime`)."""


def main() -> int:
    """Run the benchmark; the exit status is 1 if a server failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--look-aheads", default="0,1,6", help="encoder frames of 80 ms (default: %(default)s)"
    )
    parser.add_argument("--streams", default="1,16", help="paced streams at once (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=20, help="of each level (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to FILE")
    args = parser.parse_args()
    look_aheads = [int(part) for part in args.look_aheads.split(",")]
    levels = [int(part) for part in args.streams.split(",")]
    console = make_console()
    if not (PEERS / "python").exists():
        console.print("bench-asr: .venv-peers is missing: use `make bench-asr`", style="red")
        return 1
    figures: dict[str, Any] = {"cpus": os.cpu_count(), "bare": [], "paced": []}
    try:
        for look_ahead in look_aheads:
            _export(look_ahead)
            figures["bare"].append(_bare(look_ahead))
        _print_bare(console, figures["bare"])
        clips = [soundfile.read(path, dtype="int16")[0] for path in _clips()]
        figures["paced"] = _paced(console, look_aheads, levels, clips, args.seconds)
        _print_paced(console, figures["paced"])
    except (ParleyError, LauncherError, OSError, subprocess.SubprocessError) as error:
        console.print(f"bench-asr: {error}", style="red", markup=False)
        return 1
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(figures, indent=1))
    return 0


def _clips() -> list[Path]:
    return sorted(CLIPS.glob("*.flac"))


def _rewritten(look_ahead: int) -> Path:
    return WORK / f"sherpa-r{look_ahead}"


def _export(look_ahead: int) -> None:
    program = ROOT / "build" / "export_sherpa.py"
    arguments = [str(MODEL), str(_rewritten(look_ahead)), "--look-ahead", str(look_ahead)]
    subprocess.run([str(PEERS / "python"), str(program), *arguments], check=True, timeout=120)


def _bare(look_ahead: int) -> dict[str, Any]:
    measured = compare(
        {
            "parley": Bare(Path(sys.executable), "parley_runtime.py", MODEL),
            "sherpa": Bare(PEERS / "python", "sherpa_runtime.py", _rewritten(look_ahead)),
        },
        look_ahead,
        BATCHES,
        _clips(),
    )
    pairs = list(zip(measured["texts"]["parley"], measured["texts"]["sherpa"], strict=True))
    return {
        "look_ahead": look_ahead,
        "chunk_ms": FRAME_MS * (look_ahead + 1),
        "clips": len(pairs),
        "equal_texts": sum(one == other for one, other in pairs),
        "different": [pair for pair in pairs if pair[0] != pair[1]],
        "step_ms": measured["step_ms"],
    }


def _print_bare(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    table = Table(title="Streams that one processor holds in real time", title_justify="left")
    for name in ("chunk", "in a step", "parley", "sherpa-onnx", "ratio", "equal texts"):
        table.add_column(name, justify="right")
    for row in rows:
        for count in BATCHES:
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


def _paced(
    console: Console,
    look_aheads: Sequence[int],
    levels: Sequence[int],
    clips: Sequence[NDArray[np.int16]],
    seconds: float,
) -> list[dict[str, Any]]:
    rows = []
    with triton(console, RAIL) as address:
        for look_ahead in look_aheads:
            chunk_ms = FRAME_MS * (look_ahead + 1)
            for count in levels:
                lines: list[Line] = [TritonLine(address, RAIL, chunk_ms) for _ in range(count)]
                rows.append(_measure("parley", chunk_ms, lines, clips, seconds))
    for look_ahead in look_aheads:
        chunk_ms = FRAME_MS * (look_ahead + 1)
        with sherpa(PEERS, _rewritten(look_ahead), chunk_ms=chunk_ms, streams=max(levels)) as url:
            for count in levels:
                lines = [SherpaLine(url, LEAD) for _ in range(count)]
                rows.append(_measure("sherpa-onnx", chunk_ms, lines, clips, seconds))
    return rows


def _measure(
    name: str, chunk_ms: int, lines: Sequence[Line], clips: Sequence[NDArray[np.int16]], seconds: float
) -> dict[str, Any]:
    paced = asyncio.run(run_level(lines, Speech(clips, 16 * chunk_ms, seconds)))
    return {"server": name, "chunk_ms": chunk_ms, "streams": len(lines), **_figures(paced)}


def _figures(paced: Paced) -> dict[str, Any]:
    beside = [whole - own for whole, own in zip(paced.chunks, paced.compute, strict=True)]
    known = any(paced.compute)
    return {
        "chunks": len(paced.chunks),
        "chunk_latency_ms": _percentiles(paced.chunks),
        "beside_model_ms": _percentiles(beside) if known else None,
        "final_ms": _percentiles(paced.finals),
        "late_ms": _percentiles(paced.late),
    }


def _percentiles(values: Sequence[float]) -> list[float]:
    """p50, p95, p99."""
    return [round(percentile(list(values), share) or 0.0, 2) for share in (0.5, 0.95, 0.99)]


def _print_paced(console: Console, rows: Sequence[dict[str, Any]]) -> None:
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
            *("" if cell is None else " / ".join(f"{value:.1f}" for value in cell) for cell in cells),
        )
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
