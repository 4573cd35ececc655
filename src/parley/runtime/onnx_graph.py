"""Parts of an ONNX model, cut out of its file.

A network that was exported in one piece can be run in stages, with what lies between them in hand: what is
random becomes an input, and a stage that works locally can be run piece by piece.

The file is a message of protocol buffers, which is read and written here field by field. The package
``onnx`` could do it too, but it is not among what serving needs. Models with nested graphs (``If``,
``Loop``) or weights in other files cannot be cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from parley.errors import ModelLoadingError

_VARINT, _EIGHT_BYTES, _DELIMITED, _FOUR_BYTES = 0, 1, 2, 5
# Numbers of fields in onnx.proto.
_GRAPH = 7
_NODE, _GRAPH_NAME, _INITIALIZER, _INPUT, _OUTPUT = 1, 2, 5, 11, 12
_NODE_INPUT, _NODE_OUTPUT = 1, 2
_TENSOR_NAME = 8
_ELEMENTS = {"f32": 1, "i64": 7}


@dataclass(frozen=True)
class PartInput:
    """A tensor that a part is given; in the whole model it may be computed."""

    name: str
    rank: int
    elements: Literal["f32", "i64"] = "f32"


@dataclass(frozen=True)
class _Node:
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    raw: bytes


class OnnxModel:
    """A model's file, from which parts can be cut.

    Args:
        file: all of it.

    Raises:
        ModelLoadingError: it is not an ONNX model.
    """

    def __init__(self, file: bytes) -> None:
        try:
            fields = list(_fields(file, 0, len(file)))
            (graph,) = (field for field in fields if field.number == _GRAPH)
            # The version, the operator sets: what every part needs too.
            self._header = b"".join(file[field.at : field.end] for field in fields if field is not graph)
            self._nodes: list[_Node] = []
            self._initializers: dict[str, bytes] = {}
            for field in _fields(file, graph.begin, graph.end):
                raw = file[field.at : field.end]
                if field.number == _NODE:
                    names = _texts(file, field, (_NODE_INPUT, _NODE_OUTPUT))
                    self._nodes.append(_Node(tuple(names[_NODE_INPUT]), tuple(names[_NODE_OUTPUT]), raw))
                elif field.number == _INITIALIZER:
                    self._initializers[_texts(file, field, (_TENSOR_NAME,))[_TENSOR_NAME][0]] = raw
        except (IndexError, ValueError) as error:
            raise ModelLoadingError(f"this is not an ONNX model: {error}") from error

    def part(self, inputs: Sequence[PartInput], outputs: Sequence[str]) -> bytes:
        """The file of a model that computes ``outputs`` (of f32) from ``inputs``.

        Raises:
            ModelLoadingError: it cannot be computed from them.
        """
        given = {tensor.name for tensor in inputs}
        wanted = set(outputs)
        kept: list[bytes] = []
        made: set[str] = set()
        for node in reversed(self._nodes):
            if any(name in wanted and name not in given for name in node.outputs):
                kept.append(node.raw)
                made.update(node.outputs)
                wanted.update(name for name in node.inputs if name)
        if missing := sorted(wanted - given - made - self._initializers.keys()):
            raise ModelLoadingError(f"the model has no {', '.join(missing)}")
        weights = [raw for name, raw in self._initializers.items() if name in wanted - given]
        graph = [
            *reversed(kept),
            _delimited(_GRAPH_NAME, b"part"),
            *weights,
            *(_delimited(_INPUT, _tensor(tensor)) for tensor in inputs),
            *map(_output, outputs),
        ]
        return self._header + _delimited(_GRAPH, b"".join(graph))


def more_outputs_of(names: Sequence[str]) -> bytes:
    """What, written behind a model's file, makes outputs of these values inside of its graph.

    Messages of protocol buffers that follow each other are merged: repeated fields, as outputs are, are
    joined.
    """
    return b"".join(_delimited(_GRAPH, _output(name)) for name in names)


@dataclass(frozen=True)
class _Field:
    number: int
    at: int
    """Where its key begins."""
    begin: int
    end: int
    """Of its contents."""


def _fields(data: bytes, at: int, end: int) -> Iterator[_Field]:
    while at < end:
        key, begin = _varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            _, stop = _varint(data, begin)
        elif kind == _DELIMITED:
            length, begin = _varint(data, begin)
            stop = begin + length
        elif kind in (_FOUR_BYTES, _EIGHT_BYTES):
            stop = begin + (4 if kind == _FOUR_BYTES else 8)
        else:
            raise ValueError(f"a field of kind {kind}")
        if stop > end:
            raise ValueError("a field is longer than its message")
        yield _Field(key >> 3, at, begin, stop)
        at = stop


def _texts(data: bytes, message: _Field, numbers: Sequence[int]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {number: [] for number in numbers}
    for field in _fields(data, message.begin, message.end):
        if field.number in found:
            found[field.number].append(data[field.begin : field.end].decode())
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def _encoded(number: int) -> bytes:
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _delimited(number: int, contents: bytes) -> bytes:
    return _encoded(number << 3 | _DELIMITED) + _encoded(len(contents)) + contents


def _output(name: str) -> bytes:
    """A graph's output: a ``ValueInfoProto`` with a name alone."""
    return _delimited(_OUTPUT, _delimited(1, name.encode()))


def _tensor(tensor: PartInput) -> bytes:
    """A ``ValueInfoProto`` whose dimensions all have names of their own."""
    dimensions = (
        _delimited(1, _delimited(2, f"{tensor.name}.{axis}".encode())) for axis in range(tensor.rank)
    )
    elements = _encoded(1 << 3 | _VARINT) + _encoded(_ELEMENTS[tensor.elements])
    kind = _delimited(1, elements + _delimited(2, b"".join(dimensions)))
    return _delimited(1, tensor.name.encode()) + _delimited(2, kind)
