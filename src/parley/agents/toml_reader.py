"""Reads TOML as a struct; errors name the line, and the nearest name."""

from __future__ import annotations

import re
import tomllib
from typing import TypeVar

import msgspec

from parley.agents.toml_lines import MAX_PARTS, find_line, find_long_key
from parley.field_errors import describe_field_error, fields_at
from parley.names import suggest_name

ValueT = TypeVar("ValueT")
_SYNTAX_LINE = re.compile(r" \(at line (\d+), column \d+\)\Z")
_AT = re.compile(r" - at `\$\.?(?P<path>[^`]*)`\Z")
_UNKNOWN = "Object contains unknown field `"
_STEP = re.compile(r"(?P<key>[^.\[\]]+)|\[(?P<index>\d+)\]")


class TomlError(ValueError):
    """A text is not TOML, or has an unknown field or a wrong value."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(problem)
        self.line = line
        """From 1."""


def convert_toml(text: str, kind: type[ValueT]) -> ValueT:
    """Read a text as a struct.

    Raises:
        TomlError: it is none.
    """
    if (long := find_long_key(text)) is not None:
        raise TomlError(long, f"a key has more than {MAX_PARTS} parts")
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _SYNTAX_LINE.search(str(error))
        line = int(found[1]) if found else text.rstrip().count("\n") + 1
        raise TomlError(line, _SYNTAX_LINE.sub("", str(error))) from error
    except (ValueError, RecursionError) as error:
        raise TomlError(1, "a number is too long, or values are nested too deep") from error
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise _field_error(text, error, kind) from error


def _field_error(text: str, error: msgspec.ValidationError, kind: type[object]) -> TomlError:
    what = describe_field_error(error, kind)
    at = _AT.search(what)
    where, what = (at["path"], what[: at.start()]) if at else ("", what)
    if what.startswith(_UNKNOWN) and what.endswith("`"):
        name = what[len(_UNKNOWN) : -1]
        near = suggest_name(name, fields_at(kind, f".{where}" if where else ""))
        steps = (*field_steps(where), name)
        what = f"unknown field {name!r}{near}"
    else:
        steps = field_steps(where)
        what = f"{where}: {what}" if where else what
    return TomlError(find_line(text, steps), what)


def field_steps(field: str) -> tuple[str | int, ...]:
    """The path of a field such as ``page.colour`` or ``tool[0].name``."""
    return tuple(step["key"] or int(step["index"]) for step in _STEP.finditer(field))
