"""Threads for calls that may never return."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class DaemonExecutor(ThreadPoolExecutor):
    """A :class:`ThreadPoolExecutor` whose threads do not keep the process.

    The standard one is joined when the interpreter ends: a call that never returns, such as a request to a
    model that hangs, would hold the end of the process for ever. An event loop takes no other class.
    """

    def __init__(self, max_workers: int, thread_name_prefix: str = "") -> None:
        super().__init__(max_workers, thread_name_prefix)
        self._limit = max_workers
        self._prefix = thread_name_prefix
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._started = self._idle = 0
        self._is_closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """See :meth:`concurrent.futures.Executor.submit`."""
        call = _Call(Future(), partial(fn, *args, **kwargs))
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the executor is closed")
            self._calls.put(call)
            if self._idle:
                self._idle -= 1
            elif self._started < self._limit:
                self._started += 1
                name = f"{self._prefix}_{self._started}"
                threading.Thread(target=self._serve, name=name, daemon=True).start()
        return call.future

    def shutdown(
        self,
        wait: bool = True,  # noqa: ARG002 - its base's
        *,
        cancel_futures: bool = False,
    ) -> None:
        """Take no more calls. Those under way are not waited for."""
        with self._lock:
            self._is_closed = True
            while cancel_futures and (call := self._next()) is not None:
                call.future.cancel()
            for _ in range(self._started):
                self._calls.put(None)

    def _next(self) -> _Call | None:
        try:
            return self._calls.get_nowait()
        except Empty:
            return None

    def _serve(self) -> None:
        while self._serve_next():
            pass

    def _serve_next(self) -> bool:
        # A function of its own: a result is freed before the next call is awaited.
        with self._lock:
            call = self._next()
            if call is None:
                if self._is_closed:  # no call is left, or this was the mark of the end
                    return False
                self._idle += 1
        if call is None:
            call = self._calls.get()
        if call is None:
            return False
        call.run()
        return True


class _Call(NamedTuple):
    future: Future[Any]
    work: Callable[[], Any]

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.work()
        except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
            self.future.set_exception(error)
        else:
            self.future.set_result(result)
