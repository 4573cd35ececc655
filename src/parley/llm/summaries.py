"""Summaries of the oldest part of a conversation."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from parley.llm.messages import ChatMessage, GenerateRequest, Priority, Sampling

_MAX_TOKENS = 200
_INTRODUCTION = "What was said earlier in this conversation, in short: "
_INSTRUCTION = (
    "You write down what a voice assistant has to remember. Summarise the conversation that you are given "
    "in its own language, in at most five short sentences. Keep names, numbers, dates, wishes, promises and "
    "what tools returned. An answer that ends in … was interrupted there. Write nothing but the summary."
)


@dataclass(frozen=True)
class SummaryPlan:
    """What a summary is to be made of."""

    gone: int
    """Messages of the conversation that came before."""
    messages: tuple[ChatMessage, ...]
    """Whole exchanges, oldest first."""
    summary: str
    """Of what came before, as it stands in the prompt; empty: there is none."""


def summary_request(plan: SummaryPlan, request_id: str) -> GenerateRequest:
    """Ask a language model for a summary."""
    calls = {call.id: call.name for message in plan.messages for call in message.tool_calls}
    lines = [plan.summary] if plan.summary else []
    for message in plan.messages:
        if message.role == "tool":
            lines.append(f"{calls.get(message.tool_call_id, 'tool')} returned: {message.content}")
            continue
        if message.content:
            lines.append(f"{message.role}: {message.content}")
        lines += [
            f"{message.role} called {call.name}({msgspec.json.encode(call.arguments).decode()})"
            for call in message.tool_calls
        ]
    return GenerateRequest(
        request_id=request_id,
        messages=[
            ChatMessage(role="system", content=_INSTRUCTION),
            ChatMessage(role="user", content="\n".join(lines)),
        ],
        sampling=Sampling(max_tokens=_MAX_TOKENS),
        priority=Priority.BACKGROUND,
    )


def summary_text(written: str) -> str:
    """A summary as it stands in the prompt; empty if nothing was written."""
    text = " ".join(written.split()).removeprefix(_INTRODUCTION)
    return f"{_INTRODUCTION}{text}" if text else ""
