"""Streaming recognition against sherpa-onnx on the same model: ``make bench-asr``.

First the bare recognisers, each on one processor and one thread, by turns: how long a step of 1, 8
and 32 streams takes, and whether they write the same texts. Then the servers, Triton and
sherpa-onnx's own, with streams that speak in real time; the client shares the machine with them.
Both get the same weights: ``build/export_sherpa.py`` only splits the files. Then streaming against
decoding everything anew and against waiting for the end. ``--real-size`` measures steps of the encoders
that ``build/make_real_size_streaming.py`` has made, and nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from harness.report import make_table, write_json
from numpy.typing import NDArray
from rich.console import Console
from streams.paced import (
    Line,
    SherpaLine,
    Speech,
    TritonLine,
    WholeLine,
    figures,
    print_bare,
    print_batch,
    print_paced,
    run_level,
)
from streams.processes import Bare, compare, sherpa, triton
from streams.real_size import measure, measure_machine

from parley.errors import ParleyError
from parley.launcher.options import ROOT
from parley_client.cli.view import make_console

MODEL = ROOT / "models" / "tiny-nemotron-streaming"
CLIPS = ROOT / "tests" / "data" / "asr_eval"
PEERS = ROOT / ".venv-export" / "bin"
WORK = ROOT / "out" / "bench-asr"
REAL_SIZE = ROOT / "out" / "real-size"
RAIL = "nemotron_streaming"
OTHERS = {"decoded anew": "parakeet_tdt", "at the end": "parakeet_transcribe"}
NETWORKS = ("parakeet_encoder", "parakeet_decoder")
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
    parser.add_argument(
        "--held", default="16,32,48", help="levels of streaming against batch (default: %(default)s)"
    )
    parser.add_argument("--real-size", action="store_true", help="measure encoders of 0.6 billion parameters")
    parser.add_argument(
        "--only", choices=("bare", "paced", "batch"), help="one part (default: all three, one after another)"
    )
    args = parser.parse_args()
    look_aheads = [int(part) for part in args.look_aheads.split(",")]
    levels = [int(part) for part in args.streams.split(",")]
    held = [int(part) for part in args.held.split(",")]
    console = make_console()
    measured: dict[str, Any] = {"cpus": os.cpu_count()}
    wanted = {args.only} if args.only else {"bare", "paced", "batch"}
    try:
        if args.real_size:
            measured["real_size"] = _real_size(console)
            wanted = set()
        if wanted and not (PEERS / "sherpa-onnx").exists():
            console.print("bench-asr: sherpa-onnx is missing: use `make bench-asr`", style="red")
            return 1
        clips = [soundfile.read(path, dtype="int16")[0] for path in _clips()]
        if wanted:
            for look_ahead in look_aheads:
                _export(look_ahead)
        if "bare" in wanted:
            measured["bare"] = [_bare(look_ahead) for look_ahead in look_aheads]
            print_bare(console, measured["bare"])
        if "paced" in wanted:
            measured["paced"] = _paced(console, look_aheads, levels, clips, args.seconds)
            print_paced(console, measured["paced"])
        if "batch" in wanted:
            measured["batch"] = _batch(console, held, clips, args.seconds)
            print_batch(console, measured["batch"])
    except (ParleyError, OSError, subprocess.SubprocessError) as error:
        console.print(f"bench-asr: {error}", style="red", markup=False)
        return 1
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        write_json(args.json, measured)
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
    compared = compare(
        {
            "parley": Bare(Path(sys.executable), "parley_runtime.py", MODEL),
            "sherpa": Bare(PEERS / "python", "sherpa_runtime.py", _rewritten(look_ahead)),
        },
        look_ahead,
        BATCHES,
        _clips(),
    )
    pairs = list(zip(compared["texts"]["parley"], compared["texts"]["sherpa"], strict=True))
    return {
        "look_ahead": look_ahead,
        "chunk_ms": FRAME_MS * (look_ahead + 1),
        "clips": len(pairs),
        "equal_texts": sum(one == other for one, other in pairs),
        "different": [pair for pair in pairs if pair[0] != pair[1]],
        "step_ms": compared["step_ms"],
    }


def _paced(
    console: Console,
    look_aheads: Sequence[int],
    levels: Sequence[int],
    clips: Sequence[NDArray[np.int16]],
    seconds: float,
) -> list[dict[str, Any]]:
    rows = []
    with triton(console, [RAIL]) as address:
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
    return {"server": name, "chunk_ms": chunk_ms, "streams": len(lines), **figures(paced)}


def _batch(
    console: Console, levels: Sequence[int], clips: Sequence[NDArray[np.int16]], seconds: float
) -> list[dict[str, Any]]:
    """Streaming at 160 ms against decoding everything anew, and against waiting for the end."""
    rows = []
    with triton(console, [RAIL, *OTHERS.values(), *NETWORKS]) as address:
        for name, model in {"streaming": RAIL, **OTHERS}.items():
            for count in levels:
                lines: list[Line] = [
                    WholeLine(address, model)
                    if name == "at the end"
                    else TritonLine(address, model, 160 if model == RAIL else None)
                    for _ in range(count)
                ]
                rows.append(_measure(name, 160, lines, clips, seconds))
    return rows


def _real_size(console: Console) -> list[dict[str, Any]]:
    folders = sorted(REAL_SIZE.glob("r*/config.json"))
    if not folders:
        raise OSError(f"{REAL_SIZE} is empty: build/make_real_size_streaming.py makes what is measured")
    machine = measure_machine(REAL_SIZE, threads=1)
    console.print(
        f"one processor: {machine.operations / 1e9:.0f} billion operations a second in eight bits, "
        f"{machine.bytes / 1e9:.1f} GB a second from memory"
    )
    table = make_table(
        "Encoder of 0.6 billion parameters in eight bits, one processor",
        *("chunk", "streams in a step", "step, ms", "floor, ms", "of real time"),
        left=0,
    )
    rows = []
    for folder in folders:
        for count in (1, 4, 8):
            step = measure(folder.parent, count, threads=1)
            rows.append({**asdict(step), "floor_ms": step.floor_ms(machine)})
            table.add_row(
                f"{step.chunk_ms} ms",
                str(count),
                f"{step.ms:.0f}",
                f"{step.floor_ms(machine):.0f}",
                f"{step.ms / step.chunk_ms:.1f}",
            )
    console.print(table)
    return rows


if __name__ == "__main__":
    sys.exit(main())
