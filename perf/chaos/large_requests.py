"""Requests that a model needs memory for, because their messages are large, as a stranger could send them."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
from tritonclient.grpc import model_config_pb2, service_pb2
from tritonclient.utils import triton_to_np_dtype

from parley.canaries import CanaryConnection
from parley.errors import ParleyError
from parley.inference import ModelRequest, SequenceFlags, Tensor

MESSAGE_BYTES = 33 << 20
"""glibc's malloc asks the kernel for more than 32 MiB each time, however much a process has left."""
_STRING = "TYPE_STRING"


def send_large(address: str, model: str, deadline_s: float) -> str:
    """Send a model a message that is no request of its, and wait for the end of it.

    Args:
        address: Of gRPC.
        model: Its name.
        deadline_s: Until the last answer (seconds).

    Returns:
        The error; empty: there was none.
    """
    try:
        with CanaryConnection(address, deadline_s) as server:
            asked = service_pb2.ModelConfigRequest(name=model)
            config = server.stub.ModelConfig(asked, timeout=server.left_s).config
            server.stream([make_large(config)])
    except ParleyError as error:
        return str(error)
    return ""


def make_large(config: Any) -> ModelRequest:
    """A request for a model with this ``ModelConfig``: zeros, and a text of :data:`MESSAGE_BYTES`."""
    name = f"chaos-{uuid.uuid4().hex}"
    inputs = {}
    for one in config.input:
        kind = model_config_pb2.DataType.Name(one.data_type)
        value: Tensor
        if kind == _STRING:
            value = np.array([b" " * MESSAGE_BYTES], np.object_)
        else:
            value = np.zeros(
                [max(1, length) for length in one.dims], triton_to_np_dtype(kind.removeprefix("TYPE_"))
            )
        inputs[one.name] = value[np.newaxis] if config.max_batch_size else value
    is_sequence = config.HasField("sequence_batching")
    flags = SequenceFlags(name, start=True, end=True) if is_sequence else None
    return ModelRequest(config.name, inputs, (), request_id=name, sequence=flags)
