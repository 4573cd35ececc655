"""The conversation as a language model gets it: bounded, with a summary of its oldest part."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from parley.chat import ChatMessage
from parley.checkpoint import HistoryState
from parley.llm.messages import GenerateRequest, Priority, Sampling
from parley.protocol import Tool

_MAX_TOKENS = 200
_INTRODUCTION = "What was said earlier in this conversation, in short: "
_INSTRUCTION = (
    "You write down what a voice assistant has to remember. Summarise the conversation that you are given "
    "in its own language, in at most five short sentences. Keep names, numbers, dates, wishes, promises and "
    "what tools returned. An answer that ends in … was interrupted there. Write nothing but the summary."
)
# Bytes of UTF-8: English has about four per token; Chinese, for example, three for each character.
_BYTES_PER_TOKEN = 3
_DIGITS = "0123456789"  # each is a token of its own
# Role markers and line breaks of a chat template.
_TOKENS_PER_MESSAGE = 8
_MOST_MESSAGES = 1_000
_LONGEST_EXCHANGE = 16  # that is only forgotten whole: messages, without the results of tools
# A prompt that fills less of the window says little about text: the template's own words weigh too much.
_MIN_CALIBRATION = 0.25
# How many times more tokens than estimated a prompt may turn out to have.
_MOST_SCALE = 4.0
# Shares of the budget: a summary is made from the first on, and the second is left word for word.
_LONG = 0.75
_UNCHANGED = 0.4
# A summary that takes more has not summarised anything.
_LONGEST_SUMMARY = 0.25


@dataclass(frozen=True)
class SummaryPlan:
    """The messages that a summary replaces."""

    dropped: int
    """Messages of the conversation before these."""
    messages: tuple[ChatMessage, ...]
    """Whole exchanges, oldest first."""
    summary: str
    """Summary of earlier messages, as it stands in the prompt; empty: there is none."""


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


def estimate_tokens(text: str) -> int:
    """Tokens of a text, rather too many than too few."""
    digits = sum(map(text.count, _DIGITS))
    size = len(text.encode(errors="surrogatepass")) + (_BYTES_PER_TOKEN - 1) * digits
    return -(-size // _BYTES_PER_TOKEN)


def _cost(message: ChatMessage) -> int:
    calls = msgspec.json.encode(message.tool_calls).decode() if message.tool_calls else ""
    return _TOKENS_PER_MESSAGE + estimate_tokens(message.content + calls)


def _tools_cost(tools: Sequence[Tool]) -> int:
    return estimate_tokens(msgspec.json.encode(tools).decode()) if tools else 0


class History:
    """The conversation, bounded by the model's context window.

    The oldest exchanges are forgotten first; an exchange begins with what the user says and ends before the
    user's next message. Where only one is left, or the oldest is of more than 16 messages, because the user
    has said nothing for long or nothing at all, its oldest messages are forgotten one by one, a tool call
    together with its results. The system prompt and the newest message (with its tool call) always stay, and
    what stays keeps its order. There are never more than 1,000 messages.

    Tokens are estimated; :meth:`calibrate` corrects the estimate by what the model has counted.

    Before messages have to be forgotten they may be replaced by a summary: :meth:`plan_summary` chooses
    them, :meth:`apply_summary` replaces them. Both are optional.

    Args:
        system_prompt: the first message; empty: none.
        budget: tokens that the messages and the tools may have together.
        tools: offered with every request; they cost a part of the budget.
    """

    def __init__(self, system_prompt: str, budget: int, tools: Sequence[Tool] = ()) -> None:
        self._limit = budget
        self._scale = 1.0  # tokens that the model counts, for each that is estimated
        self._set_fixed(system_prompt, tools)
        self._messages: list[ChatMessage] = []
        self._cost = 0
        self._dropped = 0  # messages that were forgotten or summarised
        self._summary = ""

    def _set_fixed(self, system_prompt: str, tools: Sequence[Tool]) -> None:
        self._prompt, self._tools = system_prompt, tuple(tools)
        system = _cost(ChatMessage(role="system", content=system_prompt)) if system_prompt else 0
        self._fixed = _tools_cost(tools) + system

    @property
    def _budget(self) -> int:
        """Estimated tokens that the messages and the summary may have."""
        return int(self._limit / self._scale) - self._fixed

    def calibrate(self, messages: Sequence[ChatMessage], tools: Sequence[Tool], tokens: int) -> None:
        """Correct the estimate: ``tokens`` is the size of a prompt of these messages and tools.

        The estimate is never taken for too high, so that text of another kind fits too.
        """
        estimated = sum(map(_cost, messages)) + _tools_cost(tools)
        if tokens >= _MIN_CALIBRATION * self._limit and estimated:
            self._scale = min(max(tokens / estimated, 1.0), _MOST_SCALE)
            self._trim()

    @property
    def tools(self) -> Sequence[Tool]:
        """Offered with every request."""
        return self._tools

    def change(self, system_prompt: str, tools: Sequence[Tool]) -> None:
        """Set another prompt and other tools."""
        self._set_fixed(system_prompt, tools)
        self._trim()

    @property
    def system_prompt(self) -> str:
        """The first message without the summary; empty: there is none."""
        return self._prompt

    @property
    def conversation(self) -> Sequence[ChatMessage]:
        """What is remembered word for word, oldest first."""
        return self._messages

    def messages(self, system_prompt: str | None = None) -> list[ChatMessage]:
        """The system prompt, the summary, and what is remembered, oldest first.

        Args:
            system_prompt: in the place of the session's; None: the session's.
        """
        prompt = self._prompt if system_prompt is None else system_prompt
        # In one message: many chat templates take a system message only as the first.
        system = "\n\n".join(filter(None, (prompt, self._summary)))
        return [*([ChatMessage(role="system", content=system)] if system else []), *self._messages]

    def state(self) -> HistoryState:
        """What is remembered, without the system prompt: :meth:`restore` reads it."""
        return HistoryState(messages=list(self._messages), summary=self._summary)

    def restore(self, state: HistoryState) -> None:
        """Replace what is remembered; of what does not fit the newest messages stay.

        A summary that is longer than one may be is left out.
        """
        messages, cost = state.messages[-_MOST_MESSAGES:], 0
        first = len(messages)
        while first and (cost := cost + _cost(messages[first - 1])) <= max(self._budget, 0):
            first -= 1
        first = max(0, min(first, len(messages) - 1))
        while first < len(messages) and messages[first].role == "tool":  # its call is gone
            first += 1
        self._dropped = 0
        self._messages = list(messages[first:])
        self._cost, self._summary = sum(map(_cost, self._messages)), ""
        summary = summary_text(state.summary)
        if estimate_tokens(summary) <= _LONGEST_SUMMARY * self._budget:
            self._set_summary(summary)
        self._trim()

    @property
    def unanswered(self) -> bool:
        """Whether the user has said something last."""
        return bool(self._messages) and self._messages[-1].role == "user"

    def preview(self, text: str) -> list[ChatMessage]:
        """What :meth:`messages` would be after :meth:`add_user`; nothing is changed."""
        imagined = copy.copy(self)
        imagined._messages = list(self._messages)  # noqa: SLF001 - the messages themselves are frozen
        imagined.add_user(text)
        return imagined.messages()

    def replace(self, old: Sequence[ChatMessage], new: Sequence[ChatMessage]) -> bool:
        """Replace the very messages ``old``; False: they are not there."""
        for index in range(len(self._messages) - len(old), -1, -1):
            found = self._messages[index : index + len(old)]
            if old and all(one is other for one, other in zip(found, old, strict=True)):
                self._messages[index : index + len(old)] = new
                self._cost += sum(map(_cost, new)) - sum(map(_cost, old))
                self._trim()
                return True
        return False

    def add_user(self, text: str) -> None:
        """Add what the user said; joined with the message before it if that was not answered.

        When both together are too long for the budget, the new text alone stays of all messages.
        """
        last = self._messages[-1] if self._messages else None
        message = ChatMessage(role="user", content=text)
        if last is not None and last.role == "user":
            self._pop_last()
            joined = ChatMessage(role="user", content=f"{last.content} {text}")
            if _cost(joined) <= self._budget:
                message = joined
            else:
                self._drop(len(self._messages))  # with the part that does not fit goes all before it
        self._append(message)
        self._trim()

    def extend(self, messages: Iterable[ChatMessage]) -> None:
        """Add what the assistant said and did."""
        for message in messages:
            self._append(message)
        self._trim()

    def forget_oldest(self) -> bool:
        """Drop the oldest exchange, or message if there is only one; at last the summary.

        Returns:
            False when only the newest message is left.
        """
        cuts = self._cuts()
        if cuts:
            self._drop(cuts[0])
        elif self._summary:
            self._set_summary("")
        else:
            return False
        return True

    def reset(self, note: str) -> None:
        """Forget everything but the last exchange.

        ``note`` takes the place of the summary; the end of one that is too long is left out.
        """
        self._drop(self._last_exchange)
        while estimate_tokens(summary_text(note)) > _LONGEST_SUMMARY * self._budget and note:
            note = note[: len(note) // 2]
        self._set_summary(summary_text(note))
        self._trim()

    @property
    def _last_exchange(self) -> int:
        begins = (index for index, one in enumerate(self._messages) if one.role == "user")
        return max(begins, default=0)

    def plan_summary(self, *, whole: bool = False) -> SummaryPlan | None:
        """The messages to summarise now; None: there is room enough, or only the newest message.

        ``whole``: all but the last exchange, also if there is room.
        """
        if whole:
            count = self._last_exchange
            return SummaryPlan(self._dropped, tuple(self._messages[:count]), self._summary) if count else None
        if self._cost <= _LONG * self._budget:
            return None
        cuts = self._cuts()
        if not cuts:
            return None
        left = sum(map(_cost, self._messages))
        possible = set(cuts)
        for index, message in enumerate(self._messages):
            if index in possible and (left <= _UNCHANGED * self._budget or index == cuts[-1]):
                return SummaryPlan(self._dropped, tuple(self._messages[:index]), self._summary)
            left -= _cost(message)
        raise AssertionError("the last cut is before one of the messages")

    def apply_summary(self, plan: SummaryPlan, text: str) -> bool:
        """Replace the messages of ``plan`` by their summary.

        Returns:
            Whether it was: not if any of that has been forgotten meanwhile, which a summary must not bring
            back, or if the summary is empty or much too long.
        """
        summary = summary_text(text)
        count = len(plan.messages)
        same = (plan.dropped, plan.summary) == (self._dropped, self._summary)
        if not same or tuple(self._messages[:count]) != plan.messages:
            return False
        if not summary or estimate_tokens(summary) > _LONGEST_SUMMARY * self._budget:
            return False
        self._drop(count)
        self._set_summary(summary)
        self._trim()
        return True

    def _cuts(self) -> list[int]:
        """Where the messages may be cut: before every exchange, and within those that are long.

        An exchange that is the only one may be cut too. The results of a tool call stay with the call.
        """
        exchanges: list[list[int]] = [[]]
        for index, message in enumerate(self._messages):
            if message.role == "user" and exchanges[-1]:
                exchanges.append([])
            if message.role != "tool":
                exchanges[-1].append(index)
        cuts: list[int] = []
        for exchange in exchanges:
            whole = len(exchanges) > 1 and len(exchange) <= _LONGEST_EXCHANGE
            cuts += exchange[:1] if whole else exchange
        return [index for index in cuts if index]

    def _drop(self, count: int) -> None:
        self._cost -= sum(map(_cost, self._messages[:count]))
        self._messages = self._messages[count:]
        self._dropped += count

    def _set_summary(self, summary: str) -> None:
        self._cost += estimate_tokens(summary) - estimate_tokens(self._summary)
        self._summary = summary

    def _append(self, message: ChatMessage) -> None:
        self._messages.append(message)
        self._cost += _cost(message)

    def _pop_last(self) -> None:
        self._cost -= _cost(self._messages.pop())

    def _trim(self) -> None:
        while (self._cost > self._budget or len(self._messages) > _MOST_MESSAGES) and self.forget_oldest():
            pass
