"""What msgspec says about a field, with the values that the field takes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from msgspec import inspect

_MOST = 16
"""Values that are listed."""
_LONGEST = 80
"""Characters of a refused value that are repeated."""
_CHOICE = re.compile(r"(?P<problem>Invalid (?:enum )?value) (?P<value>.*)", re.DOTALL)
_STEP = re.compile(r"\.(?P<name>[^.\[]+)|\[[^\[\]]*\]")
_AT = re.compile(r" - at `\$(?P<path>[^`]*)`\Z")


def describe_field_error(error: Exception, kind: Any) -> str:
    """The text of ``error``; behind a value that is none of a field's choices come the choices.

    A long value is shortened.

    A text of another part of the decoding than msgspec is left as it is. ``kind``: the type that was read.
    """
    text = str(error)
    at = _AT.search(text)
    what, where, path = (text[: at.start()], at[0], at["path"]) if at else (text, "", "")
    refused = _CHOICE.fullmatch(what)
    if refused is None:
        return text
    value = refused["value"]
    if len(value) > _LONGEST:
        value = f"{value[:_LONGEST]}…"
    choices = list(dict.fromkeys(_choices(_type_info(kind), path)))
    more = f" and {len(choices) - _MOST} more" if len(choices) > _MOST else ""
    allowed = f" (allowed: {', '.join(choices[:_MOST])}{more})" if choices else ""
    return f"{refused['problem']} {value}{allowed}{where}"


def fields_at(kind: Any, path: str) -> list[str]:
    """Names of the fields that objects at ``path``, such as ``.tools[0]``, have; empty: there are none."""
    found = list(_alternatives([_type_info(kind)]))
    for step in _STEP.finditer(path):
        found = list(_alternatives(_inside(found, step["name"])))
    return [field.encode_name for one in found if isinstance(one, inspect.StructType) for field in one.fields]


@lru_cache(maxsize=64)
def _type_info(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def _choices(root: inspect.Type, path: str) -> Iterator[str]:
    """What the field at ``path`` takes, of every type that has such a field."""
    found = list(_alternatives([root]))
    for step in _STEP.finditer(path):
        name = step["name"]
        yield from _tags(found, name if step.end() == len(path) else None)
        found = list(_alternatives(_inside(found, name)))
    for one in found:
        if isinstance(one, inspect.LiteralType):
            yield from map(str, one.values)
        elif isinstance(one, inspect.EnumType):
            yield from (str(member.value) for member in one.cls)
        elif isinstance(one, inspect.IntType | inspect.FloatType):
            yield "a number"


def _alternatives(types: Iterable[inspect.Type]) -> Iterator[inspect.Type]:
    for one in types:
        if isinstance(one, inspect.UnionType):
            yield from _alternatives(one.types)
        elif isinstance(one, inspect.Metadata):
            yield from _alternatives([one.type])
        else:
            yield one


def _tags(types: Iterable[inspect.Type], name: str | None) -> Iterator[str]:
    """The tags of structs whose field ``name`` says which of them an object is."""
    for one in types:
        if isinstance(one, inspect.StructType) and name is not None and one.tag_field == name:
            yield str(one.tag)


def _inside(types: Iterable[inspect.Type], name: str | None) -> Iterator[inspect.Type]:
    """The types of a field, or without a name those of the items."""
    for one in types:
        if name is not None:
            if isinstance(one, inspect.StructType):
                yield from (field.type for field in one.fields if field.encode_name == name)
        elif isinstance(one, inspect.ListType | inspect.VarTupleType):
            yield one.item_type
        elif isinstance(one, inspect.TupleType):
            yield from one.item_types
        elif isinstance(one, inspect.DictType):
            yield one.value_type
