"""Finds clicks where pieces of audio were joined."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

CLICK = 4.0
"""Scores above it are clicks: twice the curvature of anything nearby."""
_AT_SEAM_MS = 0.25
_AROUND_MS = 25.0
_ROUNDING = 4.0  # squared second difference of steps of the 16-bit scale that can be rounding


def seam_scores(audio: NDArray[np.int16], seams: Sequence[int], rate: int) -> NDArray[np.float64]:
    """How much each seam sticks out of its surroundings.

    A click is a jump in value or slope, so that its energy shows in the second difference. The
    energy within 0.25 ms of the seam is compared with the largest that a stretch of that length
    has within 25 ms on either side: a pulse of the voice or a consonant has company there.

    Args:
        audio: ``[n]``.
        seams: index of the first sample after each seam.
        rate: hertz.

    Returns:
        f64 ``[len(seams)]``; 1 is "like the roughest place nearby", above :data:`CLICK` is a click.
    """
    curvature = np.diff(audio.astype(np.float64), 2) ** 2
    half = max(2, round(rate * _AT_SEAM_MS / 1000))
    around = round(rate * _AROUND_MS / 1000)
    summed = np.concatenate([[0.0], np.cumsum(curvature)])
    energies = summed[2 * half :] - summed[: -2 * half]  # of the stretch that begins at each index
    floor = 2 * half * _ROUNDING
    scores = np.zeros(len(seams))
    for index, seam in enumerate(seams):
        at = seam - 1 - half  # the second difference i spans samples i to i+2
        if not 0 <= at < len(energies):
            continue  # at the very edge of the audio a seam is inaudible
        before = energies[max(0, at - around) : max(0, at - 2 * half)]
        after = energies[at + 2 * half : at + around]
        nearby = max(before.max(initial=0.0), after.max(initial=0.0))
        scores[index] = energies[at] / (nearby + floor)
    return scores


def clicks(audio: NDArray[np.int16], seams: Sequence[int], rate: int) -> list[int]:
    """The seams at which there is a click."""
    scores = seam_scores(audio, seams, rate)
    return [seam for seam, score in zip(seams, scores, strict=True) if score > CLICK]
