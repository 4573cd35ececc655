"""Whether a model serves: a plain ``tritonserver`` also calls those ready that refuse every request.

The launcher leaves out what cannot serve; its own model says that it started the server. On any other server
a ready model gets one request of zeros and empty texts. A model that serves refuses it at once as invalid, or
answers; one that cannot serve names that as the reason. The answer is kept for a minute with the channel.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from math import prod
from time import monotonic
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

import grpc.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from parley.errors import ModelLoadingError
from parley.triton.failures import read_failure
from parley.triton.model_control import CONTROL_MODEL

_KEPT_S = 60.0
_EMPTY_TEXT = bytes(4)  # its length
_ITEM_BYTES = {"BOOL": 1, "UINT8": 1, "INT16": 2, "INT32": 4, "INT64": 8, "FP16": 2, "FP32": 4, "FP64": 8}
_SEEN: WeakKeyDictionary[grpc.aio.Channel, dict[str, tuple[float, bool]]] = WeakKeyDictionary()


async def is_serving(channel: grpc.aio.Channel, model: str, timeout_s: float) -> bool:
    """Whether the server has loaded a model, and it does not refuse every request.

    A model that does not answer in time is busy, and serves.

    Raises:
        grpc.aio.AioRpcError: the server cannot be asked.
    """
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

    async def is_ready(name: str) -> bool:
        reply = await stub.ModelReady(service_pb2.ModelReadyRequest(name=name), timeout=timeout_s)
        return bool(reply.ready)

    if not await is_ready(model):
        return False
    seen = _SEEN.setdefault(channel, {})
    until, serves = seen.get(model, (0.0, False))
    if monotonic() < until:
        return serves
    if await is_ready(CONTROL_MODEL):
        seen[model] = (monotonic() + _KEPT_S, True)
        return True
    try:
        answer = await _ask(stub, model, timeout_s)
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
            raise
        return True
    serves = not isinstance(read_failure(answer), ModelLoadingError)
    seen[model] = (monotonic() + _KEPT_S, serves)
    return serves


async def _ask(stub: Any, model: str, timeout_s: float) -> str:
    """The error that a model answers a request without content with; empty: none."""
    found = await stub.ModelMetadata(service_pb2.ModelMetadataRequest(name=model), timeout=timeout_s)
    request = service_pb2.ModelInferRequest(model_name=model)
    # Models that take streams get one of a single request; the others ignore this.
    request.parameters["sequence_id"].string_param = uuid4().hex
    request.parameters["sequence_start"].bool_param = True
    request.parameters["sequence_end"].bool_param = True
    for tensor in found.inputs:
        shape = [max(1, length) for length in tensor.shape]
        request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=shape)
        item = _EMPTY_TEXT if tensor.datatype == "BYTES" else bytes(_ITEM_BYTES[tensor.datatype])
        request.raw_input_contents.append(item * prod(shape))

    async def requests() -> AsyncIterator[Any]:
        yield request

    # As a stream, which ordinary and decoupled models answer; it is read to its end.
    answers = stub.ModelStreamInfer(requests(), timeout=timeout_s)
    return "".join([answer.error_message async for answer in answers])
