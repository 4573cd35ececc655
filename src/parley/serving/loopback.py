"""Calls to other models over gRPC on the same machine.

Slower than in-process calls by a trip through the network stack, but free of their faults, and
closing a stream early also cancels it in the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, TypeAlias

import grpc
import numpy as np
import tritonclient.grpc.aio as triton
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from parley.errors import (
    DeadlineExceededError,
    InferenceError,
    ModelUnavailableError,
    OverloadedError,
    ParleyError,
    ShuttingDownError,
)
from parley.inference import ModelRequest, ModelResponse, Tensor
from parley.serving.failures import read_failure

_Answer: TypeAlias = tuple[Any, InferenceServerException | None]
_END: _Answer = (None, None)
_CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # Connections to one's own machine need no proxy.
    ("grpc.enable_http_proxy", 0),
]


# A stream that nobody listens to any more may end by itself within this time (seconds).
_SETTLE_S = 2.0
_CANCEL_S = 1.0


class LoopbackPort:
    """:class:`parley.inference.InferencePort` over one gRPC channel.

    Every stream is an RPC of its own on that channel, so that deadlines and cancellations of
    one call never touch another.

    A stream that is left early is read to its end, and cancelled only if that takes longer than two
    seconds; tell the model to stop. Triton 24.10 forgets a stream that is cancelled just as it
    ends, and with it keeps the model loaded, so that the server stops only at its exit timeout.

    Args:
        url: host and port of the server's gRPC endpoint.
        max_calls: calls to ordinary models that may be under way at once.
        max_streams: calls to decoupled models that may be under way at once.
    """

    def __init__(self, url: str, *, max_calls: int = 64, max_streams: int = 64) -> None:
        self._url = url
        self._calls = max_calls
        self._streams = max_streams
        self._client: Any = None
        self._open: set[Any] = set()
        self._left: set[asyncio.Task[None]] = set()
        self._closed = False

    async def infer(self, request: ModelRequest) -> ModelResponse:
        """The single response of a model that is not decoupled."""
        client = self._connect(request)
        if self._calls == 0:
            raise OverloadedError(f"too many calls under way to call {request.model}")
        self._calls -= 1
        call = asyncio.ensure_future(_infer(client, request))
        call.add_done_callback(self._call_ended)
        return await asyncio.shield(call)  # its own deadline ends it

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelResponse, None]:
        """The responses of a decoupled model, in order, without the empty final one."""
        client = self._connect(request)
        if self._streams == 0:
            raise OverloadedError(f"too many streams under way to call {request.model}")
        self._streams -= 1
        responses = client.stream_infer(_once(request))
        self._open.add(responses)
        ended = False
        # Each in a task of its own: gRPC cancels the RPC when the task that reads is cancelled.
        read = asyncio.ensure_future(_next(request, responses))
        try:
            while True:
                try:
                    result, failure = await asyncio.shield(read)
                except ParleyError:
                    ended = True
                    raise
                if (result, failure) == _END:
                    ended = True
                    return
                read = asyncio.ensure_future(_next(request, responses))
                if failure is not None:
                    raise read_failure(failure.message())
                if outputs := _read_result(result):
                    yield outputs
        finally:
            if ended:
                self._end_stream(responses)
            else:
                task = asyncio.create_task(self._drain(request, responses, read))
                self._left.add(task)
                task.add_done_callback(self._left.discard)

    async def close(self) -> None:
        """Cancel what is under way and close the channel."""
        self._closed = True
        if self._left:
            await asyncio.wait(self._left, timeout=_SETTLE_S)
        for responses in tuple(self._open):
            responses.cancel()
        if self._left:
            await asyncio.wait(self._left, timeout=_CANCEL_S)
        if self._client is not None:
            await self._client.close()
            self._client = None

    def _call_ended(self, call: asyncio.Future[ModelResponse]) -> None:
        self._calls += 1
        _look_at(call)

    def _end_stream(self, responses: Any) -> None:
        responses.cancel()
        self._open.discard(responses)
        self._streams += 1

    async def _drain(self, request: ModelRequest, responses: Any, read: asyncio.Future[_Answer]) -> None:
        try:
            async with asyncio.timeout(_SETTLE_S):
                while await read != _END:
                    read = asyncio.ensure_future(_next(request, responses))
        except (TimeoutError, ParleyError):
            pass  # nobody wants to know
        finally:
            self._end_stream(responses)

    def _connect(self, request: ModelRequest) -> Any:
        if self._closed:
            raise ShuttingDownError(f"no more calls to {request.model}: the server is stopping")
        if self._client is None:  # made here because a channel belongs to the running event loop
            self._client = triton.InferenceServerClient(self._url, channel_args=_CHANNEL_OPTIONS)
        return self._client


async def _once(request: ModelRequest) -> AsyncIterator[dict[str, Any]]:
    # With the end of this iterator we say that no more requests follow: the server ends the RPC
    # after the model's final response.
    yield _arguments(request)


async def _infer(client: Any, request: ModelRequest) -> ModelResponse:
    try:
        result = await client.infer(**_arguments(request), client_timeout=request.timeout_s)
    except InferenceServerException as error:
        raise _read_status(request, error.status(), error.message()) from error
    except asyncio.CancelledError:
        raise _cut_off(request) from None
    return _read_result(result)


async def _next(request: ModelRequest, responses: Any) -> _Answer:
    """The next result or error; (None, None) at the end."""
    try:
        async with asyncio.timeout(request.timeout_s):
            answer: _Answer = await anext(responses)
            return answer
    except TimeoutError as error:
        raise _overdue(request) from error
    except StopAsyncIteration:
        return _END
    except grpc.aio.AioRpcError as error:
        raise _read_status(request, str(error.code()), error.details() or "") from error
    except asyncio.CancelledError:
        raise _cut_off(request) from None


def _cut_off(request: ModelRequest) -> BaseException:
    """What a cancelled RPC means to whoever waits for it."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        return asyncio.CancelledError()
    return ShuttingDownError(f"call to {request.model} was cut off: the server is stopping")


def _look_at(future: asyncio.Future[Any]) -> None:
    """Mark a failure as seen that perhaps nobody waits for any more."""
    if not future.cancelled():
        future.exception()


def _read_status(request: ModelRequest, status: str, text: str) -> ParleyError:
    if status.endswith("DEADLINE_EXCEEDED"):
        return _overdue(request)
    if status.endswith("UNAVAILABLE"):
        error = read_failure(text)
        return (
            error
            if isinstance(error, ShuttingDownError)
            else ModelUnavailableError(f"{request.model}: {text}")
        )
    if status.endswith("CANCELLED"):
        return ShuttingDownError(f"call to {request.model} was cut off: {text}")
    return read_failure(text)


def _overdue(request: ModelRequest) -> DeadlineExceededError:
    return DeadlineExceededError(f"{request.model} did not answer within {request.timeout_s:g} s")


def _arguments(request: ModelRequest) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "model_name": request.model,
        "inputs": [_input(name, value) for name, value in request.inputs.items()],
        "outputs": [triton.InferRequestedOutput(name) for name in request.outputs],
        "request_id": request.request_id,
    }
    if request.sequence is not None:
        arguments |= {
            "sequence_id": request.sequence.correlation_id,
            "sequence_start": request.sequence.start,
            "sequence_end": request.sequence.end,
        }
    return arguments


def _input(name: str, value: Tensor) -> Any:
    tensor = triton.InferInput(name, list(value.shape), np_to_triton_dtype(value.dtype))
    tensor.set_data_from_numpy(np.ascontiguousarray(value))
    return tensor


def _read_result(result: Any) -> dict[str, Tensor]:
    outputs: dict[str, Tensor] = {}
    for output in result.get_response().outputs:
        value = result.as_numpy(output.name)
        if value is None:
            raise InferenceError(f"output {output.name} has a type that numpy does not know")
        outputs[output.name] = value
    return outputs
