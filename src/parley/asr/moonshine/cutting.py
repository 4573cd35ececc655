"""Where speech that is too long to be read at once is cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parley.asr.rails.segmentation import PER_MS

_FRAME = 10 * PER_MS
_AROUND = 25
"""Frames over which loudness is averaged: 250 ms, so that not the silence of a "p" or "t" is taken."""


@dataclass(frozen=True)
class Window:
    """How much is read at once."""

    longest_ms: int = 9_000
    shortest_ms: int = 4_000
    """What is cut off is at least as long: the longer a piece, the better it is read."""


def quietest(audio: NDArray[np.int16], earliest: int, latest: int) -> int:
    """The quietest place between two samples, the later one of two that are equally quiet.

    Args:
        audio: i16 ``[n]``.
        earliest: sample.
        latest: sample, at most ``n``.
    """
    first, last = earliest // _FRAME, latest // _FRAME
    if last <= first:
        return latest
    frames = audio[first * _FRAME : last * _FRAME].astype(np.float64).reshape(-1, _FRAME)
    power = (frames**2).mean(axis=1)
    width = min(_AROUND, len(power))
    around = np.convolve(
        np.pad(power, (width // 2, width - 1 - width // 2), mode="edge"), np.ones(width), "valid"
    )
    at = len(around) - 1 - int(around[::-1].argmin())
    return (first + at) * _FRAME + _FRAME // 2


def pieces(audio: NDArray[np.int16], window: Window) -> Iterator[tuple[int, int]]:
    """Where the pieces of a stretch of speech begin and end (samples), in order."""
    start = 0
    longest, shortest = window.longest_ms * PER_MS, window.shortest_ms * PER_MS
    while len(audio) - start > longest:
        end = start + quietest(audio[start:], shortest, longest)
        yield start, end
        start = end
    yield start, len(audio)
