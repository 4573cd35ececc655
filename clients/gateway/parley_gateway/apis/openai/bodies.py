"""Reads requests: JSON, and forms with a file."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec
from fastapi import Request

from parley_gateway.apis.openai.errors import RefusedRequestError

BodyT = TypeVar("BodyT")
_UNKNOWN_FIELD = re.compile(r"unknown field `([^`]+)`")
_MISSING_FIELD = re.compile(r"missing required field `([^`]+)`")
_PATH = re.compile(r" - at `\$\.?([^`]*)`")


async def read_json(request: Request, kind: type[BodyT]) -> BodyT:
    """The body of a request.

    Raises:
        RefusedRequestError: it is not what is expected; the answer names the field.
    """
    try:
        return msgspec.json.decode(await request.body(), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise refusal_of(error) from error


def refusal_of(error: Exception) -> RefusedRequestError:
    """What a client is told of a body that msgspec does not read."""
    said = str(error)
    path = _PATH.search(said)
    where = path.group(1) if path else ""
    if unknown := _UNKNOWN_FIELD.search(said):
        param = f"{where}.{unknown.group(1)}".lstrip(".")
        return RefusedRequestError(
            f"Unrecognized request argument supplied: {param}", param=param, reason="unknown_parameter"
        )
    if missing := _MISSING_FIELD.search(said):
        param = f"{where}.{missing.group(1)}".lstrip(".")
        return RefusedRequestError(
            f"Missing required parameter: '{param}'.", param=param, reason="missing_required_parameter"
        )
    return RefusedRequestError(f"The request cannot be read: {said}", param=where or None)
