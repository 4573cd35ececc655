"""Messages of a conversation, as language models get them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the model made."""

    id: str
    name: str
    arguments: dict[str, Any]


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message of the conversation, as chat templates expect it."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    tool_calls: list[ToolCall] = []
    tool_call_id: str = ""
