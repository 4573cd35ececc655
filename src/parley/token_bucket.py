"""What may be used at once, and how fast it comes back."""

from __future__ import annotations


class TokenBucket:
    """Tokens that come back at a steady rate. The caller passes the time, in seconds of one monotonic clock.

    Args:
        size: tokens at the start, and at most.
        per_s: tokens that come back each second.
        debt: tokens that may be spent beyond those that are there; what is spent beyond these is not counted.
    """

    def __init__(self, size: float, per_s: float, *, debt: float = float("inf")) -> None:
        self._size = size
        self._per_s = per_s
        self._least = -debt
        self._left = size
        self._at: float | None = None

    def left(self, now: float) -> float:
        """Tokens that are there; negative: tokens that were spent beyond these."""
        if self._at is not None:
            self._left = min(self._size, self._left + (now - self._at) * self._per_s)
        self._at = now
        return self._left

    def spend(self, tokens: float, now: float) -> None:
        """Take tokens, whether they are there or not."""
        self._left = max(self._least, self.left(now) - tokens)

    def wait_s(self, now: float) -> float:
        """Seconds until no token is owed; 0: none is."""
        return max(0.0, -self.left(now) / self._per_s)
