"""Answers of a decoupled model that are told to stop when nobody wants more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from parley.errors import DeadlineExceededError, ParleyError
from parley.waiting import try_within

ItemT = TypeVar("ItemT")
_STOP_S = 5.0


class Requests:
    """The requests of one stage: those that run, and those that are being told to stop."""

    def __init__(self) -> None:
        self._running: set[ModelStream[Any]] = set()
        self._telling: set[asyncio.Task[None]] = set()

    def begin(self, stream: ModelStream[Any]) -> None:
        """It is being answered."""
        self._running.add(stream)

    def end(self, stream: ModelStream[Any]) -> None:
        """It is not, or no longer."""
        self._running.discard(stream)

    def tell(self, stop: Awaitable[object], what: str) -> asyncio.Task[None]:
        """Tell a model to stop, whatever becomes of the caller."""
        task = asyncio.ensure_future(try_within(stop, _STOP_S, what))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)
        return task

    async def close(self) -> None:
        """Stop all that run; returns when the models know."""
        for stream in tuple(self._running):
            stream.stop()
        if self._telling:
            await asyncio.wait(self._telling)


class ModelStream(Generic[ItemT]):
    """What a model answers, item by item; leaving it early stops the model at once.

    Iterate it inside ``async with``, or call :meth:`aclose` where the iteration ends early.

    Args:
        items: the answers.
        stop: tells the model that no more are wanted.
        requests: of the stage; owns the task that does so.
        what: name of the request in logs.
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
        self._over = False
        self._telling: asyncio.Task[None] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ItemT:
        """The next item.

        Raises:
            ParleyError: the model failed, is overloaded, or did not answer in time.
        """
        if self._over:
            raise StopAsyncIteration
        if not self._begun:
            self._begun = True
            self._requests.begin(self)
        try:
            return await anext(self._items)
        except StopAsyncIteration:
            self._end()
            raise
        except DeadlineExceededError:
            self.stop()
            raise
        except ParleyError:
            self._end()  # what the model answered has ended the request
            raise
        except BaseException:
            self.stop()  # nobody reads on, and the model may still be at it
            raise

    async def abort(self) -> None:
        """Stop the model; returns when it knows. Whoever iterates gets what is on its way, then the end."""
        self.stop()
        if self._telling is not None:
            await asyncio.shield(self._telling)

    def stop(self) -> None:
        """As :meth:`abort`, without waiting."""
        if self._begun and not self._over:
            self._telling = self._requests.tell(self._stop(), f"stopping {self._what}")
            self._requests.end(self)
        self._over = True

    async def aclose(self) -> None:
        """Stop the model without waiting for it, if it is not done."""
        self.stop()
        await self._items.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the model, if it is not done."""
        await self.aclose()

    def _end(self) -> None:
        self._over = True
        self._requests.end(self)
