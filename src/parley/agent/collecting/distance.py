"""How much has to change in what was said to make known values of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parley.agent.collecting.spelling import SOUNDS

_ALIKE = 0.5
"""Of a letter or digit that sounds like another; every other change is 1."""


def distances(values: Sequence[str], text: str, *, whole: bool = False) -> list[float]:
    """Changes that make a part of the text (``whole``: all of it) each value.

    All values are compared at once: the event loop waits for it.
    """
    if not values:
        return []
    sizes = np.array([len(one) for one in values])
    padded = [one.ljust(sizes.max()) for one in values]
    letters, sounds = (np.array(list(map(read, padded))) for read in (_codes, _sounds))
    said, said_sounds = np.array(_codes(text), int), np.array(_sounds(text), int)
    insertions = np.arange(len(text) + 1, dtype=np.float32)
    row = np.tile(insertions if whole else np.zeros_like(insertions), (len(values), 1))
    found = row[:, -1].copy()
    for index in range(sizes.max()):
        alike = (sounds[:, index, None] & said_sounds) != 0
        change = np.where(letters[:, index, None] == said, 0, np.where(alike, _ALIKE, 1)).astype(np.float32)
        before, row = row, row + 1
        row[:, 1:] = np.minimum(row[:, 1:], before[:, :-1] + change)
        row = np.minimum.accumulate(row - insertions, axis=1) + insertions
        ended = sizes == index + 1
        found[ended] = row[ended, -1] if whole else row[ended].min(axis=1)
    return [float(one) for one in found]


def _codes(text: str) -> list[int]:
    return [ord(one) for one in text]


def _sounds(text: str) -> list[int]:
    return [SOUNDS.get(one.upper(), 0) for one in text]
