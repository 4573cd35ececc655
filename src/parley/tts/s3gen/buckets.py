"""Fixed sizes for the flow's batches, so that the estimator can be compiled once for each.

On a GPU most of the flow's time with small batches goes into starting kernels. ``torch.compile``
with CUDA graphs starts them all at once, but only for the very sizes that it has seen. Because
the padding changes nothing, every batch can be padded to one of a few sizes; all are run once
when the model is loaded, so that no utterance waits for a compilation.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from parley.tts.s3gen.batch import AudioVoice, FlowRow
from parley.tts.s3gen.conformer import FRAMES_PER_TOKEN
from parley.tts.s3gen.estimator import MEL_BANDS, Estimator
from parley.tts.s3gen.flow import SPEAKER_SIZE
from parley.tts.s3gen.past import Past

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Buckets:
    """Sizes to which batches are padded; what is larger than the largest stays as it is."""

    frames: tuple[int, ...] = ()
    """Of the pieces."""
    rows: tuple[int, ...] = ()
    past: tuple[int, ...] = ()
    """Frames of the estimator's past, where pasts are kept."""

    def round_frames(self, frames: int) -> int:
        """The smallest size that holds so many frames."""
        return _round_up(frames, self.frames)

    def round_rows(self, rows: int) -> int:
        """The smallest size that holds so many rows."""
        return _round_up(rows, self.rows)

    def round_past(self, frames: int) -> int:
        """The smallest size that holds so many frames of the past."""
        return _round_up(frames, self.past)


def _round_up(value: int, sizes: tuple[int, ...]) -> int:
    return next((size for size in sizes if size >= value), value)


def compile_estimator(estimator: Estimator, buckets: Buckets) -> None:
    """Compile for each size when it is first used; the estimator is one graph without a break."""
    sizes = len(buckets.frames) * len(buckets.rows) * max(1, len(buckets.past))
    config = torch._dynamo.config  # noqa: SLF001 - documented under this name
    config.recompile_limit = max(config.recompile_limit, 2 * sizes + 8)
    estimator.compile(mode="reduce-overhead", dynamic=False, fullgraph=True)


def warm_up(synthesizer: Flows, buckets: Buckets, *, keep: bool) -> None:
    """Run the flow once for each size.

    Args:
        synthesizer: runs it.
        buckets: the sizes.
        keep: whether pasts are kept.
    """
    began = time.perf_counter()
    sizes = list(itertools.product(buckets.frames, buckets.past or (0,), buckets.rows))
    for frames, past, rows in sizes:
        synthesizer.flow([_empty_row(frames, synthesizer.empty, past)] * rows, keep=keep)
    _log.info("ran %d sizes of the flow in %.1f s", len(sizes), time.perf_counter() - began)


class Flows(Protocol):
    """The part of :class:`parley.tts.s3gen.synthesizer.AudioSynthesizer` that is used."""

    @property
    def empty(self) -> Past:
        """A past of no tokens."""
        ...

    def flow(self, rows: Sequence[FlowRow], *, keep: bool = False) -> object:
        """Run the flow."""
        ...


def _empty_row(frames: int, empty: Past, past: int) -> FlowRow:
    voice = AudioVoice(
        np.ones(SPEAKER_SIZE, np.float32), np.zeros(0, np.int64), np.zeros((0, MEL_BANDS), np.float32)
    )
    zeros = np.zeros(frames // FRAMES_PER_TOKEN, np.int64)
    noise = np.zeros((frames, MEL_BANDS), np.float32)
    before = (empty.blank(past // FRAMES_PER_TOKEN),) if past else ()
    return FlowRow(voice, zeros, 0, zeros, zeros, noise, past=before)
