"""OpenAPI of requests that are no JSON: forms with a file, options in the URL, recordings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from parley_gateway.schemas import components_of

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
