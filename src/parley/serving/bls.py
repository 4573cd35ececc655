"""Calls to other models from inside Triton's Python backend (business logic scripting).

What the adapter works around, all of it measured on Triton 24.10:

* ``async_exec`` runs in the event loop's default executor, and a decoupled call occupies its
  thread there until the *first* response. The default executor has a handful of threads, so a
  few slow language model calls would hold up every other call: the port gives the loop an
  executor of its own size.
* Iterating a decoupled response blocks, so it happens in a thread; tensors are turned into
  plain numpy there, because they live in shared memory that Triton takes back.
* A decoupled iterator that is dropped before its end blocks the thread that drops it: a stream
  that nobody listens to any more is read to its end.
* An error that a decoupled model sends after its first response never arrives; the caller sees a
  missed deadline, and the thread waits for ever. Prefer :class:`parley.serving.ports.MixedPort`.
* The last reference to a finished iterator must not be dropped by Triton's own clean-up thread
  (it then needs the interpreter's lock while it holds one of its own): finished iterators are
  kept for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from parley.errors import (
    DeadlineExceededError,
    InferenceError,
    OverloadedError,
    ParleyError,
    ShuttingDownError,
)
from parley.inference import ModelRequest, ModelResponse
from parley.serving.failures import read_failure
from parley.serving.tensors import read_tensors, to_triton

_RETIRED = 256  # finished iterators kept; each holds one stream's responses


def _triton_request(pb_utils: Any, request: ModelRequest) -> Any:
    options: dict[str, Any] = {}
    if request.sequence is not None:
        flags = 0
        if request.sequence.start:
            flags |= pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
        if request.sequence.end:
            flags |= pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END
        options = {"correlation_id": request.sequence.correlation_id, "flags": flags}
    return pb_utils.InferenceRequest(
        model_name=request.model,
        request_id=request.request_id,
        inputs=[to_triton(pb_utils, name, value) for name, value in request.inputs.items()],
        requested_output_names=list(request.outputs),
        **options,
    )


def _read_response(response: Any) -> ModelResponse:
    if response.has_error():
        raise read_failure(response.error().message())
    return read_tensors(response.output_tensors())


def infer_blocking(pb_utils: Any, request: ModelRequest) -> ModelResponse:
    """Call a model and wait for its answer, however long it takes.

    Triton offers no deadline for this call: see :class:`parley.serving.blocking.InProcessBlockingPort`.

    Raises:
        ParleyError: the model failed.
    """
    try:
        return _read_response(_triton_request(pb_utils, request).exec())
    except ParleyError:
        raise
    except Exception as error:
        raise read_failure(f"call to {request.model} failed: {error}") from error


class _Stream:
    """One decoupled call: a thread fills it, a coroutine reads it.

    At most ``room`` responses wait; then the thread waits.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, room: int) -> None:
        self._loop = loop
        self._items: asyncio.Queue[ModelResponse | ParleyError | None] = asyncio.Queue()
        self._room = threading.Semaphore(room)
        self._unheard = threading.Event()

    async def next(self) -> ModelResponse | None:
        """The next response; None at the end."""
        item = await self._items.get()
        self._room.release()
        if isinstance(item, ParleyError):
            raise item
        return item

    def stop_listening(self) -> None:
        """Let the thread discard what is still to come."""
        self._unheard.set()
        self._room.release()

    def fill(self, responses: Any) -> None:
        """Read ``responses`` to the end; runs in a thread of its own."""
        try:
            for response in responses:
                if self._unheard.is_set():
                    continue
                if response.has_error():
                    self._put(read_failure(response.error().message()))
                elif tensors := read_tensors(response.output_tensors()):
                    self._put(tensors)
        except Exception as error:  # noqa: BLE001 - handed to the reader
            self._put(error if isinstance(error, ParleyError) else InferenceError(str(error)))
        finally:
            self._put(None)

    def _put(self, item: ModelResponse | ParleyError | None) -> None:
        if not self._unheard.is_set():
            self._room.acquire()
        if not self._unheard.is_set():
            # The loop may be closed already: then there is nobody to tell.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._items.put_nowait, item)


class InProcessPort:
    """:class:`parley.inference.InferencePort` over ``async_exec``.

    All calls must come from one event loop.

    Args:
        pb_utils: Triton's module.
        max_calls: calls to ordinary models that may be under way at once.
        max_streams: calls to decoupled models that may be under way at once, counted until the
            model has ended them. Requests that free others (:attr:`parley.inference.ModelRequest.frees`)
            are not among them: as many of these may be there.
        room: responses of one stream that may wait for their reader.
    """

    def __init__(self, pb_utils: Any, *, max_calls: int = 64, max_streams: int = 64, room: int = 64) -> None:
        self._pb = pb_utils
        self._room = room
        self._calls = threading.BoundedSemaphore(max_calls)
        self._streams = threading.BoundedSemaphore(max_streams)
        self._freeing = threading.BoundedSemaphore(max_streams)
        self._executor = ThreadPoolExecutor(max_calls + 2 * max_streams, thread_name_prefix="bls")
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._retired: deque[Any] = deque(maxlen=_RETIRED)

    async def infer(self, request: ModelRequest) -> ModelResponse:
        """The single response of a model that is not decoupled."""
        future = self._send(request, self._calls, decoupled=False)
        future.add_done_callback(self._call_ended)
        return _read_response(await _within_deadline(request, future))

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelResponse, None]:
        """The responses of a decoupled model, in order, without the empty final one."""
        stream = _Stream(asyncio.get_running_loop(), self._room)
        places = self._freeing if request.frees else self._streams
        future = self._send(request, places, decoupled=True)
        # The thread starts whether or not the caller still waits by then.
        future.add_done_callback(lambda done: self._stream_began(stream, done, places))
        try:
            await _within_deadline(request, future)
            while True:
                try:
                    async with asyncio.timeout(request.timeout_s):
                        item = await stream.next()
                except TimeoutError as error:
                    raise _overdue(request) from error
                if item is None:
                    return
                yield item
        finally:
            stream.stop_listening()

    async def close(self) -> None:
        """Take no more calls. Threads end with the calls that the models still answer."""
        self._closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _send(
        self, request: ModelRequest, places: threading.BoundedSemaphore, *, decoupled: bool
    ) -> asyncio.Future[Any]:
        """Start a call in a place of its own; whoever sees its end gives the place back."""
        if self._closed:
            raise ShuttingDownError(f"no more calls to {request.model}: the server is stopping")
        self._adopt_loop()
        if not places.acquire(blocking=False):
            raise OverloadedError(f"too many calls under way to call {request.model}")
        try:
            future: asyncio.Future[Any] = _triton_request(self._pb, request).async_exec(decoupled=decoupled)
        except BaseException as error:
            places.release()
            if isinstance(error, Exception):
                raise InferenceError(f"{request.model} could not be called: {error}") from error
            raise
        return future

    def _call_ended(self, future: asyncio.Future[Any]) -> None:
        self._calls.release()
        _look_at(future)

    def _stream_began(
        self, stream: _Stream, future: asyncio.Future[Any], places: threading.BoundedSemaphore
    ) -> None:
        if not _look_at(future):
            places.release()
            return
        work = (stream, future.result(), places)
        try:
            self._executor.submit(self._fill, *work)
        except RuntimeError:  # closed meanwhile; the responses must be read all the same
            threading.Thread(target=self._fill, args=work, daemon=True).start()

    def _fill(self, stream: _Stream, responses: Any, places: threading.BoundedSemaphore) -> None:
        try:
            stream.fill(responses)
        finally:
            self._retired.append(responses)
            places.release()

    def _adopt_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            loop.set_default_executor(self._executor)
            self._loop = loop
        elif self._loop is not loop:
            raise InferenceError("all calls through one port must come from the same event loop")


async def _within_deadline(request: ModelRequest, future: asyncio.Future[Any]) -> Any:
    """Wait for ``future`` without cancelling it: Triton cannot take a call back."""
    try:
        async with asyncio.timeout(request.timeout_s):
            return await asyncio.shield(future)
    except TimeoutError as error:
        raise _overdue(request) from error
    except ParleyError:
        raise
    except Exception as error:
        raise read_failure(f"call to {request.model} failed: {error}") from error


def _overdue(request: ModelRequest) -> DeadlineExceededError:
    return DeadlineExceededError(f"{request.model} did not answer within {request.timeout_s:g} s")


def _look_at(future: asyncio.Future[Any]) -> bool:
    """Whether ``future`` brought a result; marks its error as seen by somebody."""
    return not future.cancelled() and future.exception() is None
