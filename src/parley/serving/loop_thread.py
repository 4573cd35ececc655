"""An event loop beside Triton's own thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class LoopThread:
    """A thread that runs an event loop until :meth:`stop`.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Run ``work`` on the loop and wait for it, for ``timeout_s`` seconds.

        Raises:
            TimeoutError: it took too long, and was cancelled.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            raise

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run ``work`` on the loop without waiting for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call ``function`` on the loop soon; calls are made in the order in which they are asked for."""
        self._loop.call_soon_threadsafe(lambda: function(*args, **kwargs))

    def stop(self, timeout_s: float) -> None:
        """End the loop; tasks that still run are abandoned."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            self._loop.close()
