"""Runs of perf_analyzer 2.51, its profile export, and the figures that are made of it.

The program writes every request with the times of its responses, in nanoseconds. A decoupled model's last
response is often an empty one that only ends the request. The program counts it: its own latency is the time
to that one, and its "first response" may be one of any request of a sequence. So the figures are made here.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from harness.stats import percentile, percentiles

from parley.launcher.options import ROOT
from perf_analyzer.inputs import Drive, to_json

_NS_PER_MS = 1_000_000
_EMPTY = b'""'
"""What the program writes for an output that a response does not have."""


class ProfileRequest(msgspec.Struct, frozen=True):
    """One request of the export; its inputs are not read."""

    timestamp: int
    """When it was sent, in nanoseconds."""
    response_timestamps: list[int] = []
    response_outputs: list[dict[str, msgspec.Raw]] = []
    """Of each response, by output; see :meth:`answers`."""
    sequence_id: int = 0
    """0: none."""

    def answers(self, output: str | None = None) -> list[int]:
        """When the responses came that carry something, in nanoseconds.

        Args:
            output: the tensor that must hold more than one element; None: any tensor that is there.
        """
        if not self.response_outputs:
            return self.response_timestamps
        return [
            at
            for at, outputs in zip(self.response_timestamps, self.response_outputs, strict=True)
            if _carries(outputs, output)
        ]


def _carries(outputs: dict[str, msgspec.Raw], name: str | None) -> bool:
    if name is None:
        return any(bytes(value) != _EMPTY for value in outputs.values())
    # An array of one element, or of none, is written as a number, which may be one from elsewhere in memory.
    return name in outputs and bytes(outputs[name]).startswith(b"[")


class Experiment(msgspec.Struct, frozen=True):
    """The requests at one concurrency."""

    requests: list[ProfileRequest] = []


class ProfileExport(msgspec.Struct, frozen=True):
    """A file that ``--profile-export-file`` names."""

    experiments: list[Experiment] = []


_decoder = msgspec.json.Decoder(ProfileExport)


class RunFailedError(RuntimeError):
    """A run has no figures; the text says why, in the program's or the model's words."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured at one concurrency; times in milliseconds."""

    requests: int
    sequences: int = 0
    per_second: float
    """Requests that were answered, per second from the first request to the last response."""
    p50: float
    p95: float
    p99: float
    """From a request to its last response that is not empty."""
    first_p50: float | None
    first_p95: float | None
    """From a request to its first response that is not empty; None: no request counts."""


def read_export(path: Path) -> list[ProfileRequest]:
    """The requests of the file's only experiment.

    Raises:
        RunFailedError: there is none, or the file cannot be read.
    """
    try:
        export = _decoder.decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError) as error:
        raise RunFailedError(f"the profile export cannot be read: {error}") from error
    requests = [request for one in export.experiments for request in one.requests]
    if not requests:
        raise RunFailedError("the profile export has no request")
    return requests


def measure(
    requests: Sequence[ProfileRequest], *, first_output: str | None = None, steps: int = 1
) -> Figures:
    """The figures of one experiment.

    Args:
        requests: of it, in any order. Of a sequence only the last one's first response counts: the earlier
            ones bring audio that goes on, and after it the caller waits.
        first_output: the tensor that a first response must carry; None: any.
        steps: requests of the shortest sequence. Of a shorter one in the export a part was sent before or
            after the measurement, and its last request need not be here.

    Raises:
        RunFailedError: no request was answered.
    """
    answered = [request for request in requests if request.response_timestamps]
    if not answered:
        raise RunFailedError("no request was answered")
    # A request may rightly be answered with nothing but its end, as a text without words is.
    latencies = [
        _ms(request.timestamp, (request.answers() or request.response_timestamps)[-1]) for request in answered
    ]
    sequences = _sequences(answered, steps)
    judged = [own[-1] for own in sequences] if sequences else answered
    firsts = [
        _ms(request.timestamp, times[0]) for request in judged if (times := request.answers(first_output))
    ]
    began = min(request.timestamp for request in answered)
    ended = max(request.response_timestamps[-1] for request in answered)
    p50, p95, p99 = percentiles(latencies)
    return Figures(
        requests=len(answered),
        sequences=len(sequences),
        per_second=len(answered) * 1e9 / max(1, ended - began),
        p50=p50,
        p95=p95,
        p99=p99,
        first_p50=percentile(firsts, 0.5),
        first_p95=percentile(firsts, 0.95),
    )


def _sequences(requests: Iterable[ProfileRequest], steps: int) -> list[list[ProfileRequest]]:
    """The requests of each whole sequence, in order."""
    found: dict[int, list[ProfileRequest]] = {}
    for request in requests:
        if request.sequence_id:
            found.setdefault(request.sequence_id, []).append(request)
    whole = [own for own in found.values() if len(own) >= steps]
    return [sorted(own, key=lambda request: request.timestamp) for own in whole]


def _ms(since: int, until: int) -> float:
    return (until - since) / _NS_PER_MS


PROGRAM = ROOT / ".cache" / "perf-analyzer" / "perf_analyzer"
"""Where ``scripts/setup --perf-analyzer`` puts it."""
_WAVES = 4
"""Least number of requests of each caller: the first and the last ones do not have all others beside them."""
_LINES = 3


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
