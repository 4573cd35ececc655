"""What of a turn is remembered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from parley.agent.playout import Heard
from parley.llm.messages import ChatMessage, ToolCall

CUT = "…"
"""Marks, for the language model, an answer that the user cut short."""
UNREMEMBERED = -1
"""Number of the round of what is said and not remembered, such as an apology."""


@dataclass
class Round:
    """One answer of the language model; a turn has several when tools are called."""

    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    results: dict[str, str] = field(default_factory=dict)
    """What each call's tool returned, by call id."""


def remember(rounds: Sequence[Round], heard: Heard | None) -> list[ChatMessage]:
    """The messages that a turn adds to the history.

    Text that the user has not heard was not said. Tool calls stay if their results are there,
    because what they did stays done.

    Args:
        rounds: the turn's answers so far.
        heard: what the user has heard; None: everything.
    """
    messages: list[ChatMessage] = []
    for number, answer in enumerate(rounds):
        text = answer.text.strip() if heard is None else _heard_text(answer.text, heard.text_of(number))
        calls = [call for call in answer.calls if call.id in answer.results]
        if text or calls:
            messages.append(ChatMessage(role="assistant", content=text, tool_calls=calls))
        messages += [
            ChatMessage(role="tool", content=answer.results[call.id], tool_call_id=call.id) for call in calls
        ]
    return messages


def _heard_text(text: str, heard: str) -> str:
    # Segments are joined anew with single spaces: compare without white space.
    said, whole = "".join(heard.split()), "".join(text.split())
    unsaid = whole.removeprefix(said) if said else whole
    # A smiley at the end, for example, is never spoken.
    if said and not any(character.isalnum() for character in unsaid):
        return text.strip()
    cut = heard.rstrip(" .,!?;:")
    return f"{cut}{CUT}" if cut else ""
