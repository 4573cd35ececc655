"""An event loop beside Triton's own thread, where the requests of a decoupled model are answered.

``execute`` hands requests over and returns at once, so that the next ones (an abort, for
example) are never held up by those before them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeAlias, TypeVar

from parley.errors import ShuttingDownError
from parley.inference import Tensor
from parley.serving.loop_thread import LoopThread
from parley.serving.process_end import end_failed_process
from parley.serving.responder import Responder
from parley.serving.tensors import read_tensors

_log = logging.getLogger(__name__)
T = TypeVar("T")

Handler: TypeAlias = Callable[[Responder, Mapping[str, Tensor]], Awaitable[None]]
"""Answers one request; the request is ended for it."""


class RequestLoop:
    """Runs a handler per request, in the order in which requests arrive.

    The number of requests at once is bounded by the handler's own admission.

    Args:
        pb_utils: Triton's module.
        handler: answers one request.
        poll_cancelled_s: how often callers that have gone away are looked for (seconds).
    """

    def __init__(self, pb_utils: Any, handler: Handler, *, poll_cancelled_s: float = 0.05) -> None:
        self._pb = pb_utils
        self._handler = handler
        self._poll_cancelled_s = poll_cancelled_s
        self._tasks: dict[asyncio.Task[None], Responder] = {}
        self._watch: asyncio.Task[None] | None = None
        self._loop = LoopThread("requests")

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """See :meth:`parley.serving.loop_thread.LoopThread.run`."""
        return self._loop.run(work, timeout_s)

    def submit(self, requests: Iterable[Any]) -> None:
        """Take over Triton's requests; called by ``execute``."""
        for request in requests:
            responder = Responder(self._pb, request)
            try:
                # Copied now: the tensors are gone when execute returns.
                inputs = read_tensors(request.inputs())
                self._loop.call(self._begin, responder, inputs)
            except Exception as error:  # noqa: BLE001 - answered and logged
                responder.fail(error)

    def close(self, release: Callable[[], Awaitable[None]] | None = None, timeout_s: float = 15.0) -> None:
        """End every request with ``shutting_down``, free what they used, and stop the loop.

        Args:
            release: frees what the handler uses; awaited when no request runs any more, or when half of
                the time is over.
            timeout_s: seconds for all of it.
        """
        try:
            self.run(self._end_all(release, timeout_s / 2), timeout_s)
        except TimeoutError:
            _log.error("the model did not stop within %g s; %d requests run", timeout_s, len(self._tasks))
        self._loop.stop(timeout_s)

    def end_process(self, reason: str) -> None:
        """End the process once all requests are answered; see :func:`end_failed_process`."""
        end_failed_process(reason, idle=lambda: not self._tasks)

    def _begin(self, responder: Responder, inputs: Mapping[str, Tensor]) -> None:
        task = asyncio.create_task(self._answer(responder, inputs))
        self._tasks[task] = responder
        task.add_done_callback(self._ended)
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._watch_callers())

    async def _answer(self, responder: Responder, inputs: Mapping[str, Tensor]) -> None:
        with responder:
            await self._handler(responder, inputs)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()):
            # The handler's own errors were answered: this one is about sending the answer.
            _log.error("a request could not be ended", exc_info=error)

    async def _watch_callers(self) -> None:
        """Cancel the work for callers that have gone away, while there is any work."""
        while self._tasks:
            await asyncio.sleep(self._poll_cancelled_s)
            for task, responder in tuple(self._tasks.items()):
                try:
                    if responder.cancelled:
                        responder.finish()  # nobody is there to read an error
                        task.cancel()
                except Exception:  # noqa: BLE001 - logged; the other callers are still to be looked for
                    _log.exception("a caller could not be asked about: its request is ended")
                    task.cancel()

    async def _end_all(self, release: Callable[[], Awaitable[None]] | None, patience_s: float) -> None:
        if self._watch is not None:
            self._watch.cancel()
        for task, responder in tuple(self._tasks.items()):
            responder.fail(ShuttingDownError("the model is being unloaded"))
            task.cancel()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=patience_s)
            if late:
                _log.error("%d requests did not end within %g s", len(late), patience_s)
        if release is not None:
            await release()
