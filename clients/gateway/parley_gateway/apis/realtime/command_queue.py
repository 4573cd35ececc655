"""What a client wants and has not been passed on yet, in its order."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

_BYTES = 1_048_576
"""Half a minute of audio, or texts; one event may bring more, and the next one waits then."""
_Wish = TypeVar("_Wish")


class CommandQueue(Generic[_Wish]):
    """A queue that never refuses: whoever fills it awaits :meth:`room` before it reads the next event.

    Args:
        count: So many may wait.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._waiting: deque[tuple[_Wish, int]] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def put(self, wish: _Wish, size: int = 0) -> None:
        """Add one; ``size`` is what it holds (bytes)."""
        self._waiting.append((wish, size))
        self._bytes += size
        self._note()

    async def room(self) -> None:
        """Wait until there is room for what the client's next event may bring."""
        await self._room.wait()

    async def any(self) -> None:
        """Wait until there is one."""
        await self._changed.wait()

    async def take(self) -> _Wish:
        """The oldest, as soon as there is one."""
        await self._changed.wait()
        wish, size = self._waiting.popleft()
        self._bytes -= size
        self._note()
        return wish

    def _note(self) -> None:
        has_room = len(self._waiting) < self._count and self._bytes < _BYTES
        (self._room.set if has_room else self._room.clear)()
        (self._changed.set if self._waiting else self._changed.clear)()
