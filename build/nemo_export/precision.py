"""Graphs in lower precision: eight-bit integers for CPUs, half precision for GPUs.

Both touch products with weights only, which are nearly all of the work and of the bytes. What is
between them (normalisations, softmax, the recurrent prediction network) stays in single precision, and so
do inputs and outputs: a conversion changes no interface.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Literal

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from nemo_export import graphs

Half = Literal["fp16", "bf16"]
_TYPES = {"fp16": (TensorProto.FLOAT16, np.float16), "bf16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16)}
# ONNX Runtime has convolutions in fp16 for GPUs, but not in bf16.
_OPERATORS = {"fp16": {"MatMul", "Gemm", "Conv"}, "bf16": {"MatMul", "Gemm"}}


def to_int8(path: Path) -> onnx.ModelProto:
    """The graph at ``path`` with matrix products in eight bits.

    Weights are rounded to signed integers, activations when the graph runs. Convolutions stay as
    they are: quantised they are slower than in single precision.
    """
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary) / "int8.onnx"
        quantize_dynamic(
            path,
            out,
            op_types_to_quantize=["MatMul"],
            weight_type=QuantType.QInt8,
            use_external_data_format=True,
        )
        return graphs.read(out)


def to_half(model: onnx.ModelProto, half: Half, *, emulate: bool = False) -> onnx.ModelProto:
    """Make products with weights in half precision; ``model`` is changed and returned.

    Args:
        model: in single precision.
        half: the type.
        emulate: round to the type, but compute in single precision, which is what a GPU does inside
            of a product. CPUs can run this, and not all of them the other.
    """
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    uses = Counter(name for node in model.graph.node for name in node.input)
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        own = [name for name in node.input[1:] if name in weights]
        if node.op_type in _OPERATORS[half] and own:
            # A weight that others use too stays as it is, and is rounded on its way in.
            stored = {name for name in own if uses[name] == 1}
            for name in stored:
                _round(weights[name], _TYPES[half][1])
            nodes += _around(node, stored, _TYPES[half][0], emulate=emulate)
        else:
            nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def _around(node: onnx.NodeProto, stored: set[str], kind: int, *, emulate: bool) -> list[onnx.NodeProto]:
    """A product between casts: into half precision before it, and out of it after it."""
    before: list[onnx.NodeProto] = []

    def cast(source: str, target: str, to: int) -> onnx.NodeProto:
        return helper.make_node("Cast", [source], [target], to=to)

    for index, name in enumerate(node.input):
        source = name
        if name not in stored:
            source = f"{node.name}.{index}.half"
            before.append(cast(name, source, kind))
        if emulate:
            before.append(cast(source, f"{node.name}.{index}.single", TensorProto.FLOAT))
            source = f"{node.name}.{index}.single"
        node.input[index] = source
    output = node.output[0]
    node.output[0] = f"{output}.half"
    if not emulate:
        return [*before, node, cast(f"{output}.half", output, TensorProto.FLOAT)]
    rounded = cast(f"{output}.half", f"{output}.rounded", kind)
    return [*before, node, rounded, cast(f"{output}.rounded", output, TensorProto.FLOAT)]


def _round(tensor: onnx.TensorProto, dtype: type) -> None:
    values = numpy_helper.to_array(tensor)
    tensor.CopyFrom(numpy_helper.from_array(values.astype(dtype), tensor.name))
