"""Models in ONNX Runtime's own format (``.ort``): values inside of their graphs become outputs.

The format is a FlatBuffer (``ort.fbs`` of ONNX Runtime): tables and lists with references to what lies
behind them. The tables that change are written anew in front of the old file, and refer to the rest of it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, Union

from parley.errors import ModelLoadingError

ORT_SUFFIX = ".ort"
_MAGIC = b"ORTM"
_ALIGNMENT = 64
# Places of fields in their tables.
_MODEL, _GRAPH = 1, 7
_VALUES, _NODES, _OUTPUTS = 1, 2, 6
_KIND, _NODE_OUTPUTS, _ATTRIBUTES = 5, 9, 10
_BRANCH = 7
_NAME, _TYPE, _TENSOR, _SHAPE = 0, 2, 2, 1
# The fields that are references, by table.
_SESSION_REFERENCES = (0, 1, 2, 3)
_MODEL_REFERENCES = (1, 2, 3, 4, 6, 7, 8, 9)
_GRAPH_REFERENCES = (0, 1, 2, 4, 5, 6, 7, 8)
_NODE_REFERENCES = (0, 1, 2, 5, 7, 8, 9, 10, 11, 12)
_ATTRIBUTE_REFERENCES = (0, 1, 5, 6, 7, 8, 9, 10, 11, 12)
_VALUE_REFERENCES = (0, 1, 2)
_TYPE_REFERENCES = (0, 2)

Part: TypeAlias = Union[int, str, Sequence["Part"], "_Changed"]
"""What a reference leads to: a place in the old file, or what is written."""


@dataclass(frozen=True)
class _Changed:
    """A table with other fields."""

    at: int
    """Where it was."""
    references: Sequence[int]
    """Its fields that are references."""
    fields: Mapping[int, Part | None] = field(default_factory=dict)
    """What some of them lead to now; None: the field is left out."""


class OrtFile:
    """A model's file.

    Args:
        content: all of it.

    Raises:
        ModelLoadingError: it is no such file.
    """

    def __init__(self, content: bytes) -> None:
        if content[4:8] != _MAGIC:
            raise ModelLoadingError("this is not a model in the format of ONNX Runtime")
        self._old = content
        self._new = bytearray(4) + _MAGIC
        self._links: list[tuple[int, int]] = []
        """Places of references to the old file, and what they lead to there."""
        self._session = self._target(0)
        self._model = self._child(self._session, _MODEL)
        self._graph = self._child(self._model, _GRAPH)

    @property
    def outputs(self) -> list[str]:
        """Their names."""
        return [self._text(at) for at in self._items(self._graph, _OUTPUTS)]

    def with_branch_outputs(self, names: Mapping[str, str], *, like: str) -> bytes:
        """The file with values inside of the branches of its ``If`` as outputs after its own; called once.

        Args:
            names: of the outputs, by those of the values; both branches have them.
            like: the name of an output of their type.

        Raises:
            ModelLoadingError: it has no ``If``, or no such output.
        """
        values, nodes = self._items(self._graph, _VALUES), self._items(self._graph, _NODES)
        typed = next((at for at in values if self._text(self._child(at, _NAME)) == like), 0)
        fork = next((at for at in nodes if self._text(self._child(at, _KIND)) == "If"), 0)
        if not typed or not fork:
            raise ModelLoadingError(f"the graph has no If, or no {like}")
        graph: dict[int, Part | None] = {
            _VALUES: [*values, *(self._like(typed, name) for name in names.values())],
            _NODES: [self._fork(at, names) if at == fork else at for at in nodes],
            _OUTPUTS: [*self._items(self._graph, _OUTPUTS), *names.values()],
        }
        model = _Changed(
            self._model, _MODEL_REFERENCES, {_GRAPH: _Changed(self._graph, _GRAPH_REFERENCES, graph)}
        )
        self._refer(0, _Changed(self._session, _SESSION_REFERENCES, {_MODEL: model}))
        self._new += bytes(-len(self._new) % _ALIGNMENT)
        for at, target in self._links:
            struct.pack_into("<I", self._new, at, len(self._new) + target - at)
        return bytes(self._new) + self._old

    def _fork(self, node: int, names: Mapping[str, str]) -> _Changed:
        return _Changed(
            node,
            _NODE_REFERENCES,
            {
                _NODE_OUTPUTS: [*self._items(node, _NODE_OUTPUTS), *names.values()],
                _ATTRIBUTES: [self._attribute(one, names) for one in self._items(node, _ATTRIBUTES)],
            },
        )

    def _attribute(self, attribute: int, names: Mapping[str, str]) -> _Changed:
        branch = self._child(attribute, _BRANCH)
        return _Changed(
            attribute,
            _ATTRIBUTE_REFERENCES,
            {
                _BRANCH: _Changed(
                    branch, _GRAPH_REFERENCES, {_OUTPUTS: [*self._items(branch, _OUTPUTS), *names]}
                )
            },
        )

    def _like(self, like: int, name: str) -> _Changed:
        kind = self._child(like, _TYPE)
        tensor = _Changed(self._child(kind, _TENSOR), (_SHAPE,), {_SHAPE: None})
        return _Changed(
            like, _VALUE_REFERENCES, {_NAME: name, _TYPE: _Changed(kind, _TYPE_REFERENCES, {_TENSOR: tensor})}
        )

    # Reading.
    def _number(self, at: int, form: str = "<I") -> int:
        try:
            return int(struct.unpack_from(form, self._old, at)[0])
        except struct.error as error:
            raise ModelLoadingError("the model's file ends within its graph") from error

    def _target(self, at: int) -> int:
        return at + self._number(at)

    def _offsets(self, table: int) -> tuple[int, list[int]]:
        """Size of a table, and where its fields are in it; 0: not there."""
        at = table - self._number(table, "<i")
        size, *offsets = (self._number(at + 2 * n, "<H") for n in range(1, self._number(at, "<H") // 2))
        return size, offsets

    def _child(self, table: int, place: int) -> int:
        _, offsets = self._offsets(table)
        if place >= len(offsets) or not offsets[place]:
            raise ModelLoadingError("the model's file lacks a part of its graph")
        return self._target(table + offsets[place])

    def _items(self, table: int, place: int) -> list[int]:
        at = self._child(table, place)
        return [self._target(at + 4 + 4 * n) for n in range(self._number(at))]

    def _text(self, at: int) -> str:
        return self._old[at + 4 : at + 4 + self._number(at)].decode()

    # Writing.
    def _end(self, rest: int = 0) -> int:
        self._new += bytes((rest - len(self._new)) % 8)
        return len(self._new)

    def _refer(self, at: int, part: Part) -> None:
        if isinstance(part, int):
            self._links.append((at, part))
        else:
            struct.pack_into("<I", self._new, at, self._write(part) - at)

    def _write(self, part: str | Sequence[Part] | _Changed) -> int:
        at = self._end()
        if isinstance(part, str):
            raw = part.encode()
            self._new += struct.pack("<I", len(raw)) + raw + b"\0"
        elif isinstance(part, Sequence):
            self._new += struct.pack("<I", len(part)) + bytes(4 * len(part))
            for n, item in enumerate(part):
                self._refer(at + 4 + 4 * n, item)
        else:
            size, offsets = self._offsets(part.at)
            offsets = [0 if part.fields.get(n, 0) is None else o for n, o in enumerate(offsets)]
            self._new += struct.pack(f"<{2 + len(offsets)}H", 4 + 2 * len(offsets), size, *offsets)
            start, at = at, self._end(part.at % 8)
            self._new += self._old[part.at : part.at + size]
            struct.pack_into("<i", self._new, at, at - start)
            for place in part.references:
                if place < len(offsets) and offsets[place]:
                    slot = at + offsets[place]
                    self._refer(slot, part.fields.get(place) or self._target(part.at + offsets[place]))
        return at
