"""Fixed sizes for the flow's batches, so that the estimator can be compiled once for each.

On a GPU most of the flow's time with small batches goes into starting kernels. ``torch.compile``
with CUDA graphs starts them all at once, but only for the very sizes that it has seen. Because
the padding changes nothing, every batch can be padded to one of a few sizes; all are run once
when the model is loaded, so that no utterance waits for a compilation.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from parley.tts.s3gen.conformer import FRAMES_PER_TOKEN
from parley.tts.s3gen.estimator import MEL_BANDS, Estimator
from parley.tts.s3gen.flow import SPEAKER_SIZE, FlowRow, Voice

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Buckets:
    """Sizes to which batches are padded; what is larger than the largest stays as it is."""

    frames: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()

    def round_frames(self, frames: int) -> int:
        """The smallest size that holds so many frames."""
        return next((size for size in self.frames if size >= frames), frames)

    def round_rows(self, rows: int) -> int:
        """The smallest size that holds so many rows."""
        return next((size for size in self.rows if size >= rows), rows)


def compile_estimator(estimator: Estimator, buckets: Buckets) -> None:
    """Compile for each size when it is first used; the estimator is one graph without a break."""
    config = torch._dynamo.config  # noqa: SLF001 - documented under this name
    config.recompile_limit = max(config.recompile_limit, 2 * len(buckets.frames) * len(buckets.rows) + 8)
    estimator.compile(mode="reduce-overhead", dynamic=False, fullgraph=True)


def warm_up(flow: Callable[[list[FlowRow]], object], buckets: Buckets) -> None:
    """Run the flow once for each size."""
    began = time.perf_counter()
    for frames in buckets.frames:
        for rows in buckets.rows:
            flow([_empty_row(frames)] * rows)
    _log.info(
        "ran %d sizes of the flow in %.1f s",
        len(buckets.frames) * len(buckets.rows),
        time.perf_counter() - began,
    )


def _empty_row(frames: int) -> FlowRow:
    tokens = frames // FRAMES_PER_TOKEN
    voice = Voice(
        np.ones(SPEAKER_SIZE, np.float32), np.zeros(0, np.int64), np.zeros((0, MEL_BANDS), np.float32)
    )
    noise = np.zeros((frames, MEL_BANDS), np.float32)
    return FlowRow(voice, np.zeros(tokens, np.int64), [1] * tokens, final=True, noise=noise)
