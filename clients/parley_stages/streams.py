"""Streams of a decoupled model that stop the model when they are left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Generic, Self, TypeVar

from parley.errors import DeadlineExceededError, ParleyError
from parley.timeouts import best_effort, hold_task

ItemT = TypeVar("ItemT")
_STOP_S = 5.0


class Requests:
    """The requests of one stage: those that run, and those that are being stopped."""

    def __init__(self) -> None:
        self.running: set[ModelStream[Any]] = set()
        """Each stream adds itself when its iteration begins."""
        self._stopping: set[asyncio.Task[None]] = set()

    def stop_model(self, stop: Awaitable[object], what: str) -> asyncio.Task[None]:
        """Stop a model in a task that outlives the caller."""
        return hold_task(self._stopping, best_effort(stop, _STOP_S, what), what)

    async def close(self) -> None:
        """Stop all that run; returns when the models have confirmed it."""
        for stream in tuple(self.running):
            stream.stop()
        if self._stopping:
            await asyncio.wait(self._stopping)


class ModelStream(Generic[ItemT]):
    """The items that a model streams; leaving it early stops the model at once.

    Iterate it inside ``async with``, or call :meth:`aclose` where the iteration ends early.
    """

    def __init__(
        self,
        items: AsyncGenerator[ItemT, None],
        stop: Callable[[], Awaitable[object]],
        requests: Requests,
        what: str,
    ) -> None:
        self._items = items
        self._stop = stop
        self._requests = requests
        self._what = what
        self._begun = False
        self._is_over = False
        self._stopping: asyncio.Task[None] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ItemT:
        """The next item.

        Raises:
            ParleyError: the model failed, is overloaded, or did not answer in time.
        """
        if self._is_over:
            raise StopAsyncIteration
        if not self._begun:
            self._begun = True
            self._requests.running.add(self)
        try:
            return await anext(self._items)
        except StopAsyncIteration:
            self._end()
            raise
        except DeadlineExceededError:
            self.stop()
            raise
        except ParleyError:
            self._end()  # the model's error has ended the request
            raise
        except BaseException:
            self.stop()  # the iteration ends here, and the model may still run
            raise

    async def abort(self) -> None:
        """Stop the model; returns when it has confirmed. The iteration gets what is on its way, then ends."""
        was_over = self._is_over
        self.stop()
        if self._begun:
            self._is_over = was_over
        if self._stopping is not None:
            await asyncio.shield(self._stopping)

    def stop(self) -> None:
        """Stop the model without waiting, and end the iteration."""
        if self._begun and not self._is_over and self._stopping is None:
            self._stopping = self._requests.stop_model(self._stop(), f"stopping {self._what}")
        self._end()

    async def aclose(self) -> None:
        """Stop the model without waiting for it, if it is not done."""
        self.stop()
        await self._items.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *problem: object) -> None:
        await self.aclose()

    def _end(self) -> None:
        self._is_over = True
        self._requests.running.discard(self)
