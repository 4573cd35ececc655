"""OpenAPI of routes whose bodies are msgspec structs; FastAPI itself supports only pydantic.

A route names its types with :func:`body` and :func:`answers`; :func:`add_components` puts their
schemas into the document. Descriptions of fields are the docstrings below them.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import pairwise
from typing import Any

import msgspec

_PREFIX = "#/components/schemas/"
_JSON = "application/json"
_named: dict[type, None] = {}
"""Types that routes have named."""


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong."""

    code: str
    """A stable word."""
    message: str
    """For the client's developer."""
    retryable: bool
    """Whether the same request may succeed later."""


class Error(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every answer that is not a success."""

    error: ErrorDetail


def body(kind: type, *, required: bool = True) -> dict[str, Any]:
    """``openapi_extra`` of a route that reads ``kind`` as JSON."""
    return {"requestBody": {"required": required, "content": {_JSON: {"schema": _ref(kind)}}}}


def answers(status: int, kind: type | None = None, *errors: int) -> dict[int | str, dict[str, Any]]:
    """``responses`` of a route that answers ``kind`` as JSON, or nothing."""
    success: dict[str, Any] = {"description": inspect.getdoc(kind) if kind else "Done."}
    if kind is not None:
        success["content"] = {_JSON: {"schema": _ref(kind)}}
    failure = {"description": "It failed.", "content": {_JSON: {"schema": _ref(Error)}}}
    return {status: success, **dict.fromkeys(errors, failure), "default": failure}


def components_of(kinds: Iterable[type]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """References to ``kinds``, and the schemas of these and of all that they consist of."""
    listed = tuple(kinds)
    refs, components = msgspec.json.schema_components(listed, ref_template=_PREFIX + "{name}")
    for kind in _with_parts(listed):
        described = components.get(kind.__name__, {}).get("properties", {})
        for name, text in field_docs(kind).items():
            if name in described:
                described[name]["description"] = text
    return list(refs), components


def add_components(document: dict[str, Any]) -> dict[str, Any]:
    """Add the schemas of all types that routes have named to an OpenAPI document."""
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas |= components_of(_named)[1]
    return document


def _ref(kind: type) -> dict[str, str]:
    _named[kind] = None
    return {"$ref": _PREFIX + kind.__name__}


def _with_parts(kinds: Iterable[type]) -> list[type]:
    """The structs among ``kinds`` and in their fields."""
    found: dict[type, None] = {}
    waiting: list[Any] = list(kinds)
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in found:
            found[kind] = None
            waiting.extend(field.type for field in msgspec.structs.fields(kind))
        else:
            waiting.extend(part for part in getattr(kind, "__args__", ()) if part is not Ellipsis)
    return list(found)


@cache
def field_docs(kind: type) -> dict[str, str]:
    """The docstrings below the fields of a struct and its bases."""
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not issubclass(base, msgspec.Struct) or base is msgspec.Struct:
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError):
            continue  # made of another struct, without source of its own
        assert isinstance(tree.body[0], ast.ClassDef)
        lines = tree.body[0].body
        for field, doc in pairwise(lines):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(doc, ast.Expr)
                and isinstance(doc.value, ast.Constant)
                and isinstance(doc.value.value, str)
            ):
                docs[field.target.id] = inspect.cleandoc(doc.value.value).replace("\n", " ")
    return docs


_BINARY = {"type": "string", "format": "binary"}


def form(fields: type) -> dict[str, Any]:
    """``openapi_extra`` of a route that reads a form: a ``file``, and the fields of a struct."""
    required = [field.name for field in msgspec.structs.fields(fields) if field.required]
    schema = {
        "type": "object",
        "properties": {"file": _BINARY, **_properties(fields)},
        "required": ["file", *required],
    }
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


def query(options: type) -> dict[str, Any]:
    """``openapi_extra`` of a route whose options, the fields of a struct, are in the URL."""
    return {
        "parameters": [
            {
                "name": name,
                "in": "query",
                "required": False,
                "description": schema.get("description", ""),
                "schema": {key: value for key, value in schema.items() if key != "description"},
            }
            for name, schema in _properties(options).items()
        ]
    }


def recording() -> dict[str, Any]:
    """``openapi_extra`` of a route that reads audio."""
    return {"requestBody": {"required": True, "content": {"application/octet-stream": {"schema": _BINARY}}}}


def _properties(kind: type) -> Mapping[str, dict[str, Any]]:
    properties: Mapping[str, dict[str, Any]] = components_of([kind])[1][kind.__name__]["properties"]
    return properties
