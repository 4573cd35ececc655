"""Tools as Python functions."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from parley.protocol import Tool

_TYPES = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "array": "list",
    "object": "dict",
    "null": "None",
}
_MOST_CHOICES = 40
_MORE = "..."
_DEEPEST = 3
"""Types in types; what is deeper is ``dict``, ``list`` or ``Any``."""
_MOST_WITHIN = 8
"""Members of such a type. They may refer to one another, so there might be no end of them."""
_INDICES = frozenset(map(str, range(1_000)))
_MOST_STEPS = 300
"""Schemas looked at for one tool and depth. References to one another make many of a few bytes."""
SAY = "say"
"""The function that speaks; no tool has its name."""
_MOST_PARAMETERS = 16
"""More are given as one object."""
_MOST_WITHOUT_REQUIRED = 4
"""Limit where all may be left out: any may then come first, and the grammar grows with their square."""
_MOST_DESCRIPTION = 300
_MOST_TYPES = 600
"""Characters of what is said of arguments that are given as one object."""
# With one of these keywords, the properties alone do not determine which arguments are valid.
_COMBINING = (
    "$ref",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
)


def python_value(value: Any) -> str:
    """The value in Python's notation; texts and containers in JSON's."""
    if value is None or isinstance(value, bool):
        return str(value)
    return json.dumps(value, ensure_ascii=False)


def annotation(schema: Mapping[str, Any]) -> str:
    """The type of a value whose schema combines no others."""
    choices = schema.get("enum")
    if isinstance(choices, list) and choices:
        return f"Literal[{', '.join(map(python_value, choices[:_MOST_CHOICES]))}]"
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    names = [_TYPES[one] for one in kinds if isinstance(one, str) and one in _TYPES]
    items = schema.get("items")
    if names == ["list"] and isinstance(items, dict):
        return f"list[{annotation(items)}]"
    return " | ".join(names) or "Any"


def compact(schema: Mapping[str, Any], most: int) -> list[str]:
    """Describe an object in ``most`` characters: a line of types, and one for each property's description.

    The types are as in ``{"city": str, "day"?: str} & ({"people": int} | {"room": str})``. What must be
    given comes first, then the sets of which one must be, then what may be left out, which has a question
    mark. What objects within the object have is written if there is room. What does not fit is left out as a
    whole, and three dots stand for it.
    """
    types = _Types(schema)
    found = types.gather(schema)
    names = sorted(found.properties, key=lambda name: name not in found.required)
    required = sum(name in found.required for name in names)
    for depth in range(_DEEPEST, -1, -1):
        line = _Line(most)
        types.steps = _MOST_STEPS
        for name in names[:required]:
            line.add_member(types, found, name, depth)
        for choice in found.choices:
            line.add_choice(types, choice, found.properties, depth)
        for name in names[required:]:
            line.add_member(types, found, name, depth)
        if not line.full and types.steps:
            break
    lines = [str(line)]
    for name in names:
        said = found.properties[name]
        described = said.get("description") if isinstance(said, Mapping) else None
        if isinstance(described, str) and described.strip():
            text = " ".join(f"{name}: {described}".split())
            if sum(map(len, lines)) + len(text) <= most:
                lines.append(text)
    return lines


class _Line:
    """Types as long as they fit; after one that does not, none."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._members: list[str] = []
        self._choices: list[str] = []
        self.full = False

    def add_member(self, types: _Types, found: _Object, name: str, depth: int) -> None:
        """Add a property with its type, down to a depth."""
        member = "" if self.full else types.member(found, name, depth)
        if member and self._fits([*self._members, member], self._choices):
            self._members.append(member)
        else:
            self.full = True

    def add_choice(
        self, types: _Types, choice: Sequence[Any], properties: Mapping[str, Any], depth: int
    ) -> None:
        """Add alternatives, if they say anything; see :meth:`_Types.alternatives`."""
        form = "" if self.full else types.alternatives(choice, properties, depth)
        if form and self._fits(self._members, [*self._choices, form]):
            self._choices.append(form)
        elif form:
            self.full = True

    def _fits(self, members: Sequence[str], choices: Sequence[str]) -> bool:
        return len(self._text([*members, _MORE], choices)) <= self._most

    def __str__(self) -> str:
        return self._text([*self._members, *[_MORE] * self.full], self._choices) or "dict"

    @staticmethod
    def _text(members: Sequence[str], choices: Sequence[str]) -> str:
        if not members and len(choices) == 1:
            return choices[0]
        given = [f"{{{', '.join(members)}}}"] if members else []
        return " & ".join([*given, *(f"({choice})" for choice in choices)])


@dataclass
class _Object:
    """What a schema says of an object, with those that it refers to and those that apply together with it."""

    properties: dict[str, Any] = field(default_factory=dict)
    required: set[str] = field(default_factory=set)
    choices: list[list[Any]] = field(default_factory=list)
    """One schema of each list applies too."""


class _Types:
    """Writes the types of one tool."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self.steps = _MOST_STEPS
        """Schemas that may still be looked at; after that they are ``Any``."""

    def gather(self, schema: Any) -> _Object:
        """The properties of an object."""
        found = _Object()
        self._gather(schema, found, set())
        for name in sorted(found.required - found.properties.keys()):
            found.properties[name] = {}
        return found

    def _gather(self, schema: Any, found: _Object, seen: set[int]) -> None:
        if not isinstance(schema, Mapping) or id(schema) in seen or not self._step():
            return
        seen.add(id(schema))
        if "$ref" in schema:
            self._gather(self._referred(schema["$ref"]), found, seen)
        if isinstance(properties := schema.get("properties"), Mapping):
            found.properties.update(properties)
        if isinstance(required := schema.get("required"), list):
            found.required.update(name for name in required if isinstance(name, str))
        if isinstance(parts := schema.get("allOf"), list):
            for part in parts:
                self._gather(part, found, seen)
        found.choices += _choices(schema)

    def _referred(self, reference: Any) -> Any:
        """A schema within the root; None: there is none."""
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            return None
        at: Any = self._root
        for written in reference.split("/")[1:]:
            step = unquote(written).replace("~1", "/").replace("~0", "~")
            if isinstance(at, list) and step in _INDICES and int(step) < len(at):
                at = at[int(step)]
            else:
                at = at.get(step) if isinstance(at, Mapping) else None
        return at

    def _step(self) -> bool:
        """Whether another schema may be looked at."""
        self.steps = max(0, self.steps - 1)
        return self.steps > 0

    def member(self, found: _Object, name: str, depth: int) -> str:
        """A property with its type, down to a depth."""
        key = f"{json.dumps(name, ensure_ascii=False)}{'' if name in found.required else '?'}"
        return f"{key}: {self._type(found.properties[name], depth)}"

    def alternatives(self, choice: Sequence[Any], properties: Mapping[str, Any], depth: int) -> str:
        """Alternative objects.

        Args:
            choice: their schemas.
            properties: of the object that they belong to, for what they do not say themselves.
            depth: of the types.
        """
        written = []
        for schema in choice[:_MOST_WITHIN]:
            found = self.gather(schema)
            found.properties = {name: said or properties.get(name) for name, said in found.properties.items()}
            if found.properties:
                written.append(self._object(found, depth))
        return _joined(" | ", written, more=len(choice) > _MOST_WITHIN) if written else ""

    def _type(self, schema: Any, depth: int) -> str:
        seen: set[int] = set()
        while isinstance(schema, Mapping) and "$ref" in schema and id(schema) not in seen:
            seen.add(id(schema))
            schema = self._referred(schema["$ref"])
        if not isinstance(schema, Mapping) or "$ref" in schema or not self._step():
            return "Any"
        if "const" in schema:
            return annotation({"enum": [schema["const"]]})
        if "properties" in schema or "allOf" in schema:
            found = self.gather(schema)
            return self._object(found, depth - 1) if depth and found.properties else "dict"
        for choice in _choices(schema):
            kinds = [self._type(one, depth - 1) for one in choice[:_MOST_WITHIN]] if depth else ["Any"]
            return _joined(" | ", kinds, more=len(choice) > _MOST_WITHIN) if "Any" not in kinds else "Any"
        if schema.get("type") == "array":
            items = self._type(schema.get("items"), depth - 1) if depth else "Any"
            return "list" if items == "Any" else f"list[{items}]"
        return annotation(schema)

    def _object(self, found: _Object, depth: int) -> str:
        names = sorted(found.properties, key=lambda name: name not in found.required)
        members = [self.member(found, name, depth) for name in names[:_MOST_WITHIN]]
        return f"{{{_joined(', ', members, more=len(names) > _MOST_WITHIN)}}}"


def _choices(schema: Mapping[str, Any]) -> Iterator[list[Any]]:
    for word in ("anyOf", "oneOf"):
        if isinstance(choice := schema.get(word), list) and choice:
            yield choice


def _joined(separator: str, forms: Sequence[str], *, more: bool) -> str:
    return separator.join([*dict.fromkeys(forms), *[_MORE] * more])


@dataclass(frozen=True)
class Parameter:
    """One argument of a function, always given by its name."""

    name: str
    schema: Mapping[str, Any]
    required: bool


@dataclass(frozen=True)
class Function:
    """A tool as the model sees it."""

    name: str
    """An identifier, unlike those of all other functions."""
    tool: Tool
    parameters: tuple[Parameter, ...] | None
    """Those that must be given first. None: all arguments are given as one object, ``name(**{...})``."""

    def definition(self) -> str:
        """Its signature and what it is for."""
        if self.parameters is None:
            signature = "**arguments"
        else:
            signature = ", ".join(map(_declaration, self.parameters))
        lines = [f"def {self.name}({signature}):", f'    """{_line(self.tool.description)}']
        for parameter in self.parameters or ():
            lines += _described(parameter)
        if self.parameters is None:
            types, *described = compact(self.tool.parameters, _MOST_TYPES)
            lines += [f"    {_docstring(line)}" for line in (f"arguments: {types}", *described)]
        return "\n".join(lines) + '"""'

    def call(self, arguments: Mapping[str, Any]) -> str:
        """A call of it, as the model writes one."""
        names = [parameter.name for parameter in self.parameters or ()]
        if self.parameters is None or not arguments.keys() <= set(names):
            return f"{self.name}(**{python_value(dict(arguments))})"
        given = [f"{name}={python_value(arguments[name])}" for name in names if name in arguments]
        return f"{self.name}({', '.join(given)})"


def as_functions(tools: Sequence[Tool]) -> tuple[Function, ...]:
    """The tools as functions with names of their own."""
    taken = {SAY}
    made = []
    for tool in tools:
        name = identifier(tool.name)
        while name in taken:
            name += "_"
        taken.add(name)
        made.append(Function(name, tool, _parameters(tool.parameters)))
    return tuple(made)


def identifier(name: str) -> str:
    """A name that Python allows and that is no word of its own."""
    name = re.sub(r"^(?=\d)|\W", "_", name, flags=re.ASCII)
    return f"{name}_" if keyword.iskeyword(name) or not name.isidentifier() else name


def _parameters(schema: Mapping[str, Any]) -> tuple[Parameter, ...] | None:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    plain = isinstance(properties, dict) and isinstance(required, list)
    if not plain or any(word in schema for word in _COMBINING):
        return None
    if len(properties) > (_MOST_PARAMETERS if required else _MOST_WITHOUT_REQUIRED):
        return None
    if not all(isinstance(name, str) and name in properties for name in required) or any(
        name != identifier(name) for name in properties
    ):
        return None
    parameters = [
        Parameter(name, described if isinstance(described, dict) else {}, name in required)
        for name, described in properties.items()
    ]
    return tuple(sorted(parameters, key=lambda parameter: not parameter.required))


def _declaration(parameter: Parameter) -> str:
    default = "" if parameter.required else f" = {python_value(parameter.schema.get('default'))}"
    return f"{parameter.name}: {annotation(parameter.schema)}{default}"


def _described(parameter: Parameter) -> list[str]:
    described = _line(parameter.schema.get("description", ""))
    return [f"    {parameter.name}: {described}"] if described else []


def _line(text: Any) -> str:
    """In one line, without what would end a docstring."""
    return " ".join(_docstring(str(text)).split())[:_MOST_DESCRIPTION]


def _docstring(text: str) -> str:
    return text.replace('"""', "'''")
