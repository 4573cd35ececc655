"""ONNX models as files: parts that are cut from them, and graphs that are changed.

The package ``onnx`` is not installed where models run: it has 28 MB, and takes 10 MB of each process that
imports it. A graph is a message of protocol buffers, of which a few fields matter here. The others are kept
as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from parley.errors import ModelLoadingError

_FIELDS: Mapping[str, Mapping[str, tuple[int, str]]] = {
    "Model": {"ir_version": (1, "int64"), "graph": (7, "Graph"), "opset_import": (8, "*Opset")},
    "Opset": {"domain": (1, "string"), "version": (2, "int64")},
    "Graph": {
        "node": (1, "*Node"),
        "name": (2, "string"),
        "initializer": (5, "*Tensor"),
        "input": (11, "*Value"),
        "output": (12, "*Value"),
    },
    "Node": {
        "input": (1, "*string"),
        "output": (2, "*string"),
        "op_type": (4, "string"),
        "attribute": (5, "*Attribute"),
        "domain": (7, "string"),
    },
    "Attribute": {
        "name": (1, "string"),
        "f": (2, "float"),
        "i": (3, "int64"),
        "t": (5, "Tensor"),
        "ints": (8, "*int64"),
        "type": (20, "int32"),
    },
    "Tensor": {
        "dims": (1, "*int64"),
        "data_type": (2, "int32"),
        "float_data": (4, "*float"),
        "int32_data": (5, "*int32"),
        "int64_data": (7, "*int64"),
        "name": (8, "string"),
        "raw_data": (9, "bytes"),
        "external_data": (13, "*Entry"),
        "data_location": (14, "int32"),
    },
    "Entry": {"key": (1, "string"), "value": (2, "string")},
    "Value": {"name": (1, "string"), "type": (2, "Type")},
    "Type": {"tensor_type": (1, "TensorType")},
    "TensorType": {"elem_type": (1, "int32"), "shape": (2, "Shape")},
    "Shape": {"dim": (1, "*Dimension")},
    "Dimension": {"dim_param": (2, "string")},
}
"""Number and type of the fields in onnx.proto, by message; ``*``: repeated."""
_FLOAT, _INT, _INTS = 1, 2, 7
_EXTERNAL = 1
MICROSOFT = "com.microsoft"
"""Domain of the operators that ONNX Runtime has beside ONNX's own."""
_IR_VERSION, _OPSETS = 8, (("", 20), (MICROSOFT, 1))
_FLOAT32, _INT64, _BFLOAT16 = 1, 7, 16
_ELEMENTS = {"f32": _FLOAT32, "i64": _INT64}
_DTYPES: dict[int, np.dtype[Any]] = {
    _FLOAT32: np.dtype("<f4"),
    6: np.dtype("<i4"),
    _INT64: np.dtype("<i8"),
    10: np.dtype("<f2"),
    _BFLOAT16: np.dtype("<u2"),
}
"""Of tensors that can be read, by their number in onnx.proto."""


def _make_messages() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="onnx_file.proto", package="parley.onnx", syntax="proto2")
    kinds = descriptor_pb2.FieldDescriptorProto
    for message, fields in _FIELDS.items():
        made = file.message_type.add(name=message)
        for name, (number, kind) in fields.items():
            one = kind.removeprefix("*")
            field = made.field.add(name=name, number=number)
            field.label = kinds.LABEL_OPTIONAL if one == kind else kinds.LABEL_REPEATED
            if one in _FIELDS:
                field.type_name = f".parley.onnx.{one}"
            else:
                field.type = kinds.Type.Value(f"TYPE_{one.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"parley.onnx.{name}"))
        for name in _FIELDS
    }


_MESSAGES = _make_messages()


@dataclass(frozen=True)
class PartInput:
    """An input of a part; in the whole model it may be computed."""

    name: str
    rank: int
    elements: Literal["f32", "i64"] = "f32"

    def to_message(self) -> Any:
        """A ``ValueInfoProto`` whose dimensions all have names of their own."""
        value = _MESSAGES["Value"](name=self.name)
        value.type.tensor_type.elem_type = _ELEMENTS[self.elements]
        for axis in range(self.rank):
            value.type.tensor_type.shape.dim.add(dim_param=f"{self.name}.{axis}")
        return value


@dataclass(frozen=True)
class Node:
    """A node of a graph; its names are those of tensors, and may be empty."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    message: Any
    """The ``NodeProto`` with its other fields."""

    def reading(self, names: Mapping[str, str]) -> Node:
        """The node with other inputs, by the names of those that it has."""
        return replace(self, inputs=tuple(names.get(name, name) for name in self.inputs))

    def writing(self, names: Mapping[str, str]) -> Node:
        """The node with other outputs, by the names of those that it has."""
        return replace(self, outputs=tuple(names.get(name, name) for name in self.outputs))

    def to_message(self) -> Any:
        """The ``NodeProto`` with these names."""
        message = _MESSAGES["Node"]()
        message.CopyFrom(self.message)
        message.input[:], message.output[:], message.op_type = self.inputs, self.outputs, self.kind
        return message


def make_node(
    kind: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    *,
    domain: str = "",
    **attributes: float | Sequence[int],
) -> Node:
    """A node of an operator, with attributes that are whole numbers, lists of them, or ``float``."""
    message = _MESSAGES["Node"](domain=domain)
    for name, value in attributes.items():
        if isinstance(value, int):
            message.attribute.add(name=name, i=value, type=_INT)
        elif isinstance(value, float):
            message.attribute.add(name=name, f=value, type=_FLOAT)
        else:
            message.attribute.add(name=name, ints=value, type=_INTS)
    return Node(kind, tuple(inputs), tuple(outputs), message)


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
            self._header = _MESSAGES["Model"].FromString(file)
        except DecodeError as error:
            raise ModelLoadingError(f"this is not an ONNX model: {error}") from error
        if not self._header.HasField("graph"):
            raise ModelLoadingError("this is not an ONNX model: it has no graph")
        graph = self._header.graph
        self.nodes = [Node(node.op_type, tuple(node.input), tuple(node.output), node) for node in graph.node]
        self._initializers: dict[str, Any] = {tensor.name: tensor for tensor in graph.initializer}
        self._inputs: dict[str, Any] = {value.name: value for value in graph.input}
        # The version, the operator sets: what every part needs too.
        self._header.ClearField("graph")

    @classmethod
    def empty(cls) -> OnnxModel:
        """A model without nodes, for ONNX's own operators and those of :data:`MICROSOFT`."""
        header = _MESSAGES["Model"](ir_version=_IR_VERSION, graph=_MESSAGES["Graph"]())
        for domain, version in _OPSETS:
            header.opset_import.add(domain=domain, version=version)
        return cls(header.SerializeToString())

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
        read = ((name, _read_tensor(tensor, folder)) for name, tensor in self._constants())
        return {name: values for name, values in read if values is not None}

    def _constants(self) -> Iterator[tuple[str, Any]]:
        yield from self._initializers.items()
        for node in self.nodes:
            if node.kind == "Constant":
                for attribute in node.message.attribute:
                    if attribute.HasField("t"):
                        yield node.outputs[0], attribute.t

    def add_constant(self, name: str, values: NDArray[np.float32] | NDArray[np.int64]) -> None:
        """Add a constant of any shape."""
        self._initializers[name] = _MESSAGES["Tensor"](
            name=name,
            dims=values.shape,
            data_type=_INT64 if values.dtype == np.int64 else _FLOAT32,
            raw_data=values.tobytes(),
        )

    def add_stored(self, name: str, shape: Sequence[int], file: str, offset: int, length: int) -> None:
        """Add f32 weights that are bytes of another file in the folder from which the model is loaded."""
        tensor = _MESSAGES["Tensor"](name=name, dims=shape, data_type=_FLOAT32, data_location=_EXTERNAL)
        for key, value in (("location", file), ("offset", str(offset)), ("length", str(length))):
            tensor.external_data.add(key=key, value=value)
        self._initializers[name] = tensor

    def part(self, inputs: Sequence[PartInput | str], outputs: Sequence[str]) -> bytes:
        """The file of a model that computes ``outputs`` from ``inputs``.

        Args:
            inputs: by name alone those that the whole model has.
            outputs: any tensors.

        Raises:
            ModelLoadingError: it cannot be computed from them.
        """
        declared = {
            name: self._inputs.get(name) if isinstance(tensor, str) else tensor.to_message()
            for tensor in inputs
            for name in [tensor if isinstance(tensor, str) else tensor.name]
        }
        given = {name for name, declaration in declared.items() if declaration is not None}
        wanted = set(outputs)
        nodes: list[Node] = []
        made: set[str] = set()
        for node in reversed(self.nodes):
            if any(name in wanted and name not in given for name in node.outputs):
                nodes.append(node)
                made.update(node.outputs)
                wanted.update(name for name in node.inputs if name)
        if missing := sorted((wanted | declared.keys()) - given - made - self._initializers.keys()):
            raise ModelLoadingError(f"the model has no {', '.join(missing)}")
        model = _MESSAGES["Model"]()
        model.CopyFrom(self._header)
        graph = model.graph
        graph.name = "part"
        graph.node.extend(node.to_message() for node in reversed(nodes))
        graph.initializer.extend(
            tensor for name, tensor in self._initializers.items() if name in wanted - given
        )
        graph.input.extend(declaration for declaration in declared.values() if declaration is not None)
        _add_outputs(graph, outputs)
        file: bytes = model.SerializeToString()
        return file


def more_outputs_of(names: Sequence[str]) -> bytes:
    """What, written behind a model's file, makes outputs of these values inside of its graph.

    Messages of protocol buffers that follow each other are merged: repeated fields, as outputs are, are
    joined.
    """
    model = _MESSAGES["Model"]()
    _add_outputs(model.graph, names)
    file: bytes = model.SerializeToString()
    return file


def _add_outputs(graph: Any, names: Sequence[str]) -> None:
    for name in names:
        graph.output.add(name=name)


def _read_tensor(tensor: Any, folder: Path) -> NDArray[Any] | None:
    """The elements of a tensor; None if they are of another type than :data:`_DTYPES` has."""
    dtype = _DTYPES.get(tensor.data_type)
    if dtype is None:
        return None
    try:
        values = _elements(tensor, dtype, folder)
    except (OSError, ValueError, KeyError) as error:
        raise ModelLoadingError(f"a weight of the ONNX model cannot be read: {error}") from error
    # The bits of bfloat16 are the upper half of those of f32.
    return (values.astype(np.uint32) << 16).view(np.float32) if tensor.data_type == _BFLOAT16 else values


def _elements(tensor: Any, dtype: np.dtype[Any], folder: Path) -> NDArray[Any]:
    shape = tuple(tensor.dims)
    if tensor.external_data:
        place = {entry.key: entry.value for entry in tensor.external_data}
        return np.memmap(folder / place["location"], dtype, "r", int(place.get("offset", "0")), shape)
    if tensor.HasField("raw_data"):
        return np.frombuffer(tensor.raw_data, dtype).reshape(shape)
    if dtype.kind == "f" and tensor.float_data:
        return np.array(tensor.float_data, dtype).reshape(shape)
    # Floats of two bytes are written as the number that their bits are.
    numbers = np.array(tensor.int64_data or tensor.int32_data, np.int64)
    return numbers.astype(dtype if dtype.kind == "i" else np.dtype("<u2")).view(dtype).reshape(shape)
