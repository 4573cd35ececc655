"""ONNX graphs on disk: read whole, written with their weights in a file that several may share."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

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


def weight_bytes(model: onnx.ModelProto) -> int:
    """Size of all weights."""
    return sum(len(tensor.raw_data) for tensor in model.graph.initializer)


class SharedWeights:
    """A file beside the graphs that holds each of their large tensors once."""

    def __init__(self, path: Path) -> None:
        """Write to ``path``; use it as a context manager."""
        self._path = path
        self._places: dict[bytes, tuple[int, int]] = {}
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        self._file = self._path.open("wb")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        assert self._file is not None
        self._file.close()

    def save(self, model: onnx.ModelProto, path: Path) -> None:
        """Write a graph whose large tensors lie in the file; ``model`` loses them."""
        _move_constants(model)
        for tensor in model.graph.initializer:
            if not tensor.raw_data and tensor.data_location != onnx.TensorProto.EXTERNAL:
                tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
            if len(tensor.raw_data) >= _LARGE:
                offset, length = self._place(tensor.raw_data)
                tensor.ClearField("raw_data")
                del tensor.external_data[:]
                for key, value in (("location", self._path.name), ("offset", offset), ("length", length)):
                    tensor.external_data.add(key=key, value=str(value))
                tensor.data_location = onnx.TensorProto.EXTERNAL
        path.write_bytes(model.SerializeToString())

    def _place(self, content: bytes) -> tuple[int, int]:
        assert self._file is not None
        digest = hashlib.sha256(content).digest()
        if digest not in self._places:
            self._file.write(bytes(-self._file.tell() % _ALIGNMENT))
            self._places[digest] = (self._file.tell(), len(content))
            self._file.write(content)
        return self._places[digest]


def save(model: onnx.ModelProto, path: Path) -> None:
    """Write a graph, with its weights in a file beside it if they are too many; ``model`` is used up."""
    if weight_bytes(model) < EXTERNAL_FROM:
        onnx.save(model, path)
        return
    with SharedWeights(path.with_name(path.name + ".data")) as weights:
        weights.save(model, path)


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
