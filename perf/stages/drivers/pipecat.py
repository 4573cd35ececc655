"""Calls through Pipecat pipelines in a process of their own, with models there or at a Parley server."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from parley.launcher.options import ROOT
from stages.drivers.options import EndpointOptions
from stages.protocols import EndpointError, Level, Stage

_WORKER = ROOT / "perf" / "frameworks" / "worker.py"
_FRAMEWORKS = ROOT / ".venv-frameworks"
_LIMIT_S = 1_200.0
_FIGURES = {
    "stt": (Stage.RECOGNIZER, "final_ms"),
    "llm": (Stage.LANGUAGE_MODEL, "first_token_ms"),
    "tts": (Stage.VOICE, "first_audio_ms"),
    "total": (Stage.CALL, "call_first_audible_ms"),
}


@asynccontextmanager
async def open_pipelines(options: EndpointOptions) -> AsyncIterator[PipecatBenchmark]:
    """Pipelines; without a URL the tiny models run in their process."""
    if not _FRAMEWORKS.exists():
        raise EndpointError(".venv-frameworks is missing: make setup-frameworks")
    yield PipecatBenchmark([sys.executable, str(_WORKER)], options.url)


class PipecatBenchmark:
    """See :class:`stages.protocols.OwnBenchmark`. The callers and their recordings are the worker's own.

    Args:
        program: the worker.
        server: of Parley, which the pipelines ask; empty: none.
    """

    def __init__(self, program: Sequence[str], server: str) -> None:
        self._program = program
        self._server = server

    async def measure(self, level: Level) -> Mapping[Stage, Sequence[Mapping[str, float]]]:
        """See :class:`stages.protocols.OwnBenchmark`."""
        turns = -(-level.turns // level.concurrency)
        command = [*self._program, "--sessions", str(level.concurrency), "--turns", str(turns)]
        command += ["--server", self._server, "--interim"] if self._server else []
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, cwd=ROOT)
        try:
            async with asyncio.timeout(_LIMIT_S):
                printed, _ = await process.communicate()
        except TimeoutError as error:
            raise EndpointError("timeout") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        lines = [line for line in printed.splitlines() if line.startswith(b'{"sessions"')]
        if process.returncode or not lines:
            raise EndpointError(f"exit status {process.returncode}")
        return _turns_of(json.loads(lines[-1]))


def _turns_of(measured: Mapping[str, Any]) -> dict[Stage, list[dict[str, float]]]:
    found: dict[Stage, list[dict[str, float]]] = {
        stage: [{name: value} for value in measured[key]] for key, (stage, name) in _FIGURES.items()
    }
    found[Stage.CALL] += [{} for _ in range(measured["wrong"])]
    return found
