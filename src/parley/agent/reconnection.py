"""When another stream of the recogniser is opened after one has failed."""

from __future__ import annotations

HEALTHY_S = 3.0
"""Audio that a stream must have taken before its failures are forgotten (seconds)."""
_REOPEN_WAITS_S = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0)


class ReconnectBackoff:
    """The attempts of one outage: from a failure until a replacement has worked for three seconds.

    A replacement that fails earlier continues the outage. Otherwise a recogniser that opens and then fails
    would be replaced for ever. ``limit_s`` is the longest outage.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._began: float | None = None
        self._attempts = 0
        self._worked_s = 0.0

    def failed(self, now: float) -> bool:
        """Record a failure at ``now`` (seconds); returns whether another attempt is allowed."""
        if self._began is None:
            self._began, self._attempts = now, 0
        self._worked_s = 0.0
        return now - self._began <= self._limit_s

    def wait_s(self) -> float:
        """Seconds to wait before the next attempt; grows with each."""
        self._attempts += 1
        return _REOPEN_WAITS_S[min(self._attempts, len(_REOPEN_WAITS_S)) - 1]

    def worked(self, seconds: float) -> None:
        """Record audio that the replacement has processed."""
        if self._began is not None:
            self._worked_s += seconds
            if self._worked_s >= HEALTHY_S:
                self._began = None
