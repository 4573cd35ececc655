"""Calls to other models from inside Triton's Python backend (business logic scripting).

What the adapter works around, all of it measured on Triton 24.10:

* ``async_exec`` runs in the event loop's default executor, which has a handful of threads, and a
  call occupies its thread until the model answers. A few slow calls would hold up every other
  call: the port gives the loop an executor of its own size.
* Tensors of a response live in shared memory that Triton takes back: they are copied to numpy.
* Decoupled calls are not made here; :class:`parley.serving.ports.MixedPort` says why.
"""

from __future__ import annotations

import asyncio
import threading
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


class InProcessPort:
    """Calls of ordinary models over ``async_exec``.

    All calls must come from one event loop.

    Args:
        pb_utils: Triton's module.
        max_calls: calls that may be under way at once, counted until the model has answered.
    """

    def __init__(self, pb_utils: Any, *, max_calls: int = 64) -> None:
        self._pb = pb_utils
        self._places = threading.BoundedSemaphore(max_calls)
        self._executor = ThreadPoolExecutor(max_calls, thread_name_prefix="bls")
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None

    async def infer(self, request: ModelRequest) -> ModelResponse:
        """The single response of a model that is not decoupled."""
        future = self._send(request)
        future.add_done_callback(self._ended)
        return _read_response(await _within_deadline(request, future))

    async def close(self) -> None:
        """Take no more calls. Threads end with the calls that the models still answer."""
        self._closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _send(self, request: ModelRequest) -> asyncio.Future[Any]:
        """Start a call in a place of its own; :meth:`_ended` gives the place back."""
        if self._closed:
            raise ShuttingDownError(f"no more calls to {request.model}: the server is stopping")
        self._adopt_loop()
        if not self._places.acquire(blocking=False):
            raise OverloadedError(f"too many calls under way to call {request.model}")
        try:
            future: asyncio.Future[Any] = _triton_request(self._pb, request).async_exec()
        except BaseException as error:
            self._places.release()
            if isinstance(error, Exception):
                raise InferenceError(f"{request.model} could not be called: {error}") from error
            raise
        return future

    def _ended(self, future: asyncio.Future[Any]) -> None:
        self._places.release()
        if not future.cancelled():
            future.exception()  # marks it as seen where the caller no longer waits

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
