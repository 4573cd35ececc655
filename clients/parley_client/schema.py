"""JSON schema of a function's arguments, from its type hints."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from parley_client.errors import ToolDefinitionError

_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", dict: "object", list: "array"}


def parameter_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The type of each parameter, with what ``Annotated`` adds.

    Raises:
        ToolDefinitionError: a parameter without a type, or one that has no name of its own.
    """
    hints = get_type_hints(function, include_extras=True)
    found: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ToolDefinitionError(f"{_name(function)}: parameter {name!r} cannot be given by name")
        if name not in hints:
            raise ToolDefinitionError(f"{_name(function)}: parameter {name!r} needs a type")
        found[name] = hints[name]
    return found


def schema_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The JSON schema of ``function``'s arguments object.

    Parameters may be ``str``, ``int``, ``float``, ``bool``, ``dict``, ``list[...]``,
    ``Literal[...]`` or any of them ``| None``. A string in ``Annotated[..., "text"]`` describes
    the parameter. Parameters without a default are required.

    Raises:
        ToolDefinitionError: a type that has no JSON counterpart here.
    """
    parameters = inspect.signature(function).parameters
    properties: dict[str, Any] = {}
    for name, hint in parameter_hints(function).items():
        try:
            properties[name] = _schema(hint)
        except TypeError as error:
            raise ToolDefinitionError(f"{_name(function)}: parameter {name!r}: {error}") from error
    required = [name for name in properties if parameters[name].default is inspect.Parameter.empty]
    return {"type": "object", "properties": properties, "required": required}


def _schema(hint: Any) -> dict[str, Any]:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        texts = [extra for extra in hint.__metadata__ if isinstance(extra, str)]
        return {**_schema(arguments[0]), **({"description": texts[0]} if texts else {})}
    if origin in (Union, types.UnionType):
        kinds = [kind for kind in arguments if kind is not type(None)]
        if len(kinds) == 1:
            return _schema(kinds[0])
    if origin is Literal:
        kind = _NAMES.get(type(arguments[0]))
        if kind and all(type(value) is type(arguments[0]) for value in arguments):
            return {"type": kind, "enum": list(arguments)}
    if origin is list:
        return {"type": "array", "items": _schema(arguments[0])}
    if origin is dict or (isinstance(hint, type) and hint in _NAMES):
        return {"type": _NAMES[origin or hint]}
    raise TypeError(f"{hint!r} has no JSON schema here; give the schema explicitly")


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", repr(function))
