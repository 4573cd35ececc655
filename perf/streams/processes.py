"""The bare recognisers by turns, each in a process of its own on one processor."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from parley_client.cli.own_server import own_server

_HERE = Path(__file__).resolve().parent
_ROUNDS = 3
_STEPS = 30


@dataclass(frozen=True)
class Bare:
    """A recogniser that :mod:`streams.contract` measures."""

    python: Path
    """The interpreter of its environment."""
    program: str
    model: Path


class _Child:
    """A recogniser in its own process and environment (:mod:`streams.contract`)."""

    def __init__(self, bare: Bare, look_ahead: int, clips: Sequence[Path]) -> None:
        program = [str(bare.python), str(_HERE / bare.program)]
        self._process = subprocess.Popen(
            [*program, str(bare.model), str(look_ahead), *map(str, clips)],
            env={**os.environ, "PYTHONPATH": str(_HERE.parent), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **request: object) -> Any:
        """Send a request and wait for its answer."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise OSError(f"a recogniser ended with status {self._process.wait(timeout=10)}")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin
        self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=10)


def compare(
    recognisers: Mapping[str, Bare], look_ahead: int, batches: Sequence[int], clips: Sequence[Path]
) -> dict[str, Any]:
    """Measure all of them by turns, so that whatever disturbs the machine disturbs each.

    Returns:
        ``texts``: of every clip, by recogniser. ``step_ms``: medians, by recogniser and streams.

    Raises:
        OSError: one of them failed.
    """
    children: dict[str, _Child] = {}
    try:
        for name, bare in recognisers.items():
            children[name] = _Child(bare, look_ahead, clips)
        texts = {name: child.ask(do="texts")["texts"] for name, child in children.items()}
        times: dict[str, dict[int, list[float]]] = {name: {n: [] for n in batches} for name in children}
        for _ in range(_ROUNDS):
            for count in batches:
                for name, child in children.items():
                    times[name][count] += child.ask(do="time", streams=count, chunks=_STEPS)["ms"]
    finally:
        for child in children.values():
            child.close()
    medians = {
        name: {count: statistics.median(values) for count, values in by_count.items()}
        for name, by_count in times.items()
    }
    return {"texts": texts, "step_ms": medians}


@contextlib.contextmanager
def triton(console: Console, models: Sequence[str]) -> Iterator[str]:
    """The embedded Triton with recognisers, whose own texts are final; yields its gRPC address."""
    finals = {"PARLEY_NEMOTRON_STREAMING_FINALS": "own"}
    with own_server(console, "bench-asr", load_models=tuple(models), environment=finals) as server:
        yield server.endpoints.grpc


@contextlib.contextmanager
def sherpa(programs: Path, model: Path, *, chunk_ms: int, streams: int) -> Iterator[str]:
    """sherpa-onnx's websocket server, one thread for each processor of a small machine; yields its URL.

    Args:
        programs: where it is installed.
        model: a rewritten export.
        chunk_ms: of the export; two chunks of silence flush the last word.
        streams: may be recognised in one call.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [
            str(programs / "sherpa-onnx-online-websocket-server"),
            f"--port={port}",
            f"--tokens={model / 'tokens.txt'}",
            f"--encoder={model / 'encoder.onnx'}",
            f"--decoder={model / 'decoder.onnx'}",
            f"--joiner={model / 'joiner.onnx'}",
            "--num-threads=1",
            "--num-work-threads=2",
            f"--max-batch-size={streams}",
            "--loop-interval-ms=2",
            "--enable-endpoint=false",
            f"--end-tail-padding={2 * chunk_ms / 1000}",
            f"--log-file={model / 'server.log'}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for_port(process, port)
        yield f"ws://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=10)


def _wait_for_port(process: subprocess.Popen[bytes], port: int, patience_s: float = 30) -> None:
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        if process.poll() is not None:
            raise OSError(f"sherpa-onnx's server ended with status {process.returncode}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    raise OSError(f"sherpa-onnx's server does not listen after {patience_s:g} s")
