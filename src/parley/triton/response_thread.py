"""The thread that calls Triton's response senders, so that no event loop waits for the server."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from parley.errors import OverloadedError

_PATIENCE_S = 5.0
_log = logging.getLogger(__name__)
T = TypeVar("T")


class ResponseThread:
    """Calls Triton's response senders in a thread of its own, in order.

    A call of a sender returns when the server has taken the response, on a busy machine after a millisecond.
    An event loop that waits for it serves nothing else meanwhile.

    Args:
        limit: calls that may wait when a response is added.
        patience_s: how long a response waits for room.
    """

    def __init__(self, name: str, limit: int = 1024, *, patience_s: float = _PATIENCE_S) -> None:
        self._limit = limit
        self._patience_s = patience_s
        self._calls: deque[Callable[[], object]] = deque()
        self._changed = threading.Condition()
        self._running = False
        self._closed = False
        self._ended = False
        # A daemon: the interpreter's end must not wait for a server that does not take a response.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_idle(self) -> bool:
        """Whether all calls were made."""
        with self._changed:
            return not self._calls and not self._running

    def wait_for_room(self) -> None:
        """Wait until a response may be added; the end of a request need not wait, as requests are bounded.

        Raises:
            OverloadedError: the server takes no responses.
        """
        with self._changed:
            if not self._changed.wait_for(self._has_room, self._patience_s):
                raise OverloadedError(f"the server took no response for {self._patience_s:g} s")

    def _has_room(self) -> bool:
        return len(self._calls) < self._limit or self._closed

    def submit(self, call: Callable[[], object]) -> None:
        """Make a call soon; never waits, but makes it at once where the thread has ended."""
        with self._changed:
            if not self._ended:
                self._calls.append(call)
                self._changed.notify_all()
                return
        _call(call)

    async def result(self, call: Callable[[], T], timeout_s: float) -> T:
        """Make a call behind those that wait; returns its result, or raises what it raised.

        Raises:
            TimeoutError: it was not made in time.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            try:
                value = call()
            except Exception as error:  # noqa: BLE001 - raised where it is awaited
                loop.call_soon_threadsafe(_settle, future, future.set_exception, error)
            else:
                loop.call_soon_threadsafe(_settle, future, future.set_result, value)

        self.submit(run)
        async with asyncio.timeout(timeout_s):
            return await future

    def close(self, timeout_s: float) -> None:
        """Make the calls that wait, for at most ``timeout_s`` seconds, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            _log.error("the server did not take all responses within %g s", timeout_s)

    def _run(self) -> None:
        while (call := self._next()) is not None:
            _call(call)
            del call  # what it holds is not kept until the next one

    def _next(self) -> Callable[[], object] | None:
        with self._changed:
            self._running = False
            self._changed.wait_for(lambda: self._calls or self._closed)
            if not self._calls:
                self._ended = True
                return None
            self._running = True
            self._changed.notify_all()
            return self._calls.popleft()


def _call(call: Callable[[], object]) -> None:
    try:
        call()
    except Exception:  # noqa: BLE001 - the other responses are still sent
        _log.exception("a response could not be sent")


def _settle(future: asyncio.Future[Any], settle: Callable[[Any], None], value: object) -> None:
    if not future.done():  # its task may have been cancelled
        settle(value)
