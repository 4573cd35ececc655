"""Runs of the program, one for each model and concurrency."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from parley.launcher.options import ROOT
from perf_analyzer.export import ExportError, Figures, measure, read_export
from perf_analyzer.inputs import Drive, to_json

PROGRAM = ROOT / ".cache" / "perf-analyzer" / "perf_analyzer"
"""Where ``scripts/setup --perf-analyzer`` puts it."""
_WAVES = 4
"""Least number of requests of each caller: the first and the last ones do not have all others beside them."""
_LINES = 3


class RunFailedError(RuntimeError):
    """A run has no figures; the text says why, in the program's or the model's words."""


def provide_program() -> None:
    """Get the program, unless it is there.

    Raises:
        RunFailedError: it cannot be had; the set-up has printed why.
    """
    setup = ROOT / "scripts" / "setup"
    if subprocess.run([str(setup), "--perf-analyzer"], check=False).returncode or not PROGRAM.exists():
        raise RunFailedError("perf_analyzer cannot be had: see above")


class Runner:
    """Runs the program against one server."""

    def __init__(self, address: str, folder: Path, *, limit_s: float) -> None:
        self._address = address
        self._folder = folder
        self._limit_s = limit_s

    def run(self, model: str, drive: Drive, concurrency: int, scale: float = 1.0) -> Figures:
        """Measure one model with so many requests, or sequences, at once.

        Raises:
            RunFailedError: the program or the model failed.
        """
        data, export = self._folder / f"{model}.json", self._folder / f"{model}-{concurrency}.export.json"
        data.write_bytes(to_json(drive.steps))
        export.unlink(missing_ok=True)
        lengths = [1 if isinstance(one, Mapping) else len(one) for one in drive.steps]
        callers = max(_WAVES * concurrency, round(drive.requests * scale))
        command = [
            *self.command(model, concurrency, streaming=drive.streams),
            *("--input-data", str(data)),
            *("--request-count", str(callers * sum(lengths) // len(lengths))),
            *("--profile-export-file", str(export)),
        ]
        self._call(command)
        try:
            return measure(read_export(export), first_output=drive.first_output, steps=min(lengths))
        except ExportError as error:
            raise RunFailedError(str(error)) from error
        finally:
            export.unlink(missing_ok=True)  # it repeats all tensors of all requests

    def command(self, model: str, concurrency: int, *, streaming: bool) -> list[str]:
        """The program with what every run needs."""
        return [
            *(str(PROGRAM), "-m", model, "-u", self._address, "-i", "grpc", "--async"),
            *(["--streaming"] if streaming else []),
            *("--concurrency-range", str(concurrency)),
        ]

    def _call(self, command: Sequence[str]) -> None:
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", check=False, timeout=self._limit_s
            )
        except subprocess.TimeoutExpired as error:
            raise RunFailedError(f"not done within {self._limit_s:g} s") from error
        if done.returncode:
            raise RunFailedError(explain(done.stdout + done.stderr) or f"exit status {done.returncode}")


def explain(output: str) -> str:
    """The lines of the program's output that say what went wrong."""
    lines = [line.strip() for line in output.splitlines()]
    telling = [line for line in lines if "rror" in line or "ailed" in line]
    return " ".join(dict.fromkeys(telling[-_LINES:] or lines[-_LINES:]))
