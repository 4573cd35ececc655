"""Triton's tensors as numpy arrays and back.

``pb_utils`` is the module ``triton_python_backend_utils``; it exists only inside Triton's
Python backend, so every function that needs it takes it as an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from parley.inference import Tensor
from parley.serving.failures import wire_text


def to_numpy(tensor: Any) -> Tensor:
    """A copy that stays valid after the request or response is gone.

    ``as_numpy`` of a numeric tensor is a view of shared memory that Triton takes back.
    """
    return np.array(tensor.as_numpy())


def to_triton(pb_utils: Any, name: str, value: Tensor) -> Any:
    """A Triton tensor of the array's own type; arrays of ``object`` become TYPE_STRING."""
    return pb_utils.Tensor(name, np.ascontiguousarray(value))


def read_tensors(tensors: Iterable[Any]) -> dict[str, Tensor]:
    """All tensors of a request or response by name."""
    return {tensor.name(): to_numpy(tensor) for tensor in tensors}


def make_response(pb_utils: Any, outputs: Mapping[str, Tensor]) -> Any:
    """An ``InferenceResponse`` with these outputs."""
    return pb_utils.InferenceResponse(
        output_tensors=[to_triton(pb_utils, name, value) for name, value in outputs.items()]
    )


def make_error(pb_utils: Any, error: BaseException) -> Any:
    """An ``InferenceResponse`` that reports ``error`` (see :func:`parley.serving.failures.wire_text`)."""
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(wire_text(error)))
