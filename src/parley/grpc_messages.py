"""Requests and responses of models as Triton's protobuf messages."""

from __future__ import annotations

from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2
from tritonclient.utils import (
    deserialize_bytes_tensor,
    np_to_triton_dtype,
    serialize_byte_tensor,
    triton_to_np_dtype,
)

from parley.errors import InferenceError
from parley.inference import ModelRequest, Tensor


def to_message(request: ModelRequest, *, empty_final: bool = False) -> Any:
    """The request as a ``ModelInferRequest``.

    ``empty_final``: a decoupled model's FINAL flag comes in a response of its own, without outputs.
    """
    message = service_pb2.ModelInferRequest(model_name=request.model, id=request.request_id)
    if request.sequence is not None:
        # To Triton, 5 and "5" are two sequences.
        key = request.sequence.correlation_id
        if isinstance(key, str):
            message.parameters["sequence_id"].string_param = key
        else:
            message.parameters["sequence_id"].int64_param = key
        message.parameters["sequence_start"].bool_param = request.sequence.start
        message.parameters["sequence_end"].bool_param = request.sequence.end
    if empty_final:
        message.parameters["triton_enable_empty_final_response"].bool_param = True
    for name, value in request.inputs.items():
        message.inputs.add(name=name, datatype=np_to_triton_dtype(value.dtype), shape=value.shape)
        message.raw_input_contents.append(_to_raw(value))
    for name in request.outputs:
        message.outputs.add(name=name)
    return message


def _to_raw(value: Tensor) -> bytes:
    if value.dtype == np.object_:
        return bytes(serialize_byte_tensor(value).item())
    return np.ascontiguousarray(value).tobytes()


def read_response(response: Any) -> dict[str, Tensor]:
    """The outputs of a ``ModelInferResponse``."""
    outputs: dict[str, Tensor] = {}
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        if output.datatype == "BYTES":
            value = deserialize_bytes_tensor(raw)
        else:
            kind = triton_to_np_dtype(output.datatype)
            if kind is None:
                raise InferenceError(f"output {output.name} has a type without a numpy counterpart")
            value = np.frombuffer(raw, dtype=kind)
        outputs[output.name] = value.reshape(tuple(output.shape))
    return outputs
