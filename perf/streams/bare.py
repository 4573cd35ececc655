"""The bare recognisers by turns, each in a process of its own on one processor."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
