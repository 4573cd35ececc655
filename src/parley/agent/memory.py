"""The messages that turns add to the history, and their corrections."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import msgspec

from parley.agent.playout import HeardSpeech, PlayedWord, Playout, SentSpeech
from parley.agent.unheard import Unheard, find_unheard
from parley.chat import ChatMessage, ToolCall
from parley.checkpoint import BackgroundCall, HistoryState, SegmentState, SpokenResponse, SpokenRound
from parley.errors import InvalidMessageError, InvalidModelOutputError, OverloadedError
from parley.llm.history import History, estimate_tokens
from parley.llm.messages import CUT, cut_short
from parley.protocol import Remember
from parley.tts.markdown import without_markdown
from parley.tts.text import has_words

UNREMEMBERED = -1
"""Round number of speech that stays out of the history, such as an apology."""
NO_RESULT = '{"error":"cancelled before its result was known; it may have been done"}'
"""For the language model: the result of a call that was run, or perhaps was."""
MAX_ANSWERS = 16
"""Answers that a client can still truncate."""
_STATE_BYTES = 64 * 1024
"""What another session gets of them as JSON, so that long answers do not make a checkpoint too large."""
MAX_MESSAGES = 256


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
    ended: bool = False
    """Whether the language model has written all of it."""
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
    """The beginning of a text, marked, with at most ``tokens`` tokens; at least the mark."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        fits = estimate_tokens(cut_after(text, middle)) <= tokens
        low, high = (middle, high) if fits else (low, middle - 1)
    return cut_after(text, low)


def cut_after(text: str, count: int) -> str:
    """The first ``count`` characters, with a mark of the cut."""
    return f"{text[:count]}{CUT} (cut after {count} characters)"


def remember(rounds: Sequence[ToolRound], heard: HeardSpeech | None) -> list[ChatMessage]:
    """The messages that a turn adds to the history.

    Text that was not played is left out. Tool calls stay if their results are there,
    because what they did stays done.

    ``heard`` is what was played; None: everything.
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
    # Segments are joined anew with single spaces: compare without white space. Those of another session
    # have marks of Markdown.
    said, whole = ("".join(without_markdown(each).split()) for each in (heard, text))
    unsaid = whole.removeprefix(said) if said else whole
    # A smiley at the end, for example, is never spoken.
    if said and not has_words(unsaid):
        return text.strip()
    return cut_short(heard)


def _result_messages(done: BackgroundCall) -> list[ChatMessage]:
    """A late result as that of a call made just now: chat templates take a result only behind its call."""
    call = msgspec.structs.replace(done.call, id=f"{done.call.id}-result")
    return [
        ChatMessage(role="assistant", tool_calls=[call]),
        ChatMessage(role="tool", content=done.result or NO_RESULT, tool_call_id=call.id),
    ]


@dataclass(frozen=True)
class _Answer:
    response_id: str
    rounds: Sequence[ToolRound]
    playout: Playout
    messages: Sequence[ChatMessage]
    """The same objects that are in the history."""

    @classmethod
    def restore(cls, state: SpokenResponse, messages: Sequence[ChatMessage]) -> _Answer:
        """An answer of another session; ``messages`` are its own."""
        calls = iter(message.tool_calls for message in messages if message.tool_calls)
        results = {one.tool_call_id: one.content for one in messages if one.role == "tool"}
        rounds = [
            ToolRound(one.text, list(next(calls)) if one.called else [], results, ended=True)
            for one in state.rounds
        ]
        segments = [
            SentSpeech(
                one.round_number,
                one.text,
                one.begin_ms,
                complete=one.complete,
                words=[PlayedWord(*word) for word in one.words],
            )
            for one in state.segments
        ]
        playout = Playout()
        playout.restore_speech(segments, sent_ms=state.audio_ms, played_ms=state.audio_ms, now=0.0)
        return cls(state.response_id, rounds, playout, messages)

    @cached_property
    def state(self) -> SpokenResponse:
        """For another session, without the place of its messages."""
        called = {call.id for message in self.messages for call in message.tool_calls}
        return SpokenResponse(
            response_id=self.response_id,
            audio_ms=round(self.playout.length_ms),
            count=len(self.messages),
            rounds=[
                SpokenRound(text=one.text, called=any(call.id in called for call in one.calls))
                for one in self.rounds
            ],
            segments=[
                SegmentState(
                    text=one.text,
                    round_number=one.round_number,
                    begin_ms=round(one.begin_ms),
                    words=[(word.start_char, word.end_char, max(0, round(word.at_ms))) for word in one.words],
                    complete=one.complete,
                )
                for one in self.playout.segments
            ],
        )

    @cached_property
    def size(self) -> int:
        """Bytes of its state."""
        return len(msgspec.json.encode(self.state))


class HistoryWriter:
    """Writes turns and messages into the history; the last answers can be corrected."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._answers: OrderedDict[str, _Answer] = OrderedDict()
        self._messages: list[ChatMessage | BackgroundCall] = []

    def add(
        self,
        response_id: str,
        rounds: Sequence[ToolRound],
        playout: Playout,
        messages: Sequence[ChatMessage],
    ) -> None:
        """Add the messages of a turn that is over; ``rounds`` and ``playout`` serve to correct them."""
        self._history.extend(messages)
        self._answers[response_id] = _Answer(response_id, rounds, playout, messages)
        if len(self._answers) > MAX_ANSWERS:
            self._answers.popitem(last=False)

    def restore(self, history: HistoryState) -> None:
        """Begin with the answers of another session, whose messages were restored."""
        for one in history.responses:
            messages = history.messages[one.begin : one.begin + one.count]
            self._answers[one.response_id] = _Answer.restore(one, messages)

    def answers_of(self, messages: Sequence[ChatMessage]) -> list[SpokenResponse]:
        """The answers that can still be corrected, for another session; ``messages``: of the history."""
        places = {id(message): index for index, message in enumerate(messages)}
        answers: list[SpokenResponse] = []
        left = _STATE_BYTES
        for answer in reversed(self._answers.values()):
            begin = places.get(id(answer.messages[0])) if answer.messages else 0
            if begin is None or not answer.playout.length_ms:
                continue  # it is summarised or dropped already, or was not spoken
            left -= answer.size
            if left < 0:
                break
            answers.append(msgspec.structs.replace(answer.state, begin=begin))
        return answers[::-1]

    def unheard(self, pauses: Callable[[str], bool]) -> tuple[Unheard, str] | None:
        """What the newest answer was still to say when it was cut, and what was asked and heard.

        ``pauses``: whether a turn of the user asks for silence alone: an answer to it does not count.
        """
        messages = self._history.conversation
        places = {id(message): index for index, message in enumerate(messages)}
        for answer in reversed(self._answers.values()):
            place = places.get(id(answer.messages[0]), 0) if answer.messages else 0
            if not place or messages[place - 1].role != "user":  # such as a greeting
                break
            found = find_unheard((one.text for one in answer.rounds), answer.messages)
            asked = messages[place - 1].content
            if found is not None:
                found = replace(found, whole=answer.rounds[-1].ended)
                return found, " ".join([asked, *(one.content for one in answer.messages)])
            if not pauses(asked):
                break
        return None

    def add_message(self, message: Remember) -> None:
        """Queue a message for :meth:`write_messages`.

        Raises:
            OverloadedError: too many messages wait.
        """
        if len(self._messages) >= MAX_MESSAGES:
            raise OverloadedError(f"{MAX_MESSAGES} messages wait for the end of the turn")
        self._messages.append(ChatMessage(role=message.role, content=message.text.strip()))

    def add_result(self, done: BackgroundCall) -> None:
        """Queue the result of a call that went on beside the conversation, for :meth:`write_messages`."""
        self._messages.append(done)

    @property
    def waiting(self) -> list[ChatMessage]:
        """The queued messages, without results."""
        return [message for message in self._messages if isinstance(message, ChatMessage)]

    @property
    def waiting_results(self) -> list[BackgroundCall]:
        """The queued results."""
        return [message for message in self._messages if isinstance(message, BackgroundCall)]

    def write_messages(self) -> None:
        """Write the queued messages; called between two turns, whose own messages stay together."""
        messages, self._messages = self._messages, []
        for message in messages:
            if isinstance(message, BackgroundCall):
                self._history.extend(_result_messages(message))
            elif message.role == "user":
                self._history.add_user(message.content)
            else:
                self._history.extend([message])

    def correct(self, response_id: str, played_ms: float) -> HeardSpeech:
        """Reduce an answer in the history to what was played of it.

        An answer without messages in the history stays out of it.

        Raises:
            InvalidMessageError: the answer is too old, or was not spoken.
        """
        answer = self._answers.get(response_id)
        if answer is None:
            raise InvalidMessageError(f"response {response_id!r} is not one of the last {MAX_ANSWERS}")
        if not answer.playout.length_ms:
            raise InvalidMessageError(f"response {response_id!r} has no audio")
        heard = answer.playout.heard_after(played_ms)
        messages = remember(answer.rounds, heard)
        if answer.messages:
            if not self._history.replace(answer.messages, messages):
                raise InvalidMessageError(f"response {response_id!r} is summarised or dropped already")
            self._answers[response_id] = replace(answer, messages=messages)
        return heard if messages else HeardSpeech(heard.played_ms, ())
