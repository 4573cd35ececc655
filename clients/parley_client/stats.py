"""What a call counts while it runs."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

_REMEMBERED = 16_384


@dataclass
class CallStats:
    """Counters of one call, and when each request was acknowledged."""

    sent: int = 0
    """Requests handed to the network."""
    acknowledged: int = 0
    events: int = 0
    dropped_audio_ms: float = 0.0
    """Audio given to ``offer_audio`` that found no room (milliseconds)."""
    round_trips_ms: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED), repr=False)
    """Request to acknowledgement (milliseconds); the newest ones."""
    _in_flight: dict[str, float] = field(default_factory=dict, repr=False)

    def note_sent(self, request_id: str) -> None:
        """A request leaves."""
        self.sent += 1
        self._in_flight[request_id] = time.perf_counter()

    def note_acknowledged(self, request_id: str) -> None:
        """The server has answered a request completely."""
        began = self._in_flight.pop(request_id, None)
        if began is not None:
            self.acknowledged += 1
            self.round_trips_ms.append(1000 * (time.perf_counter() - began))

    def keep_open(self, request_id: str) -> None:
        """A request whose answer lasts as long as the call is not waited for."""
        self._in_flight.pop(request_id, None)

    @property
    def in_flight(self) -> int:
        """Requests that are not acknowledged."""
        return len(self._in_flight)

    @property
    def oldest_wait_s(self) -> float:
        """How long the oldest unacknowledged request has waited (seconds)."""
        return time.perf_counter() - next(iter(self._in_flight.values())) if self._in_flight else 0.0
