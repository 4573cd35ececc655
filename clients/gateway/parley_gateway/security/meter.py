"""How much one WebSocket may bring."""

from __future__ import annotations

import time
from collections.abc import Callable

from parley_gateway.errors import MessageTooLargeError, RateLimitedError
from parley_gateway.security.settings import RateSettings


class Bucket:
    """Fills at a steady rate up to what may come at once.

    Args:
        per_s: What comes in every second.
        burst_s: It holds what comes in so many seconds.
        clock: Seconds.
    """

    def __init__(self, per_s: float, burst_s: float, clock: Callable[[], float]) -> None:
        self._per_s = per_s
        self._most = per_s * burst_s
        self._clock = clock
        self._left = self._most
        self._filled_at = clock()

    def take(self, amount: float) -> float:
        """Take some; seconds until that is possible if it is not now, otherwise 0."""
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._filled_at) * self._per_s)
        self._filled_at = now
        if amount > self._left:
            return (amount - self._left) / self._per_s
        self._left -= amount
        return 0.0


class Meter:
    """Counts the messages of one WebSocket.

    Args:
        settings: What is allowed.
        clock: Seconds.
    """

    def __init__(self, settings: RateSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._largest = settings.message_bytes
        self._messages = Bucket(settings.messages_per_s, settings.burst_s, clock)
        self._bytes = Bucket(settings.bytes_per_s, settings.burst_s, clock)

    def message(self, size: int) -> None:
        """Count a message of ``size`` bytes.

        Raises:
            MessageTooLargeError: it is too large.
            RateLimitedError: there are too many, or too many bytes.
        """
        if size > self._largest:
            raise MessageTooLargeError(f"message of {size} bytes; at most {self._largest} are allowed")
        if wait := self._messages.take(1):
            raise RateLimitedError("too many messages", retry_after_s=wait)
        if wait := self._bytes.take(size):
            raise RateLimitedError("too many bytes", retry_after_s=wait)
