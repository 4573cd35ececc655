"""What ``qwen3`` (and every other chat model) is asked and answers.

Tensors: in ``REQUEST`` TYPE_STRING [1] (:class:`GenerateRequest` or :class:`AbortRequest`);
out, decoupled, ``EVENT`` TYPE_STRING [1] (:data:`LlmEvent`). A failed request ends with a Triton
error whose text is :meth:`parley.errors.ParleyError.to_wire`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Literal, TypeAlias

import msgspec

from parley.protocol import Tool

CUT = "…"
"""Marks, for the language model, an answer that the user cut short."""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the model made."""

    id: str
    name: str
    arguments: dict[str, Any]


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message of the conversation, as chat templates know it."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    tool_calls: list[ToolCall] = []
    """Of an assistant message."""
    tool_call_id: str = ""
    """Of a tool message: the call that it answers."""


def cut_short(heard: str) -> str:
    """What the user has heard of an answer, marked as cut short there; empty if that is nothing."""
    cut = heard.rstrip(" .,!?;:")
    return f"{cut}{CUT}" if cut else ""


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are drawn. Temperature 0 is greedy."""

    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 256
    seed: int | None = None


class Priority(IntEnum):
    """Who goes first where not all requests fit: the lower, and of equals the one that came earlier."""

    ANSWER = 0
    """A user waits for it."""
    SPECULATION = 1
    """A user may be about to wait for it."""
    WARM_UP = 2
    """It makes a later answer quicker."""
    BACKGROUND = 3
    """Nobody waits for it."""


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="generate"):
    """Ask for the assistant's next message."""

    request_id: str
    messages: list[ChatMessage]
    tools: list[Tool] = []
    sampling: Sampling = Sampling()
    priority: Priority = Priority.ANSWER


class AbortRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="abort"):
    """Stop a request, running or queued; unknown ids are not an error. Answered by nothing."""

    request_id: str


LlmRequest: TypeAlias = GenerateRequest | AbortRequest


class TextDelta(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """The next piece of the answer's text."""

    text: str


class ToolCalled(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_call"):
    """The model wants a tool to be run; sent when the call is complete."""

    call: ToolCall


class Completed(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="completed"):
    """The last event of a request that did not fail."""

    finish_reason: Literal["stop", "length", "tool_calls", "abort"]
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens served from the prefix cache."""
    example_tokens: int = 0
    """Prompt tokens of examples that the model is shown in every conversation."""
    completion_tokens: int = 0


LlmEvent: TypeAlias = TextDelta | ToolCalled | Completed
