"""How often something that fails is tried again."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

WAITS_S = (1.0, 2.0, 5.0, 10.0, 20.0)
WINDOW_S = 600.0


class Attempts:
    """Counts attempts within a window, and the wait before the next one.

    Args:
        most: attempts within the window.
        waits_s: before the second attempt in the window, the third ...; the last before all that follow.
            There is none before the first.
        window_s: attempts count for this long (seconds).
    """

    def __init__(self, most: int, *, waits_s: Sequence[float] = WAITS_S, window_s: float = WINDOW_S) -> None:
        self._most = most
        self._waits_s = waits_s
        self._window_s = window_s
        self._times: deque[float] = deque()

    def next_at(self, now: float) -> float | None:
        """When the next attempt may be made; None: there were too many."""
        while self._times and now - self._times[0] > self._window_s:
            self._times.popleft()
        if len(self._times) >= self._most:
            return None
        if not self._times:
            return now
        return max(now, self._times[-1] + self._waits_s[min(len(self._times), len(self._waits_s)) - 1])

    def add(self, now: float) -> None:
        """Count an attempt."""
        self._times.append(now)
