"""The language prompt as nodes of an ONNX encoder.

NeMo's own export of an ``EncDecRNNTBPEModelWithPrompt`` is the encoder without them: its decoder would get
frames of no language, and write hardly anything. ``build/nemo_export`` puts these nodes behind it; they
have the input ``prompt_index`` i64 ``[B]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

PROMPT = "prompt_index"
PARAMETERS = (
    "prompt_kernel.0.weight",
    "prompt_kernel.0.bias",
    "prompt_kernel.2.weight",
    "prompt_kernel.2.bias",
)
"""NeMo's names of two layers; the first takes a frame with the one-hot vector of the language behind it."""
_FRAMES, _LANGUAGES, _FIRST_BIAS = "prompt.frames", "prompt.languages", "prompt.first_bias"
_SECOND, _SECOND_BIAS, _AXIS = "prompt.second", "prompt.second_bias", "prompt.axis"


def prompt_nodes(frames: str, output: str) -> list[tuple[str, list[str], list[str]]]:
    """Operators without attributes, with their inputs and outputs.

    Args:
        frames: name of the encoder's own frames f32 ``[B, D, T]``.
        output: name of those of the language, of the same shape.
    """
    # Frames are columns: weights stand before them. So quantisation leaves these small products alone.
    return [
        ("Gather", [_LANGUAGES, PROMPT], ["prompt.rows"]),
        ("Unsqueeze", ["prompt.rows", _AXIS], ["prompt.column"]),
        ("MatMul", [_FRAMES, frames], ["prompt.projected"]),
        ("Add", ["prompt.projected", "prompt.column"], ["prompt.conditioned"]),
        ("Add", ["prompt.conditioned", _FIRST_BIAS], ["prompt.inner"]),
        ("Relu", ["prompt.inner"], ["prompt.active"]),
        ("MatMul", [_SECOND, "prompt.active"], ["prompt.outer"]),
        ("Add", ["prompt.outer", _SECOND_BIAS], [output]),
    ]


def prompt_tensors(parameters: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[Any]]:
    """The constants of :func:`prompt_nodes`, of NeMo's :data:`PARAMETERS`."""
    first, first_bias, second, second_bias = (parameters[name] for name in PARAMETERS)
    width = len(second)
    return {
        _FRAMES: first[:, :width],
        # A product with a one-hot vector is a column.
        _LANGUAGES: first[:, width:].T,
        _FIRST_BIAS: first_bias[:, None],
        _SECOND: second,
        _SECOND_BIAS: second_bias[:, None],
        _AXIS: np.array([2], np.int64),
    }


def read_prompt(tensors: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """NeMo's parameters, of a graph's constants; none where the graph has no prompt."""
    if _FRAMES not in tensors:
        return {}
    first = np.concatenate([tensors[_FRAMES], tensors[_LANGUAGES].T], axis=1)
    values = first, tensors[_FIRST_BIAS][:, 0], tensors[_SECOND], tensors[_SECOND_BIAS][:, 0]
    return dict(zip(PARAMETERS, values, strict=True))
