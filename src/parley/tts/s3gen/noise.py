"""Random numbers that belong to a stream and a place in it, however it is cut into chunks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parley.tts.s3gen.estimator import MEL_BANDS

_BLOCK = 64  # frames made by one generator
_FLOW, _SOURCE, _PROMPT = 0, 1, 2


def flow_noise(seed: int, frames: int, first: int = 0) -> NDArray[np.float32]:
    """The noise from which the flow starts at the frames of an utterance: f32 ``[frames, 80]``.

    Args:
        seed: of the utterance.
        frames: how many.
        first: number of the first one.
    """
    return _frames((_FLOW, seed), frames, first)


def prompt_noise(frames: int) -> NDArray[np.float32]:
    """The same for the frames of a prompt: always the same, so that prompts can be made once."""
    return _frames((_PROMPT,), frames, 0)


def source_noise(seed: int) -> np.random.Generator:
    """The generator of a stream's source noise, drawn once for each sample in order."""
    return np.random.default_rng((_SOURCE, seed))


def _frames(stream: tuple[int, ...], frames: int, first: int) -> NDArray[np.float32]:
    begin = first // _BLOCK
    blocks = [
        np.random.default_rng((*stream, block)).standard_normal((_BLOCK, MEL_BANDS), np.float32)
        for block in range(begin, -(-(first + frames) // _BLOCK))
    ]
    offset = first - begin * _BLOCK
    known = np.concatenate(blocks) if blocks else np.zeros((0, MEL_BANDS), np.float32)
    return known[offset : offset + frames]
