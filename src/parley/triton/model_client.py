"""Calls to other models from inside Triton's Python backend (business logic scripting).

What :class:`InProcessClient` works around, all of it measured on Triton 24.10:

* ``async_exec`` runs in the event loop's default executor, which has a handful of threads, and a
  call occupies its thread until the model answers. A few slow calls would hold up every other
  call: the client gives the loop an executor of its own size.
* Tensors of a response live in shared memory that Triton takes back: they are copied to numpy.
* Decoupled calls are not made here; :class:`parley.triton.model_client.TritonModelClient` says why.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, Iterable
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from parley.errors import (
    DeadlineExceededError,
    InferenceError,
    InvalidInputError,
    ModelLoadingError,
    ModelUnavailableError,
    OverloadedError,
    ParleyError,
    ShuttingDownError,
)
from parley.inference import ModelRequest, ModelResponse, overdue
from parley.runtime.daemon_executor import DaemonExecutor
from parley.runtime.parameters import Parameters, Positive
from parley.triton.failures import read_failure
from parley.triton.responses import read_tensors, to_triton
from parley.triton.server_flags import ServerFlags, read_server_flags

if TYPE_CHECKING:
    from parley.triton.grpc_client import LoopbackClient
GRPC_URL_VARIABLE = "PARLEY_GRPC_URL"
_CLOSE_S = 5.0
_log = logging.getLogger(__name__)


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


def _read_all(responses: Iterable[Any]) -> None:
    for response in responses:
        _read_response(response)


def _infer_blocking(pb_utils: Any, request: ModelRequest) -> ModelResponse:
    """Call a model and wait for its answer, however long it takes.

    Triton offers no deadline for this call: see :mod:`parley.triton.model_client`.

    Raises:
        ParleyError: the model failed.
    """
    try:
        return _read_response(_triton_request(pb_utils, request).exec())
    except ParleyError:
        raise
    except Exception as error:
        raise read_failure(f"call to {request.model} failed: {error}") from error


class InProcessClient:
    """Calls of ordinary models over ``async_exec``.

    All calls must come from one event loop.

    Args:
        max_calls: calls that may be under way at once, counted until the model has answered.
    """

    def __init__(self, pb_utils: Any, *, max_calls: int = 64) -> None:
        self._pb = pb_utils
        self._places = threading.BoundedSemaphore(max_calls)
        self._executor = DaemonExecutor(max_calls, thread_name_prefix="bls")
        self._closed = False
        self._ending = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def infer(self, request: ModelRequest) -> ModelResponse:
        """The single response of a model that is not decoupled."""
        future = self._send(request)
        future.add_done_callback(self._ended)
        return _read_response(await _within_deadline(request, future))

    async def end_decoupled(self, request: ModelRequest) -> None:
        """End a sequence of a decoupled model; its responses, which are empty, are not read further.

        One call at a time: streams in process that start together may deadlock.

        Raises:
            ParleyError: the model failed.
        """
        if self._closed:
            raise ShuttingDownError(f"no more calls to {request.model}: the server is stopping")
        self._adopt_loop()
        async with self._ending:
            await _within_deadline(request, asyncio.ensure_future(self._exhaust(request)))

    async def close(self) -> None:
        """Take no more calls. Threads end with the calls that the models still answer."""
        self._closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _exhaust(self, request: ModelRequest) -> None:
        responses = await _triton_request(self._pb, request).async_exec(decoupled=True)
        await asyncio.to_thread(_read_all, responses)

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
            raise InferenceError("all calls through one client must come from the same event loop")


async def _within_deadline(request: ModelRequest, future: asyncio.Future[Any]) -> Any:
    """Wait for ``future`` without cancelling it: Triton cannot take a call back."""
    try:
        async with asyncio.timeout(request.timeout_s):
            return await asyncio.shield(future)
    except TimeoutError as error:
        raise overdue(request) from error
    except ParleyError:
        raise
    except Exception as error:
        raise read_failure(f"call to {request.model} failed: {error}") from error


class TritonModelClient:
    """:class:`parley.inference.ModelClient`: ordinary calls in-process, streams over gRPC.

    Ordinary calls (one per piece of audio) need the short way and are safe on it. Triton's
    in-process streams (``async_exec(decoupled=True)``) are not (24.10): errors after the first response are
    lost, and the whole process deadlocks within a minute or so under load, and now and then with 45 streams
    that start together. Its delivery thread then waits for a stream's lock, held by a thread that waits for
    the interpreter's lock, held by a thread that starts another stream and waits for the delivery thread. The
    deadlock that Triton 26.07 mends (python_backend#439) is another one. Over gRPC streams are no slower.
    """

    def __init__(self, calls: InProcessClient, streams: LoopbackClient) -> None:
        self._calls = calls
        self._streams = streams

    async def infer(self, request: ModelRequest) -> ModelResponse:
        """The single response of a model that is not decoupled."""
        return await self._calls.infer(request)

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelResponse, None]:
        """The responses of a decoupled model, in order, without the empty final one."""
        return self._streams.stream(request)

    async def end_decoupled(self, request: ModelRequest) -> None:
        """End a sequence of a decoupled model in process, where the gRPC endpoint is closed."""
        await self._calls.end_decoupled(request)

    async def server_version(self, timeout_s: float) -> str:
        """See :meth:`parley.triton.grpc_client.LoopbackClient.server_version`."""
        return await self._streams.server_version(timeout_s)

    async def close(self) -> None:
        """Close both ways."""
        try:
            await self._streams.close()
        finally:
            await self._calls.close()


class ClientSettings(msgspec.Struct, frozen=True):
    """Settings of models that call other models."""

    grpc_url: str = ""
    """The server's own gRPC endpoint; ``PARLEY_GRPC_URL`` wins. Not set: that of the server's flags, or
    ``127.0.0.1:8001``."""
    bls_max_calls: Positive = 64
    """Calls with one response that are under way at once."""
    bls_max_streams: Positive = 64
    """Calls with a stream of responses, and sequences, that are under way at once."""


def make_model_client(
    pb_utils: Any, parameters: Parameters, flags: ServerFlags | None = None
) -> TritonModelClient:
    """The client of a model with these parameters.

    ``PARLEY_GRPC_URL`` or ``grpc_url``: the server's own gRPC endpoint; otherwise that of the server's flags,
    or ``127.0.0.1:8001``.
    ``PARLEY_GRPC_CA_FILE`` and ``PARLEY_GRPC_SERVER_NAME``: for an endpoint with TLS.
    ``PARLEY_GRPC_CERT_FILE`` and ``PARLEY_GRPC_KEY_FILE``: where it demands a certificate.
    ``bls_max_calls`` and ``bls_max_streams``: calls under way at once.
    ``flags``: of the server; None: those of the parent process.

    Raises:
        ModelLoadingError: a setting has a value that it cannot have, or the server has no gRPC endpoint that
            its models can use.
    """
    # gRPC is imported only where it is used: it is not needed by models that make no such calls.
    from parley.tls import CA_VARIABLE, read_tls  # noqa: PLC0415
    from parley.triton.grpc_client import LoopbackClient  # noqa: PLC0415

    settings = parameters.read(ClientSettings)
    calls = InProcessClient(pb_utils, max_calls=settings.bls_max_calls)
    flags = flags or read_server_flags() or ServerFlags()
    url = parameters.environment.get(GRPC_URL_VARIABLE) or settings.grpc_url or flags.grpc_url
    if not flags.has_grpc:
        raise ModelLoadingError(
            f"{parameters.model} calls other models by gRPC: start the server without --allow-grpc=false"
        )
    try:
        tls = read_tls(parameters.environment)
        if tls is not None:
            tls.credentials()  # not with the first call only
    except InvalidInputError as error:
        raise ModelLoadingError(str(error)) from error
    if flags.has_grpc_tls and tls is None:
        raise ModelLoadingError(
            f"the server's gRPC endpoint has TLS (--grpc-use-ssl): name its certificate in {CA_VARIABLE}"
        )
    streams = LoopbackClient(url, tls=tls, max_streams=settings.bls_max_streams)
    return TritonModelClient(calls, streams)


class InProcessBlockingClient:
    """Calls inside the server (``InferenceRequest.exec``), each with its deadline.

    Triton cannot take such a call back, and has no deadline for it: a model that hangs would
    hang its caller for ever. So every model is called from a thread of its own, and a model that has not
    answered is not called again: all that it can hold is this one thread.

    One thread makes all calls.
    """

    def __init__(self, pb_utils: Any) -> None:
        self._pb = pb_utils
        # Of daemons: the interpreter's end must not wait for a model that hangs.
        self._executors: dict[str, DaemonExecutor] = {}
        self._owed: dict[str, _Call] = {}
        self._closed = False

    def infer(self, request: ModelRequest) -> ModelResponse:
        """The single response of a model."""
        model = request.model
        if self._closed:
            raise ShuttingDownError(f"no more calls to {model}: the server is stopping")
        if (owed := self._owed.get(model)) and not owed.answer.done():
            waited = time.monotonic() - owed.began
            raise ModelUnavailableError(f"{model} has not answered an earlier call for {waited:.1f} s")
        if model not in self._executors:
            self._executors[model] = DaemonExecutor(1, thread_name_prefix=f"calls-{model}")
        answer = self._executors[model].submit(_infer_blocking, self._pb, request)
        self._owed[model] = _Call(answer, time.monotonic())
        try:
            wait([answer], request.timeout_s)
            if not answer.done():
                raise DeadlineExceededError(f"{model} did not answer within {request.timeout_s:g} s")
            return answer.result()
        finally:
            if answer.done():
                del self._owed[model]

    def close(self) -> None:
        """End the threads; one that still waits for its model is left behind."""
        self._closed = True
        for executor in self._executors.values():
            executor.shutdown()
        owed = dict(self._owed)
        wait([call.answer for call in owed.values()], _CLOSE_S)
        for model, call in owed.items():
            if not call.answer.done():
                _log.error("%s has not answered", model)


class _Call(NamedTuple):
    answer: Future[ModelResponse]
    began: float
