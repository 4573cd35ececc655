"""Parley's models as services in a Pipecat process, and behind a Parley server: ``make bench-frameworks``.

The callers, the pipelines, the language model, the synthesizer and the network of the recogniser are the
same. Either all models are in the one process that runs the pipelines, or the services of
``pipecat-parley`` ask a Triton on the same machine. A load is held while the 95th percentile of the wait for
an answer is within twice that of the first one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness.report import make_table, write_json
from harness.stats import p50_p95, percentile, text_of
from rich.console import Console
from rich.table import Table

from parley.errors import ParleyError
from parley_client.cli.own_server import own_server

ROOT = Path(__file__).resolve().parent.parent
_WORKER = ROOT / "perf" / "frameworks" / "worker.py"
_ROWS = {
    "stt": "end of speech → final text",
    "llm": "conversation → first token",
    "tts": "first words → first audio",
    "total": "end of speech → first audio",
}
_LIMIT_S = 900.0

Levels = list[dict[str, Any]]


def main() -> int:
    """Measure both and compare; the exit status is 1 if something failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sessions", default="1,4,8,12,16", help="load levels (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="turns of each session (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to FILE")
    args = parser.parse_args()
    console = Console()
    try:
        with own_server(console, "bench-frameworks") as server:
            remote = ("--server", server.endpoints.grpc)
            parley = _measure(args, *remote, "--interim")
            finals = _measure(args, *remote)
        local = _measure(args)
    except (ParleyError, subprocess.SubprocessError) as error:
        console.print(f"bench: {error}", style="red", markup=False)
        return 1
    measured = {
        "in the Pipecat process, final texts only": local,
        "Parley through Triton, with interim texts": parley,
        "Parley through Triton, final texts only": finals,
    }
    for title, levels in measured.items():
        console.print(_table(title, levels))
        console.print(f"Sessions held: {_held(levels)}.\n")
    if args.json:
        write_json(args.json, measured)
    return 0


def _measure(args: argparse.Namespace, *which: str) -> Levels:
    command = [sys.executable, str(_WORKER), "--sessions", args.sessions, "--turns", str(args.turns), *which]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=_LIMIT_S, cwd=ROOT)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b'{"sessions"')]
    if not lines:
        raise subprocess.SubprocessError(f"no figures from {' '.join(command)}")
    return lines


def _table(title: str, levels: Levels) -> Table:
    head = ("sessions", *(str(level["sessions"]) for level in levels))
    table = make_table(f"{title}: median / 95th percentile in ms", *head)
    for key, meaning in _ROWS.items():
        table.add_row(meaning, *(text_of(p50_p95(level[key])) or "-" for level in levels))
    table.add_row("busy processors", *(f"{level['cpu']:.0%}" for level in levels))
    table.add_row("turns without a right answer", *(str(level["wrong"]) for level in levels))
    return table


def _held(levels: Levels) -> str:
    """The highest load whose 95th percentile is within twice that of the lowest."""
    tails = [(level["sessions"], percentile(level["total"], 0.95) or float("inf")) for level in levels]
    limit = 2 * tails[0][1]
    held = max(sessions for sessions, tail in tails if tail <= limit)
    return str(held) if tails[-1][1] > limit else f"{held} or more"


if __name__ == "__main__":
    sys.exit(main())
