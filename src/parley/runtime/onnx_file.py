"""ONNX models as files: parts that are cut from them, and graphs that are changed.

The package ``onnx`` is not needed for that, and is not installed where models run: a graph is a message of
protocol buffers, of which a few fields matter here.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from parley.errors import ModelLoadingError

_VARINT, _EIGHT_BYTES, _DELIMITED, _FOUR_BYTES = 0, 1, 2, 5
# Numbers of fields in onnx.proto.
_GRAPH = 7
_NODE, _GRAPH_NAME, _INITIALIZER, _INPUT, _OUTPUT = 1, 2, 5, 11, 12
_NODE_INPUT, _NODE_OUTPUT, _NODE_KIND, _NODE_ATTRIBUTE = 1, 2, 4, 5
_ATTRIBUTE_NAME, _ATTRIBUTE_INT, _ATTRIBUTE_TENSOR, _ATTRIBUTE_TYPE = 1, 3, 5, 20
_INT = 2
_TENSOR_DIMS, _TENSOR_TYPE, _TENSOR_NAME, _TENSOR_RAW = 1, 2, 8, 9
_TENSOR_FLOATS, _TENSOR_INT32, _TENSOR_INT64, _TENSOR_ELSEWHERE = 4, 5, 7, 13
_ENTRY_KEY, _ENTRY_VALUE = 1, 2
_VALUE_NAME = 1
_ELEMENTS = {"f32": 1, "i64": 7}
_DTYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype("<f4"),
    6: np.dtype("<i4"),
    7: np.dtype("<i8"),
    10: np.dtype("<f2"),
    16: np.dtype("<u2"),
}
"""Of tensors that can be read, by their number in onnx.proto."""
_BFLOAT16 = 16


@dataclass(frozen=True)
class PartInput:
    """An input of a part; in the whole model it may be computed."""

    name: str
    rank: int
    elements: Literal["f32", "i64"] = "f32"


@dataclass(frozen=True)
class Node:
    """A node of a graph; its names are those of tensors, and may be empty."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    rest: bytes
    """Its other fields."""

    def reading(self, names: Mapping[str, str]) -> Node:
        """The node with other inputs, by the names of those that it has."""
        return replace(self, inputs=tuple(names.get(name, name) for name in self.inputs))

    def writing(self, names: Mapping[str, str]) -> Node:
        """The node with other outputs, by the names of those that it has."""
        return replace(self, outputs=tuple(names.get(name, name) for name in self.outputs))

    def encoded(self) -> bytes:
        """The node as a field of a graph."""
        inputs = (_delimited(_NODE_INPUT, name.encode()) for name in self.inputs)
        outputs = (_delimited(_NODE_OUTPUT, name.encode()) for name in self.outputs)
        kind = _delimited(_NODE_KIND, self.kind.encode())
        return _delimited(_NODE, b"".join((*inputs, *outputs, kind, self.rest)))


def make_node(kind: str, inputs: Sequence[str], outputs: Sequence[str], *, axis: int | None = None) -> Node:
    """A node of one of ONNX's own operators, with the attribute ``axis`` or none."""
    rest = b""
    if axis is not None:
        attribute = (
            _delimited(_ATTRIBUTE_NAME, b"axis")
            + _number(_ATTRIBUTE_INT, axis)
            + _number(_ATTRIBUTE_TYPE, _INT)
        )
        rest = _delimited(_NODE_ATTRIBUTE, attribute)
    return Node(kind, tuple(inputs), tuple(outputs), rest)


class OnnxModel:
    """A model's file, from which parts can be cut.

    Args:
        file: all of it; large weights may be elsewhere.

    Attributes:
        nodes: of its graph, each after those that it reads from; may be changed.

    Raises:
        ModelLoadingError: it is not an ONNX model.
    """

    def __init__(self, file: bytes) -> None:
        try:
            fields = list(_fields(file, 0, len(file)))
            (graph,) = (field for field in fields if field.number == _GRAPH)
            # The version, the operator sets: what every part needs too.
            self._header = b"".join(file[field.at : field.end] for field in fields if field is not graph)
            self.nodes: list[Node] = []
            self._initializers: dict[str, bytes] = {}
            self._inputs: dict[str, bytes] = {}
            for field in _fields(file, graph.begin, graph.end):
                raw = file[field.at : field.end]
                if field.number == _NODE:
                    self.nodes.append(_read_node(file, field))
                elif field.number == _INPUT:
                    self._inputs[_texts(file, field, (_VALUE_NAME,))[_VALUE_NAME][0]] = raw
                elif field.number == _INITIALIZER:
                    self._initializers[_texts(file, field, (_TENSOR_NAME,))[_TENSOR_NAME][0]] = raw
        except (IndexError, ValueError) as error:
            raise ModelLoadingError(f"this is not an ONNX model: {error}") from error

    @property
    def inputs(self) -> Collection[str]:
        """Names of its inputs."""
        return self._inputs.keys()

    def tensors(self, folder: Path) -> dict[str, NDArray[Any]]:
        """The weights and constants by name: f32, f16, i32, i64, and bfloat16 as f32; others are left out.

        Args:
            folder: of the file; weights that lie in another file are read there, when they are looked at.

        Raises:
            ModelLoadingError: a weight lies in a file that is missing or too short.
        """
        found: dict[str, NDArray[Any]] = {}
        for name, raw in self._initializers.items():
            (field,) = _fields(raw, 0, len(raw))
            tensor = _read_tensor(raw, field, folder)
            if tensor is not None:
                found[name] = tensor
        for node in self.nodes:
            if node.kind != "Constant":
                continue
            for attribute in _fields(node.rest, 0, len(node.rest)):
                if attribute.number != _NODE_ATTRIBUTE:
                    continue
                for field in _fields(node.rest, attribute.begin, attribute.end):
                    if field.number != _ATTRIBUTE_TENSOR:
                        continue
                    tensor = _read_tensor(node.rest, field, folder)
                    if tensor is not None:
                        found[node.outputs[0]] = tensor
        return found

    def add_vector(self, name: str, values: Sequence[int]) -> None:
        """Add a constant: i64 ``[n]``."""
        fields = (
            _number(_TENSOR_DIMS, len(values)),
            _number(_TENSOR_TYPE, _ELEMENTS["i64"]),
            _delimited(_TENSOR_NAME, name.encode()),
            _delimited(_TENSOR_RAW, struct.pack(f"<{len(values)}q", *values)),
        )
        self._initializers[name] = _delimited(_INITIALIZER, b"".join(fields))

    def part(self, inputs: Sequence[PartInput | str], outputs: Sequence[str]) -> bytes:
        """The file of a model that computes ``outputs`` from ``inputs``.

        Args:
            inputs: by name alone those that the whole model has.
            outputs: any tensors.

        Raises:
            ModelLoadingError: it cannot be computed from them.
        """
        declared = {
            name: self._inputs.get(name, b"")
            if isinstance(tensor, str)
            else _delimited(_INPUT, _tensor(tensor))
            for tensor in inputs
            for name in [tensor if isinstance(tensor, str) else tensor.name]
        }
        given = {name for name, declaration in declared.items() if declaration}
        wanted = set(outputs)
        nodes: list[bytes] = []
        made: set[str] = set()
        for node in reversed(self.nodes):
            if any(name in wanted and name not in given for name in node.outputs):
                nodes.append(node.encoded())
                made.update(node.outputs)
                wanted.update(name for name in node.inputs if name)
        if missing := sorted((wanted | declared.keys()) - given - made - self._initializers.keys()):
            raise ModelLoadingError(f"the model has no {', '.join(missing)}")
        weights = [raw for name, raw in self._initializers.items() if name in wanted - given]
        graph = [
            *reversed(nodes),
            _delimited(_GRAPH_NAME, b"part"),
            *weights,
            *declared.values(),
            *map(_output, outputs),
        ]
        return self._header + _delimited(_GRAPH, b"".join(graph))


def _read_node(data: bytes, field: _Field) -> Node:
    names = _texts(data, field, (_NODE_INPUT, _NODE_OUTPUT, _NODE_KIND))
    rest = b"".join(
        data[other.at : other.end]
        for other in _fields(data, field.begin, field.end)
        if other.number not in names
    )
    (kind,) = names[_NODE_KIND]
    return Node(kind, tuple(names[_NODE_INPUT]), tuple(names[_NODE_OUTPUT]), rest)


@dataclass(frozen=True)
class _Stored:
    """A ``TensorProto``; its elements are in one of three places."""

    kind: int
    """Number of the elements' type."""
    shape: tuple[int, ...]
    raw: bytes
    numbers: Sequence[NDArray[np.int64]]
    elsewhere: Mapping[str, str]
    """``location``: the file; ``offset``: where they begin in it."""


def _read_tensor(data: bytes, message: _Field, folder: Path) -> NDArray[Any] | None:
    """The elements of a tensor; None if they are of another type than :data:`_DTYPES` has."""
    try:
        stored = _read_stored(data, message)
        dtype = _DTYPES.get(stored.kind)
        if dtype is None:
            return None
        values = _elements(stored, dtype, folder)
    except (OSError, ValueError, IndexError) as error:
        raise ModelLoadingError(f"a weight of the ONNX model cannot be read: {error}") from error
    return _widened(values) if stored.kind == _BFLOAT16 else values


def _read_stored(data: bytes, message: _Field) -> _Stored:
    kind = 0
    shape: list[int] = []
    raw = b""
    numbers: list[NDArray[np.int64]] = []
    elsewhere: dict[str, str] = {}
    for field in _fields(data, message.begin, message.end):
        if field.number == _TENSOR_DIMS:
            shape += _numbers(data, field).tolist()
        elif field.number == _TENSOR_TYPE:
            kind, _ = _varint(data, field.begin)
        elif field.number in (_TENSOR_RAW, _TENSOR_FLOATS):
            raw += data[field.begin : field.end]
        elif field.number in (_TENSOR_INT32, _TENSOR_INT64):
            numbers.append(_numbers(data, field))
        elif field.number == _TENSOR_ELSEWHERE:
            entry = _texts(data, field, (_ENTRY_KEY, _ENTRY_VALUE))
            elsewhere[entry[_ENTRY_KEY][0]] = entry[_ENTRY_VALUE][0]
    return _Stored(kind, tuple(shape), raw, numbers, elsewhere)


def _elements(stored: _Stored, dtype: np.dtype[Any], folder: Path) -> NDArray[Any]:
    if stored.elsewhere:
        path, offset = folder / stored.elsewhere["location"], int(stored.elsewhere.get("offset", "0"))
        return np.memmap(path, dtype, "r", offset, stored.shape)
    if not stored.numbers:
        return np.frombuffer(stored.raw, dtype).reshape(stored.shape)
    numbers = np.concatenate(stored.numbers)
    # Floats of two bytes are written as the number that their bits are.
    own = dtype if dtype.kind == "i" else np.dtype("<u2")
    return numbers.astype(own).view(dtype).reshape(stored.shape)


def _widened(bits: NDArray[Any]) -> NDArray[np.float32]:
    """The bits of bfloat16 as f32, of which they are the upper half."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _numbers(data: bytes, field: _Field) -> NDArray[np.int64]:
    """Whole numbers, one in a field or, packed, several."""
    raw = np.frombuffer(data, np.uint8, field.end - field.begin, field.begin)
    ends = np.flatnonzero(raw < 128)
    if not len(raw):
        return np.zeros(0, np.int64)
    if not len(ends) or ends[-1] != len(raw) - 1:
        raise ValueError("a number is cut off")
    begins = np.concatenate(([0], ends[:-1] + 1))
    places = np.arange(len(raw)) - np.repeat(begins, ends - begins + 1)
    parts = (raw & 127).astype(np.uint64) << (7 * places).astype(np.uint64)
    return np.bitwise_or.reduceat(parts, begins).view(np.int64)


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
    """Offset of the end of its contents."""


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


def _number(number: int, value: int) -> bytes:
    """A field with a whole number."""
    return _encoded(number << 3 | _VARINT) + _encoded(value)


def _output(name: str) -> bytes:
    """A graph's output: a ``ValueInfoProto`` with a name alone."""
    return _delimited(_OUTPUT, _delimited(1, name.encode()))


def _tensor(tensor: PartInput) -> bytes:
    """A ``ValueInfoProto`` whose dimensions all have names of their own."""
    dimensions = (
        _delimited(1, _delimited(2, f"{tensor.name}.{axis}".encode())) for axis in range(tensor.rank)
    )
    elements = _number(1, _ELEMENTS[tensor.elements])
    kind = _delimited(1, elements + _delimited(2, b"".join(dimensions)))
    return _delimited(1, tensor.name.encode()) + _delimited(2, kind)
