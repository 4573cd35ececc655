"""Calls to the models of a Triton over its gRPC endpoint.

::

    client = GrpcModelClient(lambda: channel)
    reply = await client.infer(ModelRequest("parakeet_tdt", inputs, ("REPLY",), sequence=flags))
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from parley.errors import (
    ModelUnavailableError,
    OverloadedError,
    ParleyError,
    ShuttingDownError,
)
from parley.grpc_messages import read_response, to_message
from parley.inference import ModelRequest, ModelResponse, overdue
from parley.tls import TlsOptions
from parley.triton.failures import is_of_dead_process, read_failure
from parley.triton.model_control import FOLDER_VARIABLE, RELOAD_S, loss_path

# A stream without a reader may end by itself within this time.
_SETTLE_S = 2.0
_CANCEL_S = 1.0
_LOOK_S = 0.25  # between two looks for a loss of the model
# For each stream that may be under way: requests that free others, and streams that are being drained. A
# turn that is interrupted leaves its streams, and each takes one request that stops the model.
_RESERVE = 4
_CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # Connections to the same machine need no proxy.
    ("grpc.enable_http_proxy", 0),
    # A model asks before the server's endpoint is open: its next attempt must not wait for minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
]


class GrpcModelClient:
    """:class:`parley.inference.ModelClient` over one gRPC channel.

    Every stream is an RPC of its own on that channel, so that deadlines and cancellations of
    one call never touch another.

    A stream that is left early is read to its end, and cancelled only if that takes longer than two
    seconds: send the request that stops the model. Triton 24.10 forgets a stream that is cancelled just as it
    ends, and with it keeps the model loaded, so that the server stops only at its exit timeout.

    Args:
        connect: returns the channel, which the caller owns; called once, when it is first needed,
            because a channel belongs to the running event loop.
        max_calls: calls to ordinary models that may be under way at once.
        max_streams: calls to decoupled models that may be under way at once. Requests that free others
            (:attr:`parley.inference.ModelRequest.frees`) and streams that were left are not among them: four
            times as many of either may be there. One stream too many that was left is cancelled at once,
            the oldest first.

    Triton sends nothing more to a stream whose model has lost its process. Where a launcher watches the
    server, the stream fails when the launcher has noted that.
    """

    def __init__(
        self, connect: Callable[[], grpc.aio.Channel], *, max_calls: int = 64, max_streams: int = 64
    ) -> None:
        self._connect = connect
        self._stub: Any = None
        self._calls = max_calls
        self._streams = max_streams
        self._freeing = self._most_left = _RESERVE * max_streams
        self._open: set[Any] = set()
        self._left: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._closed = False
        folder = os.environ.get(FOLDER_VARIABLE)
        self._folder = Path(folder) if folder else None

    async def infer(self, request: ModelRequest) -> ModelResponse:
        """The single response of a model that is not decoupled."""
        stub = self._connected(request)
        if self._calls == 0:
            raise OverloadedError(f"too many calls under way to call {request.model}")
        self._calls -= 1
        rpc = stub.ModelInfer(to_message(request), timeout=request.timeout_s)
        self._open.add(rpc)
        call = asyncio.ensure_future(_infer(request, rpc))
        call.add_done_callback(lambda done: self._call_ended(rpc, done))
        return await asyncio.shield(call)  # its own deadline ends it

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelResponse, None]:
        """The responses of a decoupled model, in order, without the empty final one."""
        stub = self._connected(request)
        self._acquire_slot(request)
        ended = False
        rpc = read = None
        losses = self._losses(request.model)
        try:
            rpc = stub.ModelStreamInfer()
            self._open.add(rpc)
            # Each in a task of its own: gRPC cancels the RPC when the task that reads is cancelled.
            read = asyncio.ensure_future(_send_request(request, rpc))
            while True:
                try:
                    message = await self._await_answer(request, read, losses)
                except ParleyError:
                    ended = True
                    raise
                if message is None:
                    ended = True
                    return
                read = asyncio.ensure_future(_read_next(request, rpc))
                if message.error_message:
                    raise _read_error(message.error_message)
                if outputs := read_response(message.infer_response):
                    yield outputs
        finally:
            self._release_slot(request)
            if ended or read is None:
                self._end_stream(rpc)
            else:
                self._drain_later(request, rpc, read)

    async def close(self) -> None:
        """Cancel what is under way; streams that were left get a moment to end by themselves."""
        self._closed = True
        if self._left:
            await asyncio.wait(self._left, timeout=_SETTLE_S)
        for rpc in tuple(self._open):
            rpc.cancel()
        if self._left:
            await asyncio.wait(self._left, timeout=_CANCEL_S)

    async def _await_answer(self, request: ModelRequest, read: asyncio.Future[Any], losses: int) -> Any:
        while self._folder is not None:
            done, _ = await asyncio.wait({read}, timeout=_LOOK_S)
            if done:
                break
            if self._losses(request.model) != losses:
                read.cancel()
                raise ModelUnavailableError(
                    f"the process of {request.model} has ended", retry_after_s=RELOAD_S
                )
        return await asyncio.shield(read)

    def _losses(self, model: str) -> int:
        """A number that changes when a model has lost the last of its processes."""
        if self._folder is None:
            return 0
        try:
            return loss_path(self._folder, model).stat().st_mtime_ns
        except OSError:
            return 0

    def _connected(self, request: ModelRequest) -> Any:
        if self._closed:
            raise ShuttingDownError(f"no more calls to {request.model}: the connection is closed")
        if self._stub is None:
            self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._connect())
        return self._stub

    def _call_ended(self, rpc: Any, call: asyncio.Future[ModelResponse]) -> None:
        self._calls += 1
        self._open.discard(rpc)
        if not call.cancelled():
            call.exception()  # marks it as retrieved: its caller may have been cancelled

    def _acquire_slot(self, request: ModelRequest) -> None:
        if (self._freeing if request.frees else self._streams) == 0:
            raise OverloadedError(f"too many streams under way to call {request.model}")
        if request.frees:
            self._freeing -= 1
        else:
            self._streams -= 1

    def _release_slot(self, request: ModelRequest) -> None:
        if request.frees:
            self._freeing += 1
        else:
            self._streams += 1

    def _end_stream(self, rpc: Any) -> None:
        if rpc is not None:
            rpc.cancel()
            self._open.discard(rpc)

    def _drain_later(self, request: ModelRequest, rpc: Any, read: asyncio.Future[Any]) -> None:
        """Read the rest of a stream in the background."""
        if len(self._left) >= self._most_left:
            oldest = next(iter(self._left))
            del self._left[oldest]
            oldest.cancel()
        task = asyncio.create_task(_drain(request, rpc, read))
        self._left[task] = None
        # A task that is cancelled before its first step runs none of its own code.
        task.add_done_callback(lambda done: self._drained(done, rpc, read))

    def _drained(self, task: asyncio.Task[None], rpc: Any, read: asyncio.Future[Any]) -> None:
        self._left.pop(task, None)
        read.cancel()
        self._end_stream(rpc)


async def _infer(request: ModelRequest, rpc: Any) -> ModelResponse:
    try:
        return read_response(await rpc)
    except grpc.aio.AioRpcError as error:
        raise _error_of_status(request, error.code(), error.details() or "") from error
    except asyncio.CancelledError:
        raise _cut_off(request) from None


async def _send_request(request: ModelRequest, rpc: Any) -> Any:
    try:
        # After the end of the requests the server ends the RPC with the model's final response.
        async with asyncio.timeout(request.timeout_s):
            await rpc.write(to_message(request))
            await rpc.done_writing()
    except TimeoutError as error:
        raise overdue(request) from error
    except grpc.aio.AioRpcError as error:
        raise _error_of_status(request, error.code(), error.details() or "") from error
    except asyncio.InvalidStateError as error:  # the RPC ended before
        raise _error_of_status(request, await rpc.code(), await rpc.details() or "") from error
    except asyncio.CancelledError:
        raise _cut_off(request) from None
    return await _read_next(request, rpc)


async def _read_next(request: ModelRequest, rpc: Any) -> Any:
    """The next answer; None at the end."""
    try:
        async with asyncio.timeout(request.timeout_s):
            message = await rpc.read()
    except TimeoutError as error:
        raise overdue(request) from error
    except grpc.aio.AioRpcError as error:
        raise _error_of_status(request, error.code(), error.details() or "") from error
    except asyncio.CancelledError:
        raise _cut_off(request) from None
    return None if message is grpc.aio.EOF else message


async def _drain(request: ModelRequest, rpc: Any, read: asyncio.Future[Any]) -> None:
    try:
        async with asyncio.timeout(_SETTLE_S):
            while await read is not None:
                read = asyncio.ensure_future(_read_next(request, rpc))
    except (TimeoutError, ParleyError):
        pass  # the reader has left: there is no use for the rest


def _read_error(text: str) -> ParleyError:
    error = read_failure(text)
    if is_of_dead_process(text):
        error.retry_after_s = RELOAD_S
    return error


def _cut_off(request: ModelRequest) -> BaseException:
    """The exception of a call whose RPC was cancelled: with its task, or by the closing of the client."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        return asyncio.CancelledError()
    return ShuttingDownError(f"call to {request.model} was cut off: the connection is closed")


def _error_of_status(request: ModelRequest, status: grpc.StatusCode, text: str) -> ParleyError:
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return overdue(request)
    if status is grpc.StatusCode.CANCELLED:
        return ShuttingDownError(f"call to {request.model} was cut off: {text}")
    error = read_failure(text)
    if status is grpc.StatusCode.UNAVAILABLE and not isinstance(error, ShuttingDownError):
        return ModelUnavailableError(f"{request.model}: {text}")
    return error


class LoopbackClient(GrpcModelClient):
    """:class:`parley.triton.grpc_client.GrpcModelClient` over a channel of its own."""

    def __init__(
        self, url: str, *, tls: TlsOptions | None = None, max_calls: int = 64, max_streams: int = 64
    ) -> None:
        super().__init__(self._open_channel, max_calls=max_calls, max_streams=max_streams)
        self._url = url
        self._tls = tls
        self._channel: grpc.aio.Channel | None = None

    async def server_version(self, timeout_s: float) -> str:
        """What the server calls its version, such as ``2.71.0``.

        Raises:
            ModelUnavailableError: nothing answers at the address.
            ShuttingDownError: the server is stopping, or this client is closed.
            DeadlineExceededError: the answer took longer than ``timeout_s`` seconds.
        """
        request = ModelRequest(f"the server at {self._url}", {}, (), timeout_s=timeout_s)
        rpc = self._connected(request).ServerMetadata(service_pb2.ServerMetadataRequest(), timeout=timeout_s)
        try:
            return str((await rpc).version)
        except grpc.aio.AioRpcError as error:
            raise _error_of_status(request, error.code(), error.details() or "") from error

    async def close(self) -> None:
        """Cancel what is under way and close the channel."""
        await super().close()
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    def _open_channel(self) -> grpc.aio.Channel:
        if self._tls is not None:
            options = [*_CHANNEL_OPTIONS, *self._tls.channel_options()]
            self._channel = grpc.aio.secure_channel(self._url, self._tls.credentials(), options=options)
        else:
            self._channel = grpc.aio.insecure_channel(self._url, options=_CHANNEL_OPTIONS)
        return self._channel
