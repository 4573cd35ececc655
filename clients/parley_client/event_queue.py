"""What a call has received and the application has not read yet."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

from parley_client.errors import SlowConsumerError
from parley_client.events import CallEvent

EventT = TypeVar("EventT")


class EventQueue(Generic[EventT]):
    """A bounded queue between the task that receives and the application's one reader.

    Args:
        limit: Room for events.
        timeout_s: How long ``put`` waits for room (seconds).
    """

    def __init__(self, limit: int, timeout_s: float) -> None:
        self._limit = limit
        self._timeout_s = timeout_s
        self._waiting: deque[EventT] = deque()
        self._changed = asyncio.Event()
        self._ended = False
        self._discarding = False

    @property
    def is_full(self) -> bool:
        """Whether the next ``put`` waits for the reader."""
        return len(self._waiting) >= self._limit and not self._discarding

    async def put(self, event: EventT) -> None:
        """Queue an event; after :meth:`end` or :meth:`discard` it is thrown away.

        Raises:
            SlowConsumerError: no room in time.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                while self.is_full:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError as error:
            unread = f"{len(self._waiting)} events were not read for {self._timeout_s:g} s"
            raise SlowConsumerError(unread) from error
        if not self._ended and not self._discarding:
            self._waiting.append(event)
            self._changed.set()

    async def get(self) -> EventT | None:
        """The next event; None after the last. The caller owns the deadline."""
        while not self._waiting and not self._ended:
            self._changed.clear()
            await self._changed.wait()
        if not self._waiting:
            return None
        event = self._waiting.popleft()
        self._changed.set()
        return event

    def end(self) -> None:
        """No event follows; what waits can still be read."""
        self._ended = True
        self._changed.set()

    def discard(self) -> None:
        """Nobody will read any more: throw away what waits and what comes."""
        self._discarding = True
        self._waiting.clear()
        self._changed.set()


class CallEventQueue(EventQueue[CallEvent]):
    """The events of a call."""
