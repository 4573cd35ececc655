"""How long a step of an encoder of the real size takes, and how long its arithmetic and its bytes would.

A step reads every weight once, and multiplies it with as many rows as there are frames; the keys and
values of the 70 frames before are computed anew from what the cache keeps. What the machine can do at
best is measured beside it: one large product in eight bits, and one pass over more memory than fits
into a cache.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parley.asr.streaming import encoder as streaming_checkpoint
from parley.asr.streaming.encoder import HISTORY, CacheAwareEncoder
from parley.runtime.onnx import open_session

_STEPS = 7
_ROWS, _WIDTH, _WIDER = 512, 1024, 4096
"""Of the product that says what the machine can do."""


@dataclass(frozen=True)
class Machine:
    """One processor at its best."""

    operations: float
    """Multiplications and additions in eight bits, a second."""
    bytes: float
    """Read from memory, a second."""


@dataclass(frozen=True)
class Step:
    """One size of step."""

    chunk_ms: int
    streams: int
    ms: float
    operations: float
    """Of the matrix products."""
    bytes: float
    """Of the weights."""

    def floor_ms(self, machine: Machine) -> float:
        """Neither arithmetic nor reading can be faster."""
        return 1000 * max(self.operations / machine.operations, self.bytes / machine.bytes)


def measure_machine(folder: Path, threads: int) -> Machine:
    """Time the product that ``build/make_real_size_streaming.py`` wrote, and a pass over 256 MB."""
    session = open_session(folder / "product.onnx", threads=threads)
    rows = np.random.default_rng(0).integers(0, 255, (_ROWS, _WIDTH)).astype(np.uint8)
    product = _median_s(lambda: session.run(None, {"x": rows}))
    memory = np.ones(1 << 28, np.uint8).view(np.float64)
    reading = _median_s(memory.sum)
    return Machine(2 * _ROWS * _WIDTH * _WIDER / product, memory.nbytes / reading)


def measure(folder: Path, streams: int, threads: int) -> Step:
    """Time a step of the export in ``folder``, which has one look-ahead.

    Raises:
        ParleyError: it cannot be loaded or run.
    """
    export = streaming_checkpoint.load(folder)
    (look_ahead,) = export.streaming.look_aheads
    encoder = CacheAwareEncoder(
        open_session(export.encoder(look_ahead), threads=threads),
        lookahead=look_ahead,
        channel=export.streaming.cache_last_channel,
        time=export.streaming.cache_last_time,
    )
    rng = np.random.default_rng(0)
    bands = export.checkpoint.config.features_size
    features = rng.normal(-9.0, 4.0, (streams, bands, HISTORY + encoder.chunk)).astype(np.float32)
    caches = {name: np.stack([value] * streams) for name, value in encoder.initial.items()}
    prompts = np.zeros(streams, np.int64)
    seconds = _median_s(lambda: encoder.encode(features, caches, prompts))
    layers, left, width = export.streaming.cache_last_channel
    frames = look_ahead + 1
    # Two feed-forward parts of 8 D^2 weights, query, output and the two pointwise convolutions of 5 D^2
    # for the new frames; keys and values of 2 D^2 for all frames that attention sees.
    new, seen = layers * 21 * width**2, layers * 2 * width**2
    return Step(
        export.look_ahead_ms(look_ahead),
        streams,
        1000 * seconds,
        2.0 * streams * (frames * new + (frames + left) * seen),
        float((folder / "encoder.weights").stat().st_size),
    )


def _median_s(run: Any) -> float:
    run()
    times = []
    for _ in range(_STEPS):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return statistics.median(times)
