"""What a language model is told about the conversation so far."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

import msgspec

from parley.llm.messages import ChatMessage
from parley.protocol import Tool

# English text has about four characters per token; numbers and other languages have fewer.
_CHARACTERS_PER_TOKEN = 3
# Role markers and line breaks of a chat template.
_TOKENS_PER_MESSAGE = 8


def estimate_tokens(characters: int) -> int:
    """Tokens of so many characters of text, rather too many than too few."""
    return -(-characters // _CHARACTERS_PER_TOKEN)


def _cost(message: ChatMessage) -> int:
    calls = len(msgspec.json.encode(message.tool_calls)) if message.tool_calls else 0
    return _TOKENS_PER_MESSAGE + estimate_tokens(len(message.content) + calls)


class History:
    """The conversation, bounded by the model's context window.

    The oldest exchanges are forgotten first. An exchange begins with what the user says and
    ends before the user's next message, so that a tool call is never parted from its result.
    The system prompt and the newest exchange always stay.

    Args:
        system_prompt: the first message; empty: none.
        budget: tokens that the messages and the tools may have together.
        tools: offered with every request; they cost a part of the budget.
    """

    def __init__(self, system_prompt: str, budget: int, tools: Sequence[Tool] = ()) -> None:
        self._system = [ChatMessage(role="system", content=system_prompt)] if system_prompt else []
        fixed = estimate_tokens(len(msgspec.json.encode(tools))) if tools else 0
        self._budget = budget - fixed - sum(map(_cost, self._system))
        self._messages: list[ChatMessage] = []
        self._cost = 0

    def messages(self) -> list[ChatMessage]:
        """The system prompt and what is remembered, oldest first."""
        return [*self._system, *self._messages]

    def preview(self, text: str) -> list[ChatMessage]:
        """What :meth:`messages` would be after :meth:`add_user`; nothing is changed."""
        imagined = copy.copy(self)
        imagined._messages = list(self._messages)  # noqa: SLF001 - the messages themselves are frozen
        imagined.add_user(text)
        return imagined.messages()

    def add_user(self, text: str) -> None:
        """What the user said; joined with the message before it if nobody answered that.

        When both together are too long for the budget, only the new text stays.
        """
        last = self._messages[-1] if self._messages else None
        message = ChatMessage(role="user", content=text)
        if last is not None and last.role == "user":
            self._pop_last()
            joined = ChatMessage(role="user", content=f"{last.content} {text}")
            message = joined if _cost(joined) <= self._budget else message
        self._append(message)
        self._trim()

    def extend(self, messages: Iterable[ChatMessage]) -> None:
        """What the assistant said and did in answer."""
        for message in messages:
            self._append(message)
        self._trim()

    def forget_oldest(self) -> bool:
        """Drop the oldest exchange; False when only the newest is left."""
        starts = [index for index, message in enumerate(self._messages) if message.role == "user"]
        later = [index for index in starts if index > 0]
        if not later:
            return False
        dropped, self._messages = self._messages[: later[0]], self._messages[later[0] :]
        self._cost -= sum(map(_cost, dropped))
        return True

    def _append(self, message: ChatMessage) -> None:
        self._messages.append(message)
        self._cost += _cost(message)

    def _pop_last(self) -> None:
        self._cost -= _cost(self._messages.pop())

    def _trim(self) -> None:
        while self._cost > self._budget and self.forget_oldest():
            pass
