"""One piece of audio for a recogniser's Triton model, as a gRPC request."""

from __future__ import annotations

import struct
from collections.abc import Awaitable
from typing import TypeVar

import grpc.aio
from tritonclient.grpc import service_pb2

from parley.errors import InferenceError

T = TypeVar("T")


def rail_request(
    model: str, stream: str, audio: bytes, message: bytes = b"{}", *, start: bool = False, end: bool = False
) -> service_pb2.ModelInferRequest:
    """Make a request.

    Args:
        model: name of the model.
        stream: correlation id of the sequence.
        audio: PCM16, 16 kHz mono; may be empty.
        message: JSON of :class:`parley.asr.messages.AsrRequest`.
        start: whether the stream begins.
        end: whether it ends.
    """
    request = service_pb2.ModelInferRequest(model_name=model)
    request.parameters["sequence_id"].string_param = stream
    request.parameters["sequence_start"].bool_param = start
    request.parameters["sequence_end"].bool_param = end
    request.inputs.add(name="AUDIO", datatype="INT16", shape=[1, len(audio) // 2])
    request.inputs.add(name="REQUEST", datatype="BYTES", shape=[1, 1])
    request.raw_input_contents.append(audio)
    request.raw_input_contents.append(struct.pack("<I", len(message)) + message)
    return request


async def answered(call: Awaitable[T]) -> T:
    """Wait for a call.

    Raises:
        InferenceError: the server answered with an error, or not at all.
    """
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise InferenceError(f"the recogniser's probe: {error.details() or error.code().name}") from error
