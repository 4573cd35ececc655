"""The thread that calls Triton's response senders, so that no event loop waits for the server."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

_log = logging.getLogger(__name__)
T = TypeVar("T")


class ResponseThread:
    """Calls Triton's response senders in a thread of its own, in order.

    A call of a sender returns when the server has taken the response, on a busy machine after a millisecond.
    An event loop that waits for it serves nothing else meanwhile.

    Args:
        name: of the thread.
        limit: calls that wait at most; :meth:`submit` waits for room.
    """

    def __init__(self, name: str, limit: int = 1024) -> None:
        self._room = threading.BoundedSemaphore(limit)
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._closed = False
        # A daemon: the interpreter's end must not wait for a server that does not take a response.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], object]) -> None:
        """Make a call soon; after :meth:`close` it is made at once. A failure is logged."""
        if self._closed:
            _call(call)
            return
        self._room.acquire()
        self._calls.put(call)

    async def result(self, call: Callable[[], T]) -> T:
        """Make a call behind those that wait; returns its result, or raises what it raised."""
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
        return await future

    def close(self, timeout_s: float) -> None:
        """Make the calls that wait, for at most ``timeout_s`` seconds, and end the thread."""
        self._closed = True
        self._calls.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            _log.error("the server did not take all responses within %g s", timeout_s)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            _call(call)
            self._room.release()
            del call  # what it holds is not kept until the next one


def _call(call: Callable[[], object]) -> None:
    try:
        call()
    except Exception:  # noqa: BLE001 - the other responses are still sent
        _log.exception("a response could not be sent")


def _settle(future: asyncio.Future[Any], settle: Callable[[Any], None], value: object) -> None:
    if not future.done():  # its task may have been cancelled
        settle(value)
