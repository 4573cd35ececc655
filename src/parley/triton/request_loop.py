"""An event loop in a thread of its own, where the requests of a decoupled model are answered.

``execute`` hands requests over and returns at once, so that the next ones (an abort, for
example) are never held up by those before them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from contextlib import aclosing
from contextvars import Context
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeAlias, TypeVar

import msgspec

from parley.errors import ShuttingDownError
from parley.inference import Tensor, decode_request
from parley.logs import log_ids
from parley.runtime.process_end import end_failed_process
from parley.triton.model_control import FOLDER_VARIABLE
from parley.triton.model_metrics import ModelMetrics
from parley.triton.response_thread import ResponseThread
from parley.triton.responses import Responder, receive_requests

_log = logging.getLogger(__name__)
T = TypeVar("T")
P = ParamSpec("P")
RequestT = TypeVar("RequestT")

Handler: TypeAlias = Callable[[Responder, Mapping[str, Tensor]], Awaitable[None]]
"""Answers one request; the request is ended for it."""
# "Server not ready" while the server exits, the others while this model is being unloaded.
_STOPPING = re.compile(r"not ready|no available version|unknown model|not found", re.IGNORECASE)
_ANSWER_S = 5.0
_INTERVAL_S = 1.0
_LAST_S = 0.5  # for each thread, where the time to close is over


class StructHandler(ABC, Generic[RequestT]):
    """A :data:`Handler` of requests that are JSON messages in the tensor ``REQUEST``.

    A decoupled model is a struct for its messages, a service, and a subclass that connects the two.
    """

    def __init__(self, messages: msgspec.json.Decoder[RequestT]) -> None:
        self._messages = messages

    async def __call__(self, responder: Responder, inputs: Mapping[str, Tensor]) -> None:
        """Answer one request.

        Raises:
            ParleyError: the request failed; the caller sends the error and ends the request.
        """
        await self.answer(responder, decode_request(inputs["REQUEST"], self._messages), inputs)

    @abstractmethod
    async def answer(self, responder: Responder, message: RequestT, inputs: Mapping[str, Tensor]) -> None:
        """Answer one message; ``inputs`` are all tensors of its request."""


async def stream_responses(
    responder: Responder, events: AsyncGenerator[T, None], outputs: Callable[[T], Mapping[str, Tensor]]
) -> None:
    """Send each event as ``outputs`` of it, and close ``events`` when the request has ended."""
    async with aclosing(events):
        async for event in events:
            if not responder.send(outputs(event)):
                return


class RequestLoop:
    """Runs a handler per request, in the order in which requests arrive.

    The number of requests at once is bounded by the handler's own admission.

    Args:
        metrics: of the model; closed with the loop. None: requests are not measured.
        poll_cancelled_s: interval of the checks whether callers have disconnected.
    """

    def __init__(
        self,
        pb_utils: Any,
        handler: Handler,
        metrics: ModelMetrics | None = None,
        *,
        poll_cancelled_s: float = 0.05,
    ) -> None:
        self._pb = pb_utils
        self._handler = handler
        self._metrics = metrics
        self._poll_cancelled_s = poll_cancelled_s
        self._tasks: dict[asyncio.Task[None], Responder] = {}
        self._watch: asyncio.Task[None] | None = None
        self._loop = LoopThread("requests")
        self._responses = ResponseThread("responses")

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """See :meth:`LoopThread.run`."""
        return self._loop.run(work, timeout_s)

    def submit(self, requests: Iterable[Any]) -> None:
        """Take over Triton's requests; called by ``execute``."""
        receive_requests(
            self._pb,
            requests,
            lambda responder, inputs: self._loop.call(self._begin, responder, inputs),
            self._metrics,
            self._responses,
        )

    def close(self, release: Callable[[], Awaitable[None]] | None = None, timeout_s: float = 15.0) -> None:
        """End every request with ``shutting_down``, free what they used, and stop the loop.

        ``release`` frees what the handler uses; it is awaited when no request runs any more, or when half of
        the time is over.
        """
        end = time.monotonic() + timeout_s
        try:
            self.run(self._end_all(release, timeout_s / 2), timeout_s)
        except TimeoutError:
            _log.error("the model did not stop within %g s; %d requests run", timeout_s, len(self._tasks))
        self._responses.close(max(_LAST_S, end - time.monotonic()))
        self._loop.stop(max(_LAST_S, end - time.monotonic()))
        if self._metrics is not None:
            self._metrics.close()

    def end_process(self, reason: str) -> None:
        """End the process once all requests are answered; see :func:`end_failed_process`."""
        end_failed_process(reason, idle=lambda: not self._tasks and self._responses.is_idle)

    def _begin(self, responder: Responder, inputs: Mapping[str, Tensor]) -> None:
        task = asyncio.create_task(self._answer(responder, inputs))
        self._tasks[task] = responder
        task.add_done_callback(self._ended)
        if self._watch is None or self._watch.done():
            # It is for all requests: it does not get the log ids of this one.
            self._watch = asyncio.create_task(self._watch_callers(), context=Context())

    async def _answer(self, responder: Responder, inputs: Mapping[str, Tensor]) -> None:
        with log_ids(request=responder.request_id), responder:
            await self._handler(responder, inputs)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()):
            # The handler's own errors were answered: this one is about making the answer.
            _log.error("a request could not be ended", exc_info=error)

    async def _watch_callers(self) -> None:
        """Cancel the requests of callers that have disconnected, while any runs."""
        while self._tasks:
            await asyncio.sleep(self._poll_cancelled_s)
            for task, responder in tuple(self._tasks.items()):
                try:
                    if await responder.is_cancelled():
                        responder.finish()  # no caller to read an error
                        task.cancel()
                except Exception:  # noqa: BLE001 - logged; the other callers are still checked
                    _log.exception("the state of a caller is unknown: its request is ended")
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


class LoopThread:
    """A thread that runs an event loop until :meth:`stop`."""

    def __init__(
        self, name: str, make_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    ) -> None:
        self._loop = make_loop()
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


async def wait_for_stop(
    pb_utils: Any, model: str, has_served: Callable[[], bool], interval_s: float = 0.5
) -> None:
    """Return when the server or ``model``, once it serves, is being stopped.

    ``model`` is the calling model, which must be decoupled; ``has_served``: whether it has had a request, so
    that the server is certainly not loading any more.
    """
    served = False
    while True:
        await asyncio.sleep(interval_s)
        try:
            async with asyncio.timeout(_ANSWER_S):
                text = await _refusal(pb_utils, model)
        except TimeoutError:
            _log.warning("the server did not answer within %g s", _ANSWER_S)
            continue
        if not _STOPPING.search(text):
            served = True
        elif served or has_served():  # a loading server refuses in the same words
            _log.info("the server is stopping: %s", text)
            return


async def _refusal(pb_utils: Any, model: str) -> str:
    """Why a call that cannot succeed is refused."""
    request = pb_utils.InferenceRequest(model_name=model, inputs=[], requested_output_names=["EVENT"])
    try:
        response = await request.async_exec()
    except pb_utils.TritonModelException as error:
        return str(error)
    return str(response.error().message()) if response.has_error() else ""


def heartbeat_path(folder: Path, pid: int) -> Path:
    """The file that a process touches as long as its event loop makes progress."""
    return folder / f"{pid}.heartbeat"


class Heartbeat:
    """Touches this process's file while its event loop makes progress; does nothing if no launcher reads it.

    A turn of the loop runs all that waits for it. Behind a flood of requests one turn takes minutes, in which
    no task runs twice, so each request counts as progress too.
    """

    def __init__(self, interval_s: float = _INTERVAL_S) -> None:
        folder = os.environ.get(FOLDER_VARIABLE)
        self._path = heartbeat_path(Path(folder), os.getpid()) if folder else None
        self._interval_s = interval_s
        self._touched_at = -math.inf

    def on_progress(self) -> None:
        """The event loop has done something; to be called on it."""
        now = time.monotonic()
        if self._path is not None and now - self._touched_at >= self._interval_s:
            self._touched_at = now
            with contextlib.suppress(OSError):  # the launcher then takes the process for one that hangs
                self._path.touch(mode=0o600)

    async def run(self) -> None:
        """Note that the loop turns, for ever; returns at once if no launcher reads it."""
        while self._path is not None:
            self.on_progress()
            await asyncio.sleep(self._interval_s)
