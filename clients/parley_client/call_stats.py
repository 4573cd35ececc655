"""The counters of a call."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from parley_client.transport import Frame

_REMEMBERED = 16_384


@dataclass
class CallStats:
    """Counters of one call, and when requests were acknowledged."""

    sent: int = 0
    """Requests handed to the network."""
    acknowledged: int = 0
    """Requests that the server has handled: all with a message, and for audio about four in a second."""
    events: int = 0
    dropped_audio_ms: float = 0.0
    """Audio given to ``offer_audio`` that found no room (milliseconds)."""
    moves: int = 0
    """How often the call has gone on at another server."""
    round_trips_ms: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED), repr=False)
    """Request to acknowledgement (milliseconds); the newest ones."""


class InFlight:
    """The requests of one stream whose acknowledgement is due."""

    def __init__(self, stats: CallStats) -> None:
        self._stats = stats
        self._sent_s: dict[str, float] = {}

    def on_sent(self, frame: Frame) -> None:
        """Count a request."""
        self._stats.sent += 1
        if frame.acknowledged:
            self._sent_s[frame.request_id] = time.perf_counter()

    def on_acknowledged(self, request_id: str) -> None:
        """Measure a request that the server has answered completely."""
        began_s = self._sent_s.pop(request_id, None)
        if began_s is not None:
            self._stats.acknowledged += 1
            self._stats.round_trips_ms.append(1000 * (time.perf_counter() - began_s))

    def forget(self, request_id: str) -> None:
        """Do not measure a request whose answer lasts as long as the call."""
        self._sent_s.pop(request_id, None)

    def clear(self) -> None:
        """Nothing is due any more."""
        self._sent_s.clear()

    @property
    def oldest_wait_s(self) -> float:
        """How long the oldest unacknowledged request has waited (seconds)."""
        return time.perf_counter() - next(iter(self._sent_s.values())) if self._sent_s else 0.0
