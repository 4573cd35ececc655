"""What of a turn is remembered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from parley.agent.playout import HeardSpeech
from parley.errors import InvalidModelOutputError
from parley.llm.history import estimate_tokens
from parley.llm.messages import CUT, ChatMessage, ToolCall, cut_short
from parley.tts.plain_text import has_words

UNREMEMBERED = -1
"""Number of the round of what is said and not remembered, such as an apology."""


@dataclass
class ToolRound:
    """One answer of the language model; a turn has several when tools are called."""

    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    results: dict[str, str] = field(default_factory=dict)
    """What each call's tool returned, by call id."""
    said: bool = False
    """Whether any of the text goes to the user."""
    unfit: bool = False
    """Whether it has a call that cannot be run: unreadable, or written when no tool was offered."""
    unreadable: InvalidModelOutputError | None = None
    """Why it ended in a call that cannot be read."""


def shorten_results(rounds: Sequence[ToolRound], budget: int) -> bool:
    """Cut a turn's tool results until they have no more than about ``budget`` tokens together.

    The oldest are cut first, each to no less than an equal share of the budget. A cut is marked in the
    result, and final: the history keeps what the language model has read.

    Returns:
        Whether anything was cut.
    """
    results = [(answer.results, call_id) for answer in rounds for call_id in answer.results]
    costs = [estimate_tokens(of[call_id]) for of, call_id in results]
    share = budget // max(1, len(results))
    reserved = sum(min(cost, share) for cost in costs)  # for the results that are not looked at yet
    changed = False
    for (of, call_id), cost in zip(reversed(results), reversed(costs), strict=True):
        reserved -= min(cost, share)
        room = budget - reserved
        # A short result may be no longer than the mark of a cut.
        if cost > room and estimate_tokens(cut := _cut_to(of[call_id], room)) < cost:
            of[call_id], changed = cut, True
        budget -= min(cost, room)
    return changed


def _cut_to(text: str, tokens: int) -> str:
    """The beginning of a text, marked, with no more than so many tokens; at least the mark."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        fits = estimate_tokens(cut_after(text, middle)) <= tokens
        low, high = (middle, high) if fits else (low, middle - 1)
    return cut_after(text, low)


def cut_after(text: str, count: int) -> str:
    """The first ``count`` characters, with a mark that says so."""
    return f"{text[:count]}{CUT} (cut after {count} characters)"


def remember(rounds: Sequence[ToolRound], heard: HeardSpeech | None) -> list[ChatMessage]:
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
    if said and not has_words(unsaid):
        return text.strip()
    return cut_short(heard)
