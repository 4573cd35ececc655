"""Waits with a deadline, and the clock that they use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from types import TracebackType
from typing import Any, TypeVar

from parley.errors import DeadlineExceededError, ParleyError

T = TypeVar("T")
_log = logging.getLogger(__name__)


def loop_time() -> float:
    """Seconds of the running event loop's monotonic clock."""
    return asyncio.get_running_loop().time()


async def with_timeout(work: Awaitable[T], limit_s: float, what: str) -> T:
    """The result of ``work``.

    Raises:
        DeadlineExceededError: ``what`` did not answer within ``limit_s``.
    """
    try:
        async with asyncio.timeout(limit_s):
            return await work
    except TimeoutError as error:
        raise DeadlineExceededError(f"{what} did not answer within {limit_s:g} s") from error


async def is_set_within(event: asyncio.Event, limit_s: float | None) -> bool:
    """Wait for an event; returns whether it was set in time."""
    try:
        async with asyncio.timeout(limit_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def cancel_all(tasks: Iterable[asyncio.Future[Any]]) -> list[Any]:
    """Cancel tasks, and wait for their ends; returns their results and errors."""
    cancelled = list(tasks)
    for task in cancelled:
        task.cancel()
    return await asyncio.gather(*cancelled, return_exceptions=True)


@asynccontextmanager
async def first_to_end(*works: Awaitable[Any]) -> AsyncIterator[Sequence[asyncio.Future[Any]]]:
    """Run all of them until one is over; the others are cancelled, and have ended, behind the block.

    Yields:
        The tasks, one or more of which are done.
    """
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        yield tasks
    finally:
        await cancel_all(tasks)


def hold_task(tasks: set[asyncio.Task[T]], work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """Run ``work`` as a task that ``tasks`` holds until it is done."""
    task = asyncio.create_task(work, name=name)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


def failure_of(task: asyncio.Future[Any]) -> BaseException | None:
    """Why a task that is done has failed; None if it has not, or was cancelled."""
    return None if task.cancelled() else task.exception()


def log_failure(task: asyncio.Task[Any]) -> None:
    """Log why a task failed that is never awaited."""
    if error := failure_of(task):
        _log.error("%s failed", task.get_name(), exc_info=error)


async def iter_with_timeout(
    stream: AsyncGenerator[T, None], limit_s: float, what: str, *, first_s: float | None = None
) -> AsyncGenerator[T, None]:
    """The items of ``stream``, each within ``limit_s``, or the first within ``first_s``; it is always closed.

    Raises:
        DeadlineExceededError: ``what`` did not send its next item in time.
    """
    next_s = limit_s if first_s is None else first_s
    async with aclosing(stream):
        while True:
            try:
                item = await with_timeout(anext(stream), next_s, what)
            except StopAsyncIteration:
                return
            yield item
            next_s = limit_s


async def best_effort(work: Awaitable[object], limit_s: float, what: str) -> None:
    """Wait for clean-up. A failure is only logged: the caller cannot act on it."""
    try:
        await with_timeout(work, limit_s, what)
    except ParleyError as error:
        _log.warning("%s: %s", what, error.to_log(), extra=error.log_extra())


class ToleratedFailures:
    """Ends a block that fails, and logs why: work goes on without what the block gets.

    A server that is busy or down fails often: only the first failure is a warning.

    Args:
        what: the text of the log.
        failed: called with the error code of each failure.
    """

    def __init__(self, what: str, failed: Callable[[str], None] = lambda _: None) -> None:
        self._what = what
        self._failed = failed
        self._level = logging.WARNING

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, ParleyError):
            _log.log(self._level, "%s: %s", self._what, error.to_log(), extra=error.log_extra())
            self._level = logging.DEBUG
            self._failed(error.code)
        elif isinstance(error, Exception):
            _log.error("%s", self._what, exc_info=error)
            self._failed(ParleyError.code)
        return isinstance(error, Exception)
