"""Streaming encoders made for the one size of chunk that they get.

The exporter leaves every dimension open, and half of the graph computes shapes, masks and positional
encodings that are the same for every chunk: at one stream a third of the time. Here the chunk and the
caches get their sizes, so that all of this becomes constants. Only the number of streams stays open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxslim
from onnx import helper, numpy_helper
from onnxruntime.tools.symbolic_shape_infer import SymbolicShapeInference

LENGTH = "length"
ENCODED_LENGTH = "encoded_lengths"
_CACHE_LENGTH = "cache_last_channel_len"
_STREAMS = "streams"
_LARGE = 1 << 16
"""Bytes from which on a weight is kept out of the folding."""


def specialise(
    model: onnx.ModelProto, *, frames: int, caches: Mapping[str, Sequence[int]]
) -> onnx.ModelProto:
    """The encoder for chunks of one size; ``model`` is used up.

    It takes ``length`` as before, but does not look at it: a chunk is full.

    The graph is folded for a single stream, where everything but the audio and the caches is
    constant, and is opened for many again: constants are the same for all streams, and no node but a
    Reshape names their number.

    Args:
        model: as NeMo exports it, with its weights.
        frames: feature frames of a chunk, those of its past included.
        caches: by input, the shape of one stream's cache.
    """
    graph = model.graph
    _set_sizes(graph, frames, caches)
    _fill_in_length(graph, frames)
    inputs = {one.name: one for one in graph.input}
    order = list(inputs)
    hidden = _hide_weights(graph)
    # All shapes first: without them a round of the folding gets only as far as the next Reshape.
    model = SymbolicShapeInference.infer_shapes(model, auto_merge=True)
    slim = onnxslim.slim(model, skip_optimizations=["graph_fusion", "weight_tying"])
    graph = slim.graph
    there = {one.name: one for one in graph.input}
    used = {name for node in graph.node for name in node.input}
    graph.initializer.extend(hidden[name] for name in hidden if name in used)
    del graph.input[:]
    graph.input.extend(there.get(name, inputs[name]) for name in order)
    del graph.value_info[:]
    _open_streams(graph)
    return slim


def _set_sizes(graph: onnx.GraphProto, frames: int, caches: Mapping[str, Sequence[int]]) -> None:
    for one in graph.input:
        dimensions = one.type.tensor_type.shape.dim
        dimensions[0].dim_value = 1
        if one.name in caches:
            for dimension, size in zip(dimensions[1:], caches[one.name], strict=True):
                dimension.dim_value = size
        elif len(dimensions) == 3:
            dimensions[2].dim_value = frames
    for one in graph.output:
        one.type.tensor_type.ClearField("shape")


def _fill_in_length(graph: onnx.GraphProto, frames: int) -> None:
    """Let the whole graph know that a chunk is full."""
    full = f"{LENGTH}.full"
    graph.initializer.append(numpy_helper.from_array(np.array([frames], np.int64), full))
    renamed = {LENGTH: full, ENCODED_LENGTH: f"{ENCODED_LENGTH}.one"}
    for node in graph.node:
        for names in (node.input, node.output):
            for at, name in enumerate(names):
                names[at] = renamed.get(name, name)
    # What is left of it is added when the number of streams is open again.
    for one in graph.output:
        one.name = renamed.get(one.name, one.name)


def _hide_weights(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """Make inputs of large weights, by name: with them a graph may be too large to be handed around."""
    hidden, kept = {}, []
    for tensor in graph.initializer:
        copy = onnx.TensorProto()
        copy.CopyFrom(tensor)
        if len(tensor.raw_data) < _LARGE:
            kept.append(copy)
        else:
            hidden[tensor.name] = copy
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    del graph.initializer[:]
    graph.initializer.extend(kept)
    return hidden


def _open_streams(graph: onnx.GraphProto) -> None:
    """Let the first dimension be any number of streams."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type != "Reshape":
            continue
        shape = numpy_helper.to_array(constants[node.input[1]]).copy()
        if shape[0] == 1:
            shape[0] = 0  # as many as there are
            name = f"{node.name}.shape"
            graph.initializer.append(numpy_helper.from_array(shape, name))
            node.input[1] = name
    graph.node.append(helper.make_node("Shape", [_CACHE_LENGTH], [_STREAMS]))
    graph.node.append(helper.make_node("Expand", [f"{ENCODED_LENGTH}.one", _STREAMS], [ENCODED_LENGTH]))
    for one in graph.output:
        one.name = one.name.removesuffix(".one")
        one.type.tensor_type.ClearField("shape")
    for one in graph.input:
        one.type.tensor_type.shape.dim[0].dim_param = _STREAMS
    used = {name for node in graph.node for name in node.input}
    needed = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(needed)
