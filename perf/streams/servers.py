"""The two servers, started for a measurement and stopped after it."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from parley_client.commands.own_server import own_server


@contextlib.contextmanager
def triton(console: Console, models: Sequence[str]) -> Iterator[str]:
    """The embedded Triton with recognisers, whose own texts are final; yields its gRPC address."""
    finals = {"PARLEY_NEMOTRON_STREAMING_FINALS": "own"}
    models = ("silero_vad", *models)
    with own_server(console, "bench-asr", load_models=models, environment=finals) as server:
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
