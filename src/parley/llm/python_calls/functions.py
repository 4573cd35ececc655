"""Tools as Python functions."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parley.llm.python_calls.schemas import annotation, compact, python_value
from parley.protocol import Tool

SAY = "say"
"""The function that speaks; no tool has its name."""
_MOST_PARAMETERS = 16
"""More are given as one object."""
_MOST_WITHOUT_REQUIRED = 4
"""So if all may be left out: any of them may then come first, and their grammar grows with their square."""
_MOST_DESCRIPTION = 300
_MOST_TYPES = 600
"""Characters of what is said of arguments that are given as one object."""
# With one of these beside them, the properties alone do not say which arguments are valid.
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
    name = re.sub(r"\W", "_", name, flags=re.ASCII)
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
