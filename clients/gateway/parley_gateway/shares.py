"""A bounded number of places, shared among their owners.

The rule is that of dynamic thresholds (Choudhury and Hahne, 1998): one owner may hold up to ``PER_FREE``
times the places that are still free. Alone it gets three quarters of all; ``n`` owners that take as many as
they can have ``PER_FREE / (1 + PER_FREE * n)`` of the places each, and some stay free. So a newcomer
gets a place at once, whatever one owner holds, and no place is ever revoked. The first place of an owner
only needs a free one.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

PER_FREE = 3


def is_within_share(held: int, size: int, free: int) -> bool:
    """Whether an owner of ``held`` may have ``size`` more while ``free`` are free."""
    return size <= free if not held else held + size <= PER_FREE * (free - size)


class Shares:
    """Counts the places of a limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0
        self._owners: Counter[str | None] = Counter()

    def held(self, owner: str | None) -> int:
        """The number of places of an owner."""
        return self._owners[owner]

    def has_room(self, owner: str | None) -> bool:
        """Whether an owner gets another place. Owner None: callers that share one principal."""
        free, held = self.limit - self.taken, self._owners[owner]
        return is_within_share(0 if owner is None else held, 1, free)

    @contextmanager
    def take(self, owner: str | None) -> Iterator[None]:
        """Hold a place, after :meth:`has_room` has returned True."""
        self.taken += 1
        self._owners[owner] += 1
        try:
            yield
        finally:
            self.taken -= 1
            self._owners[owner] -= 1
            if not self._owners[owner]:
                del self._owners[owner]


class ShareLimiter:
    """Places, or bytes, with queues of waiting requests.

    Of the owners within their share the one that was served longest ago comes next; the requests of one owner
    are served in order. A request within its share that has no room yet blocks later ones.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._free = limit
        self._held: Counter[str | None] = Counter()
        self._waiting: OrderedDict[str | None, deque[tuple[int, asyncio.Future[None]]]] = OrderedDict()

    async def acquire(self, size: int, owner: str | None = None) -> None:
        """Wait for and take ``size`` places. Owner None: callers that share one principal."""
        assert size <= self._limit
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = (size, turn)
        queue = self._waiting.setdefault(owner, deque())
        queue.append(waiter)
        self._serve()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                with suppress(ValueError):  # removed by _serve already
                    queue.remove(waiter)
                if not queue and self._waiting.get(owner) is queue:
                    del self._waiting[owner]
                self._serve()
            else:  # granted at the same moment
                self.release(size, owner)
            raise

    @asynccontextmanager
    async def take(
        self, size: int, owner: str | None, within_s: float, late: Exception
    ) -> AsyncIterator[None]:
        """Hold ``size`` places; raises ``late`` where they are not free in time."""
        try:
            async with asyncio.timeout(within_s):
                await self.acquire(size, owner)
        except TimeoutError as error:
            raise late from error
        try:
            yield
        finally:
            self.release(size, owner)

    def release(self, size: int, owner: str | None = None) -> None:
        """Release places."""
        self._free += size
        self._held[owner] -= size
        if not self._held[owner]:
            del self._held[owner]
        self._serve()

    def _serve(self) -> None:
        while (queue := self._next()) is not None:
            owner, waiting = queue
            size, turn = waiting.popleft()
            if waiting:
                self._waiting.move_to_end(owner)
            else:
                del self._waiting[owner]
            if not turn.cancelled():
                self._free -= size
                self._held[owner] += size
                turn.set_result(None)

    def _next(self) -> tuple[str | None, deque[tuple[int, asyncio.Future[None]]]] | None:
        for owner, waiting in self._waiting.items():
            size, _ = waiting[0]
            held = 0 if owner is None else self._held[owner]
            if is_within_share(held, size, self._free):
                return owner, waiting
            if not held:
                return None
        return None
