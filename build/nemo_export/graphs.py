"""ONNX graphs on disk: read whole, written with their weights in a file that several may share."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import onnx
from onnx import numpy_helper

EXTERNAL_FROM = 1 << 30
"""Bytes of weights from which on a graph's weights are kept outside: protobuf ends at 2 GB."""
_LARGE = 256
_ALIGNMENT = 64


def read(path: Path) -> onnx.ModelProto:
    """A graph with its weights, without the tracer's notes, which can be larger than the graph itself."""
    model = onnx.load(path)
    for node in model.graph.node:
        node.doc_string = ""
        del node.metadata_props[:]
    del model.graph.value_info[:]
    return model


def save_shared(models: Iterable[tuple[Path, onnx.ModelProto]], weights: Path) -> None:
    """Write graphs whose large tensors lie once each in a file beside them.

    Args:
        models: the graphs by their files; they lose their tensors.
        weights: the file of the tensors.
    """
    places: dict[bytes, tuple[int, int]] = {}
    with weights.open("wb") as file:
        for path, model in models:
            _move_constants(model)
            for tensor in model.graph.initializer:
                if not tensor.raw_data and tensor.data_location != onnx.TensorProto.EXTERNAL:
                    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
                content = tensor.raw_data
                if len(content) < _LARGE:
                    continue
                digest = hashlib.sha256(content).digest()
                if digest not in places:
                    file.write(bytes(-file.tell() % _ALIGNMENT))
                    places[digest] = (file.tell(), len(content))
                    file.write(content)
                tensor.ClearField("raw_data")
                del tensor.external_data[:]
                for key, value in zip(
                    ("location", "offset", "length"), (weights.name, *places[digest]), strict=True
                ):
                    tensor.external_data.add(key=key, value=str(value))
                tensor.data_location = onnx.TensorProto.EXTERNAL
            path.write_bytes(model.SerializeToString())


def save(model: onnx.ModelProto, path: Path) -> None:
    """Write a graph, with its weights in a file beside it if they are too many; ``model`` is used up."""
    if sum(len(tensor.raw_data) for tensor in model.graph.initializer) < EXTERNAL_FROM:
        onnx.save(model, path)
    else:
        save_shared([(path, model)], path.with_name(path.name + ".data"))


def _move_constants(model: onnx.ModelProto) -> None:
    """Make weights of large constants, so that graphs can share them."""
    for node in list(model.graph.node):
        if node.op_type != "Constant" or not node.attribute[0].HasField("t"):
            continue
        tensor = node.attribute[0].t
        if tensor.ByteSize() >= _LARGE:
            tensor.name = node.output[0]
            model.graph.initializer.append(tensor)
            model.graph.node.remove(node)
