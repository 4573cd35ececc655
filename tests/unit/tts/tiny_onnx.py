"""ONNX files without the onnx package: messages of onnx.proto3, written by hand."""

from __future__ import annotations

import numpy as np

FLOAT, INT64 = 1, 7
_TYPES = {np.dtype(np.float32): FLOAT, np.dtype(np.int64): INT64}


def varint(value: int) -> bytes:
    low, high = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + varint(high) if high else bytes([low])


def field(number: int, content) -> bytes:
    """A text, bytes, or a number."""
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    content = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(content)) + content


def node(op: str, inputs: str, output: str, **attributes: int) -> bytes:
    """A NodeProto; ``inputs``: names with blanks between them, or with bars if names have blanks."""
    names = inputs.split("|") if "|" in inputs else inputs.split()
    content = b"".join(field(1, name) for name in names) + field(2, output) + field(4, op)
    for name, value in attributes.items():
        content += field(5, field(1, name) + field(3, value) + field(20, 2))
    return field(1, content)


def constant(name: str, value) -> bytes:
    """An initializer."""
    array = np.asarray(value)
    dims = b"".join(field(1, size) for size in array.shape)
    return field(5, dims + field(2, _TYPES[array.dtype]) + field(8, name) + field(9, array.tobytes()))


def value(kind: int, name: str, element: int, *shape: int | str) -> bytes:
    """A ValueInfoProto; ``kind``: 11 for an input, 12 for an output."""
    dims = b"".join(field(1, field(1 if isinstance(size, int) else 2, size)) for size in shape)
    tensor = field(1, element) + field(2, dims)
    return field(kind, field(1, name) + field(2, field(1, tensor)))


def model(*parts: bytes) -> bytes:
    """A ModelProto of a graph with these parts."""
    graph = field(2, "tiny") + b"".join(parts)
    return field(1, 8) + field(7, graph) + field(8, field(1, "") + field(2, 17))
