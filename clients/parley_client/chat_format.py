"""Conversations and tools as chat completion APIs write them, for Parley's language models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from parley.chat import ChatMessage, ToolCall
from parley.errors import InvalidMessageError
from parley.protocol import Tool

_ROLES = {"system": "system", "developer": "user", "user": "user", "assistant": "assistant", "tool": "tool"}


def read_messages(messages: Iterable[Mapping[str, Any]]) -> list[ChatMessage]:
    """A conversation.

    The models read text: images, audio and files are left out. Messages of the developer become the
    user's, because few chat templates know such a role.

    Raises:
        InvalidMessageError: a role is unknown, or a message or a tool call has another form.
    """
    return [_message(message) for message in messages]


def read_tool(function: Mapping[str, Any]) -> Tool:
    """A function that the model may call.

    Titles that a library has made of the names are left out of its schema: the model reads every word of
    it before each answer.

    Args:
        function: its ``name``, ``description`` and ``parameters``.

    Raises:
        InvalidMessageError: it has no name, or another form.
    """
    if not isinstance(function, Mapping):
        raise InvalidMessageError(f"a tool is {function!r}")
    if not function.get("name"):
        raise InvalidMessageError("a tool has no name")
    fields = {
        "name": function["name"],
        "description": function.get("description") or "",
        "parameters": _without_titles(function.get("parameters") or {}),
    }
    try:
        return msgspec.convert(fields, Tool)
    except msgspec.ValidationError as error:
        raise InvalidMessageError(f"a tool cannot be read: {error}") from error


def _message(fields: Mapping[str, Any]) -> ChatMessage:
    try:
        given = fields.get("role")
        role = _ROLES.get(given) if isinstance(given, str) else None
        if role is None:
            raise InvalidMessageError(f"a message has the unknown role {given!r}")
        message = {
            "role": role,
            "content": _text(fields.get("content")),
            "tool_calls": [_tool_call(call) for call in fields.get("tool_calls") or []],
            "tool_call_id": fields.get("tool_call_id") or "",
        }
        return msgspec.convert(message, ChatMessage)
    except (KeyError, TypeError, AttributeError, msgspec.ValidationError) as error:
        raise InvalidMessageError(f"a message cannot be read: {error!r}") from error


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part["text"] for part in content if part.get("type") == "text")


def _tool_call(call: Mapping[str, Any]) -> ToolCall:
    try:
        function = call["function"]
        written = function.get("arguments") or {}
        arguments = msgspec.json.decode(written) if isinstance(written, str) else written
        return msgspec.convert({"id": call["id"], "name": function["name"], "arguments": arguments}, ToolCall)
    except (KeyError, TypeError, AttributeError, msgspec.MsgspecError) as error:
        raise InvalidMessageError(f"a tool call cannot be read: {error}") from error


def _without_titles(schema: Any) -> Any:
    """A schema without the titles of its parts; a property may be called so."""
    if isinstance(schema, list):
        return [_without_titles(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: _without_titles(part) for name, part in value.items()}
        if key in ("properties", "$defs") and isinstance(value, dict)
        else _without_titles(value)
        for key, value in schema.items()
        if key != "title"
    }
