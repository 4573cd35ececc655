"""How long something has been out of order that is replaced whenever it fails."""

from __future__ import annotations

_WAITS_S = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0)
_HEALTHY_S = 3.0


class Outage:
    """Begins with a failure, and ends when a replacement has worked for three seconds.

    A replacement that fails before that was none: without this, one that opens and then fails would be
    replaced for ever, as fast as it fails.

    Args:
        limit_s: after so many seconds there is no hope.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._began: float | None = None
        self._attempts = 0
        self._worked_s = 0.0

    def failed(self, now: float) -> bool:
        """Something failed at ``now`` (seconds); whether it is worth another attempt."""
        if self._began is None:
            self._began, self._attempts = now, 0
        self._worked_s = 0.0
        return now - self._began <= self._limit_s

    def wait_s(self) -> float:
        """Seconds before the next attempt, which is the caller's: longer from one to the next."""
        self._attempts += 1
        return _WAITS_S[min(self._attempts, len(_WAITS_S)) - 1]

    def worked(self, seconds: float) -> None:
        """The replacement has done its work for so long."""
        if self._began is not None:
            self._worked_s += seconds
            if self._worked_s >= _HEALTHY_S:
                self._began = None
