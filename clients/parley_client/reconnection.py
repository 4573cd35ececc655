"""Where a call goes on when it leaves its server, and how long it tries."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from parley.errors import ParleyError
from parley_client.events import MoveReason
from parley_client.transport import CallStream

RELAPSE_S = 3.0
"""A call that loses its new server so soon has not recovered: the same outage goes on."""
_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 2.0
_LAST_TRY_S = 3.0
"""Before the end of an outage there is a try, however long a full server asks to be left alone."""
_REMEMBERED = 64
"""Servers of which it is known when they may be asked again."""


@dataclass(frozen=True, slots=True)
class MoveRequest:
    """A call looks for a stream to another server."""

    session_id: str
    """Of the sequence on the new stream."""
    reason: MoveReason
    failure: ParleyError | None
    """Why the call has no server; None: it has one, and stays there if there is no other."""
    attempt: int
    """Counts the attempts of one outage from 1."""
    timeout_s: float
    """For the connection (seconds)."""


class Reconnect(Protocol):
    """Chooses the servers of one call, and owns the connections to them."""

    @property
    def count(self) -> int:
        """How many servers a call without one asks before it asks one again, at least 1."""
        ...

    @property
    def others(self) -> int:
        """How many servers there are beside the call's own."""
        ...

    async def next_stream(self, request: MoveRequest) -> CallStream:
        """A stream to another server; where the call has none any more, perhaps to the same.

        Raises:
            ParleyError: no server takes the call now.
        """
        ...

    async def release(self, stream: CallStream) -> None:
        """The call has left this stream for good: its first, or one of :meth:`next_stream`.

        May be called again for the same stream.
        """
        ...

    def on_moved(self, request: MoveRequest, failure: ParleyError | None) -> None:
        """An attempt has ended: the call goes on at the new server, or ``failure`` says why not."""
        ...


class Outage:
    """The time in which a call has no server: when to try again, and when to give up.

    Args:
        began_s: When the server was lost (seconds of the caller's clock).
        limit_s: How long it may last (seconds).
        rng: For jitter: calls that lost one server do not all come to the next at once.
    """

    def __init__(self, began_s: float, limit_s: float, rng: random.Random) -> None:
        self.limit_s = limit_s
        self._rng = rng
        self._refusals = 0
        self.refusal: ParleyError | None = None
        """The last answer of servers that have all refused the call for good."""
        self._longest_wait_s = _FIRST_WAIT_S
        self._may_ask_s: deque[float] = deque(maxlen=_REMEMBERED)  # of each attempt, its server again
        self._not_before_s = began_s
        self._ended_s: float | None = None
        self.began_s = began_s
        self.attempts = 0

    def left_s(self, now: float) -> float:
        """How long it may go on (seconds); 0: the call is to be given up."""
        return 0.0 if self.refusal is not None else max(0.0, self.began_s + self.limit_s - now)

    def on_attempt(self) -> int:
        """Count an attempt; returns its number."""
        self.attempts += 1
        return self.attempts

    def on_failure(self, error: ParleyError, servers: int, now: float) -> float:
        """An attempt has failed; returns how long to wait before the next (seconds).

        A server that says when it may be asked again is left alone for so long, but the others are not.
        """
        self._refusals = 0 if error.retryable else self._refusals + 1
        self.refusal = error if self._refusals >= servers else None
        self._not_before_s = now + self._rng.uniform(0, self._longest_wait_s)
        self._longest_wait_s = min(_LONGEST_WAIT_S, 2 * self._longest_wait_s)
        self._may_ask_s.append(now + (error.retry_after_s or 0.0))
        return self.wait_s(servers, now)

    def wait_s(self, servers: int, now: float) -> float:
        """How long to wait before the next attempt (seconds), if there are so many servers now."""
        wait_s = max(0.0, self._not_before_s - now)
        if len(self._may_ask_s) < servers:
            return wait_s
        left_s = self.began_s + self.limit_s - now
        return max(wait_s, min(self._may_ask_s[-servers] - now, left_s - _LAST_TRY_S))

    def end(self, now: float) -> None:
        """The call has a server again."""
        self._ended_s = now

    def goes_on(self, now: float) -> bool:
        """Whether a server that is lost now was lost in the same outage."""
        return self._ended_s is not None and now - self._ended_s < RELAPSE_S
