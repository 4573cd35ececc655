"""Random numbers that belong to a stream and a place in it, however it is cut into chunks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parley.tts.s3gen.estimator import MEL_BANDS

_BLOCK = 64  # frames made by one generator
_FLOW, _SOURCE = 0, 1


def flow_noise(seed: int, frames: int) -> NDArray[np.float32]:
    """The noise from which the flow starts, prompt included: f32 ``[frames, 80]``.

    Made again for each chunk: that costs about 1 ms per 1,000 frames and needs no memory.
    """
    blocks = [
        np.random.default_rng((_FLOW, seed, block)).standard_normal((_BLOCK, MEL_BANDS), np.float32)
        for block in range(-(-frames // _BLOCK))
    ]
    return np.concatenate(blocks)[:frames] if blocks else np.zeros((0, MEL_BANDS), np.float32)


def source_noise(seed: int) -> np.random.Generator:
    """The generator of a stream's source noise, drawn once for each sample in order."""
    return np.random.default_rng((_SOURCE, seed))
