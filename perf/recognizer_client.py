"""One piece of audio for a recogniser's Triton model, as a gRPC request."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

import grpc.aio
import numpy as np
from tritonclient.grpc import service_pb2

from parley.errors import InferenceError
from parley.grpc_messages import to_message
from parley.inference import ModelRequest, SequenceFlags, text_tensor

T = TypeVar("T")


def recognizer_request(
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
    inputs = {
        "AUDIO": np.frombuffer(audio, np.int16).reshape(1, -1),
        "REQUEST": text_tensor(message, batched=True),
    }
    return to_message(ModelRequest(model, inputs, (), sequence=SequenceFlags(stream, start, end)))


async def answered(call: Awaitable[T]) -> T:
    """Wait for a call.

    Raises:
        InferenceError: the server answered with an error, or not at all.
    """
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise InferenceError(f"the recogniser's probe: {error.details() or error.code().name}") from error
