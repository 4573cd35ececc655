"""JSON schemas of tools: checked once, then applied to the arguments of every call.

A schema comes from a client or from an MCP server, and arguments from a language model: neither may
hold up the event loop, and no schema may make the server fetch anything. So schemas are bounded in
size and depth, references lead only into the schema itself, and a check takes a bounded number of
steps. Regular expressions can take forever on a short text, and Python's cannot be stopped: keywords
that hold some (``pattern``, ``patternProperties``, and ``additionalProperties`` beside the latter) are
shown to the language model but not enforced; nor are ``format`` and the ``unevaluated`` keywords, whose
cost has no bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache
from itertools import islice
from typing import Any

import jsonschema
import msgspec
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend
from jsonschema_specifications import REGISTRY as SPECIFICATIONS
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import specification_with

TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Names of tools, as in OpenAI's API."""
MAX_DEPTH = 32
MAX_NODES = 2_000
"""Values, also nested ones, that a schema may hold."""
_MAX_STEPS = 5_000
"""Keywords that one check may apply: some tens of milliseconds."""
_SIZE_OF_STEP = 64
"""Values that a keyword reads, for an error's message at least, in the time of a step."""
_UNIQUE_OF_STEP = 8
"""Values that are compared in the time of a step."""
_MAX_COMPILED = 256
"""Cached schemas: many sessions bring the same tools."""
_MAX_PROBLEMS = 3
_MAX_PROBLEM = 200
_DATA = frozenset({"const", "default", "enum", "example", "examples"})
_NAMING = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
"""Keywords that hold schemas by names, and any name is possible there."""
_REFUSED = frozenset({"$schema", "$id", "$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveRef"})
"""They change what the references around them mean, or let each lookup search the whole schema."""
_JSON_TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
_steps: ContextVar[_Steps] = ContextVar("steps")
_UNENFORCED = frozenset(
    {"format", "pattern", "patternProperties", "unevaluatedItems", "unevaluatedProperties"}
)
_DEFAULT_DIALECT = "https://json-schema.org/draft/2020-12/schema"


class SchemaError(ValueError):
    """A schema that cannot be used; the message says where and why."""


class _TooMuchError(Exception):
    """A check takes more steps than it may."""


class _Steps:
    """What is left of a check's steps; a keyword takes the more of them the larger the value is."""

    def __init__(self) -> None:
        self._left = _MAX_STEPS
        self._sizes: dict[int, int] = {}  # by identity: the arguments live as long as their check

    def count(self, value: Any, values_of_step: int = _SIZE_OF_STEP) -> None:
        self._left -= 1 + self._size(value) // values_of_step
        if self._left < 0:
            raise _TooMuchError

    def _size(self, value: Any) -> int:
        if isinstance(value, str):
            return 1 + len(value) // _SIZE_OF_STEP
        if not isinstance(value, dict | list):
            return 1
        known = self._sizes.get(id(value))
        if known is None:
            items = value.values() if isinstance(value, dict) else value
            known = self._sizes[id(value)] = 1 + sum(map(self._size, items))
        return known


def argument_schema(schema: Mapping[str, Any]) -> ArgumentSchema:
    """The checked schema of a tool's arguments; an empty one allows every object.

    Raises:
        SchemaError: it cannot be used.
    """
    _check_size(schema, "parameters")
    return _compiled(msgspec.json.encode(schema))


@lru_cache(_MAX_COMPILED)
def _compiled(encoded: bytes) -> ArgumentSchema:
    return ArgumentSchema(msgspec.json.decode(encoded))


class ArgumentSchema:
    """Checks arguments; made by :func:`argument_schema`.

    Args:
        schema: as it stands in the tool's definition, not too large.

    Raises:
        SchemaError: it cannot be used.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        where = "parameters"
        if schema and schema.get("type", "object") != "object":
            raise SchemaError(f"{where} must be a JSON schema of type object")
        _check_parts(schema, where)
        uri = str(schema.get("$schema", _DEFAULT_DIALECT)).rstrip("#")
        if uri not in _DIALECTS:
            raise SchemaError(f"{where}.$schema is {uri!r}; known are {', '.join(_DIALECTS)}")
        meta, bounded = _DIALECTS[uri]
        # Below, jsonschema would choose its own unbounded checks by this entry.
        plain = {name: value for name, value in schema.items() if name != "$schema"}
        _check_references(plain, uri, where)
        for error in meta.iter_errors(plain):
            raise SchemaError(f"{where}{_path(error)}: {_brief(error)}")
        # With a registry of its own it fetches nothing.
        self._validator = bounded(plain, registry=Registry())

    def problems(self, arguments: Mapping[str, Any]) -> list[str]:
        """What is wrong with the arguments of a call, a few of the first; empty: nothing."""
        token = _steps.set(_Steps())
        try:
            return [
                f"arguments{_path(error)}: {_brief(error)}"
                for error in islice(self._validator.iter_errors(dict(arguments)), _MAX_PROBLEMS)
            ]
        except (_TooMuchError, RecursionError):
            return ["arguments: too complex to be checked"]
        except ArithmeticError as error:  # a multiple of 0.5 with 400 digits, for example
            return [f"arguments: cannot be checked ({type(error).__name__})"]
        except (Unresolvable, AttributeError, LookupError, TypeError, ValueError):
            # A reference may lead to data that only looks like a schema.
            return ["the tool's schema is broken"]
        finally:
            _steps.reset(token)


def _check_size(schema: Any, where: str) -> None:
    waiting, seen = [(schema, 0)], 0
    while waiting:
        value, depth = waiting.pop()
        seen += 1
        if depth > MAX_DEPTH:
            raise SchemaError(f"{where} is nested deeper than {MAX_DEPTH} levels")
        if seen > MAX_NODES:
            raise SchemaError(f"{where} holds more than {MAX_NODES} values")
        if isinstance(value, dict | list):
            waiting += [(item, depth + 1) for item in (value.values() if isinstance(value, dict) else value)]


def _check_parts(schema: Any, where: str) -> None:
    """What a prompt is made of, and what JSON schema itself would let pass."""
    if not isinstance(schema, dict):
        raise SchemaError(f"{where} must be a JSON object")
    kinds = schema.get("type", [])
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if not isinstance(kind, str) or kind not in _JSON_TYPES:
            raise SchemaError(f"{where}.type is {kind!r}, which is no type of JSON schema")
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        raise SchemaError(f"{where}.properties must be a JSON object")
    for name, sub in properties.items():
        _check_parts(sub, f"{where}.properties.{name}")
    required = schema.get("required", [])
    names = list(properties)  # a list, because what is looked up may be anything
    if not isinstance(required, list) or not all(name in names for name in required):
        raise SchemaError(f"{where}.required names a property that is not described")


def _check_references(schema: Mapping[str, Any], uri: str, where: str) -> None:
    resolver = Registry().with_resource("", specification_with(uri).create_resource(schema)).resolver()
    waiting: list[Any] = [schema]
    followed = set()
    while waiting:
        for key, value in _keywords(waiting.pop()):
            if key in _REFUSED:
                raise SchemaError(f"{where}: {key} is not accepted inside a schema")
            if key != "$ref" or value in followed:
                continue
            if value != "#" and not value.startswith("#/"):
                raise SchemaError(f"{where}: $ref {value!r} is not of the form #/path/in/the/schema")
            followed.add(value)
            try:
                target = resolver.lookup(value).contents
            except (Unresolvable, TypeError, ValueError) as error:
                raise SchemaError(f"{where}: $ref {value!r} leads nowhere") from error
            if not isinstance(target, dict | bool):
                raise SchemaError(f"{where}: $ref {value!r} leads to something that is no schema")
            # It may stand in data, whose keywords were not checked.
            waiting.append(target)


def _keywords(value: Any, *, named: bool = False) -> Iterator[tuple[str, str]]:
    """Everything in a schema that may be a keyword with a text; ``named``: its own keys are names."""
    if isinstance(value, list):
        for item in value:
            yield from _keywords(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, str):
                yield key, item
            elif named or key not in _DATA:
                yield from _keywords(item, named=not named and key in _NAMING)


def _path(error: ValidationError) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)


def _brief(error: ValidationError) -> str:
    text = error.message
    return text if len(text) <= _MAX_PROBLEM else f"{text[:_MAX_PROBLEM]}…"


def _bounded(dialect: Any) -> Any:
    """The dialect's checks without those that cannot be bounded; the others count their steps."""

    def counted(check: Any) -> Any:
        def checked(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
            _steps.get().count(instance)
            return check(validator, value, instance, schema)

        return checked

    def additional(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        if "patternProperties" in schema:
            return None
        return dialect.VALIDATORS["additionalProperties"](validator, value, instance, schema)

    checks = {**dialect.VALIDATORS, "additionalProperties": additional, "uniqueItems": _check_unique}
    return extend(
        dialect,
        {name: _pass if name in _UNENFORCED else counted(check) for name, check in checks.items()},
    )


def _check_unique(_validator: Any, wanted: Any, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    """Find equal items by their hashes; jsonschema compares objects pair by pair."""
    if wanted is True and isinstance(instance, list):
        _steps.get().count(instance, _UNIQUE_OF_STEP)
        if len({_hashable(item) for item in instance}) < len(instance):
            yield ValidationError(f"{instance!r} has non-unique elements")


def _hashable(value: Any) -> Any:
    """Equal for values that JSON schema takes as equal: 1 and 1.0, but not 1 and true.

    Numbers are texts, whose hashes differ by process: other integers can be chosen to have one hash.
    """
    if isinstance(value, bool):
        return "boolean", value
    if isinstance(value, list):
        return "array", *map(_hashable, value)
    if isinstance(value, dict):
        return "object", frozenset((key, _hashable(item)) for key, item in value.items())
    if isinstance(value, int | float):
        is_whole = isinstance(value, int) or value.is_integer()
        return "number", hex(int(value)) if is_whole else repr(value)
    return value


def _meta(dialect: Any) -> Any:
    """A validator of schemas of a dialect, whose vocabularies are merged into one.

    The later dialects find each part of a schema by dynamic references through all vocabularies, which takes
    ten times as long, in the event loop of all sessions.
    """
    schema = dialect.META_SCHEMA
    resolver = SPECIFICATIONS.resolver(schema.get("$id", ""))
    vocabularies = [resolver.lookup(part["$ref"]).contents for part in schema.get("allOf", ())]
    if not vocabularies:
        return dialect(schema, registry=Registry())
    merged: dict[str, Any] = {"type": schema["type"]}
    for key in ("properties", "$defs"):
        merged[key] = {
            name: _local(value)
            for part in (*vocabularies, schema)
            for name, value in part.get(key, {}).items()
        }
    return dialect(merged, registry=Registry())


def _local(schema: Any) -> Any:
    """A part of a vocabulary, with references that lead into the merged ones."""
    if isinstance(schema, list):
        return [_local(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {}
    for key, value in schema.items():
        if key in ("$dynamicRef", "$recursiveRef") and isinstance(value, str):
            found["$ref"] = "#"
        elif key == "$ref" and isinstance(value, str):
            found[key] = f"#{value.partition('#')[2]}"
        else:
            found[key] = _local(value)
    return found


def _pass(_validator: Any, _value: Any, _instance: Any, _schema: Any) -> None:
    """Enforce nothing."""


_DIALECTS: dict[str, tuple[Any, Any]] = {
    uri: (_meta(dialect), _bounded(dialect))
    for uri, dialect in (
        (_DEFAULT_DIALECT, jsonschema.Draft202012Validator),
        ("https://json-schema.org/draft/2019-09/schema", jsonschema.Draft201909Validator),
        ("http://json-schema.org/draft-07/schema", jsonschema.Draft7Validator),
        ("http://json-schema.org/draft-06/schema", jsonschema.Draft6Validator),
    )
}
