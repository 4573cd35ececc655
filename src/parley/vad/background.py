"""Other people who talk behind the caller, softer and without an end.

The network finds speech of any speaker, so that in such a room the caller's turn would never end. What tells
the voices apart is how loud they are. Between the caller's words the talk goes on, and the level does not
fall below it; without other talk there is silence between words, and nothing is changed.
"""

from __future__ import annotations

import copy
import math
from collections import deque

TALK = 62
"""Windows of speech without a pause (2 s) from which there may be talk behind the caller."""
_HEARD = 94
"""Windows among which its level is looked for: 3 s."""
_FLOOR = 0.05
"""Share of these that are softer than the floor: those in which the caller is silent."""
_ABOVE_DB = 9.0
"""How far above the floor the caller is: talk of many is seldom so loud."""
_BEGINS_DB = 11.0
"""The same for a window with which the caller begins."""
_WIDEST_DB = 31.0
"""Between floor and loudest window. Where it is more there is silence between the words."""
_SILENT_DB = 6.0
"""So far below the floor is silence."""
_HOLD = 6
"""Windows for which a loud one counts: words end softly."""
_SPEECH = 0.35
"""Probability below which a window is a pause."""
_LEAST_POWER = 1e-9


class BackgroundTalk:
    """What is remembered of one stream."""

    def __init__(self) -> None:
        self._levels: deque[float] = deque(maxlen=_HEARD)
        self._recent: deque[float] = deque(maxlen=_HOLD)
        self._power = 0.0
        self._talking = self._silent = 0
        self._floor: float | None = None

    def fork(self) -> BackgroundTalk:
        """Return an independent copy."""
        twin = copy.copy(self)
        twin._levels, twin._recent = self._levels.copy(), self._recent.copy()  # noqa: SLF001 - same class
        return twin

    def hear(self, power: float, probability: float, *, speaking: bool) -> float:
        """The probability (0-1) that a window is the caller's speech.

        Args:
            power: mean square of its samples, full scale is 1.
            probability: that it is speech.
            speaking: whether the caller has been speaking until then.
        """
        level = 10 * math.log10((power + self._power) / 2 + _LEAST_POWER)
        self._power = power
        self._recent.append(level)
        if probability < _SPEECH:
            self._talking = 0
            self._silent += 1
            self._levels.clear()
            # Noise of the line is not below the floor, and no talk either.
            if self._silent >= _HEARD or (self._floor is not None and level < self._floor - _SILENT_DB):
                self._floor = None
            return probability
        self._talking += 1
        self._silent = 0
        self._levels.append(level)
        if self._talking >= TALK:
            levels = sorted(self._levels)
            floor = levels[int(_FLOOR * len(levels))]
            self._floor = floor if levels[-1] - floor <= _WIDEST_DB else None
        if self._floor is None:
            return probability
        loudest, needed = (max(self._recent), _ABOVE_DB) if speaking else (level, _BEGINS_DB)
        return probability if loudest >= self._floor + needed else 0.0
