"""What a chat template is given of a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from parley.llm.messages import ChatMessage
from parley.protocol import Tool


@dataclass(frozen=True)
class Rendered:
    """Arguments of a chat template."""

    conversation: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    """None: the template is told of none."""
    examples: Sequence[dict[str, Any]] = ()
    """Those of its messages that are the same in every conversation."""


class Rendering(Protocol):
    """One model's way to be told of tools, calls and results."""

    def render(self, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> Rendered:
        """The conversation, and the tools that may be called now."""
        ...


class TemplateRendering:
    """Leaves it all to the chat template."""

    def render(self, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> Rendered:
        """The messages and the tools as they are."""
        return Rendered(
            [plain_message(message) for message in messages], [described(tool) for tool in tools] or None
        )


def plain_message(message: ChatMessage) -> dict[str, Any]:
    """A message as chat templates know it."""
    rendered: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        rendered["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        rendered["tool_call_id"] = message.tool_call_id
    return rendered


def described(tool: Tool) -> dict[str, Any]:
    """A tool as chat templates know it."""
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
    }
