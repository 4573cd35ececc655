"""Where a recogniser's times lie in the client's own audio, and when that audio arrived."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

_GAPS = 64
_ARRIVALS = 512


class Timeline:
    """Maps positions in what the recogniser has heard to positions in what the client has sent.

    The two drift apart by every piece that the recogniser never heard: muted, dropped, or sent
    while it was being reopened. All positions are samples at one rate.
    """

    def __init__(self) -> None:
        self._heard = 0
        # (heard position, client position) where a stretch without a gap begins.
        self._stretches: deque[tuple[int, int]] = deque([(0, 0)], maxlen=_GAPS)
        # (client position, seconds): audio before that position had arrived by then.
        self._arrivals: deque[tuple[int, float]] = deque(maxlen=_ARRIVALS)

    def heard(self, position: int, count: int) -> None:
        """The recogniser hears ``count`` samples that begin at the client's ``position``."""
        if self.client_position(self._heard) != position:
            self._stretches.append((self._heard, position))
        self._heard += count

    def restart(self) -> None:
        """The recogniser begins a new stream at zero."""
        position = self.client_position(self._heard)
        self._heard = 0
        self._stretches.clear()
        self._stretches.append((0, position))

    def client_position(self, heard: int) -> int:
        """The client's position of the recogniser's position ``heard``."""
        index = bisect_right(self._stretches, (heard, 2**63)) - 1
        start, position = self._stretches[max(index, 0)]
        return position + heard - start

    def arrived(self, position: int, now: float) -> None:
        """Everything before the client's ``position`` has arrived by ``now`` (seconds)."""
        self._arrivals.append((position, now))

    def arrival(self, position: int) -> float | None:
        """When the audio before the client's ``position`` had arrived; None: too long ago to know."""
        index = bisect_right(self._arrivals, (position, -1.0))
        if index == 0 and len(self._arrivals) == _ARRIVALS:
            return None
        return self._arrivals[index][1] if index < len(self._arrivals) else None
