"""How much of what clients send is parsed in one turn of the event loop.

A parser's work depends on the number of its events, not on bytes: a body in chunks of one byte, or a stream
of empty WebSocket frames, has thousands in one read. All connections of a port share a budget of events per
turn. A connection that finds it used up stops reading and goes on in a later turn, in order of arrival, a few
events at a time; so a new request waits for a few turns however many connections send such bytes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

EVENTS_PER_TURN = 64
"""About 3 ms of work."""
_SLICE = 8


class ReadBudget:
    """The events that the connections of one port may still parse in this turn of the event loop."""

    def __init__(self) -> None:
        self._left = EVENTS_PER_TURN
        self._slice = EVENTS_PER_TURN
        self._waiting: deque[Callable[[], None]] = deque()
        self._next: asyncio.Handle | None = None

    def take(self) -> bool:
        """Use one event; False: none is left, :meth:`wait` for a later turn."""
        if self._left <= 0 or self._slice <= 0:
            return False
        self.spend(1)
        return True

    def spend(self, events: int) -> None:
        """Use events that were parsed already, even if they are more than are left."""
        self._left -= events
        self._slice -= events
        self._schedule()

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call ``go_on`` in a later turn, once the budget has room and earlier callers had theirs."""
        self._waiting.append(go_on)
        self._schedule()

    def _schedule(self) -> None:
        if self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._next = None
        self._left = EVENTS_PER_TURN
        try:
            for _ in range(len(self._waiting)):
                if self._left <= 0:
                    break
                self._slice = _SLICE
                self._waiting.popleft()()
        finally:
            self._slice = EVENTS_PER_TURN
            if self._waiting:
                self._schedule()
