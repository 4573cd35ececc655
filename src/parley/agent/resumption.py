"""Checks of what a client brings to go on with a session, which may be anything."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from parley.agent.collecting.dialogue import MOST_ATTEMPTS, MOST_LEFT, MOST_READ_BACKS
from parley.agent.collecting.reading import MAX_TEXT
from parley.agent.config import AgentConfig
from parley.agent.dtmf import KEYS, MAX_KEYS
from parley.agent.memory import MAX_ANSWERS, MAX_MESSAGES, UNREMEMBERED
from parley.agent.turns import MAX_QUEUED
from parley.agent.validation import MAX_SPOKEN, check_prompt
from parley.calls.folder import is_call_id
from parley.chat import ChatMessage, ToolCall
from parley.checkpoint import (
    AgentTurnState,
    CollectState,
    HistoryState,
    QueuedText,
    ResponseProgress,
    Resume,
    RoundState,
    SessionState,
    SpokenResponse,
)
from parley.errors import InvalidMessageError
from parley.protocol import Start
from parley.turns.caller_pauses import MOST_EXTRA_MS
from parley.turns.endpointing import MAX_CHARACTERS

_MAX_COUNT = 1_000_000
"""Turns or utterances of one session."""
_MAX_HANDLED = 1_000_000_000
_MAX_UNFINISHED = 256
_MAX_AUDIO_MS = 7 * 24 * 3_600_000
_MAX_RESPONSE_MS = 3_600_000
_MAX_ID = 200
_MAX_TEXT = 64 * 1024
"""Characters of one answer."""
_MAX_WORDS = 8_192
_MAX_SEGMENTS = 4_096
"""Of all responses together, and so are their words: a server sends 64 KiB of them."""
_MAX_WORD = 1_000
_MAX_NAME = 4_096
"""Characters of a tool's name, which is whatever the language model wrote."""
_MAX_CALLS = 128
_MAX_USER_TEXT = 4 * MAX_CHARACTERS
"""Several turns of the user may wait together."""
_EXTRA_ROUNDS = 4
"""Beside those with tools: the answer, and rounds that were repeated without tools."""
_MAX_HISTORY = 4_000
"""Messages that are looked at; the history itself keeps fewer."""
_MAX_PART = 999
_MAX_ANSWER = 64
"""Characters of an answer to a question about the conversation."""
_RESULT_MARK = 100
"""Characters by which a result may be longer than its limit: the mark of a cut."""


def check_resume(resume: Resume, start: Start, config: AgentConfig) -> None:
    """Refuse a state with which no session of these options could go on.

    Raises:
        InvalidMessageError: the text names the field.
    """
    state = resume.state
    _check_number("resume.state.turns", state.turns, _MAX_COUNT)
    _check_number("resume.state.utterances", state.utterances, _MAX_COUNT)
    _check_number("resume.state.audio_ms", state.audio_ms, _MAX_AUDIO_MS)
    _check_number("resume.state.extra_pause_ms", state.extra_pause_ms, MOST_EXTRA_MS)
    _check_number("resume.audio_ms", resume.audio_ms, _MAX_AUDIO_MS, least=state.audio_ms)
    _check_handled(state)
    _check_history(resume.history)
    _check_count("resume.history.responses", resume.history.responses, MAX_ANSWERS)
    for response in resume.history.responses:
        _check_response(response, resume.history.messages)
    segments = [segment for response in resume.history.responses for segment in response.segments]
    _check_count("the segments of resume.history.responses", segments, _MAX_SEGMENTS)
    words = [word for segment in segments for word in segment.words]
    _check_count("the words of resume.history.responses", words, _MAX_WORDS)
    _check_user(state)
    _check_count("resume.state.queued", state.queued, MAX_QUEUED)
    for queued in state.queued:
        _check_queued(queued, config)
    _check_count("resume.state.messages", state.messages, MAX_MESSAGES)
    for message in state.messages:
        if message.role == "tool" or message.tool_calls or message.tool_call_id:
            raise InvalidMessageError("a message of resume.state.messages belongs to a tool")
        _check_text("a text of resume.state.messages", message.content, _MAX_TEXT)
    _check_background(state, config)
    _check_outcomes(state, start)
    _check_collecting(state.collecting, start)
    _check_call(state)
    if state.agent is not None:
        _check_agent(state.agent, state, config)
    if resume.progress is not None:
        _check_progress(resume.progress)


def _check_handled(state: SessionState) -> None:
    _check_number("resume.state.handled", state.handled or 0, _MAX_HANDLED)
    _check_count("resume.state.unfinished", state.unfinished, _MAX_UNFINISHED)


def _check_call(state: SessionState) -> None:
    _check_number("resume.state.call_part", state.call_part, _MAX_PART)
    if state.call and not is_call_id(state.call):
        raise InvalidMessageError("resume.state.call is no id of a call")


def _check_outcomes(state: SessionState, start: Start) -> None:
    # An update changes none of these options: every name in a state is one of its START.
    name, outcomes = "resume.state.outcomes", state.outcomes
    steps = {"", *(step.name for step in start.steps)}
    _check_known(f"{name}.step", [outcomes.step, outcomes.next_step], steps)
    fields = {field.name for field in start.collect}
    _check_known(f"{name}.collected", outcomes.collected, fields)
    _check_known(f"{name}.confirmed", outcomes.confirmed, fields)
    _check_count(f"{name}.confirmed", outcomes.confirmed, len(fields))
    for value in outcomes.collected.values():
        _check_length(f"a value of {name}.collected", value, MAX_TEXT)
    _check_known(f"{name}.decisions", outcomes.decisions, {one.name for one in start.decisions})
    for decided in outcomes.decisions.values():
        _check_length(f"a value of {name}.decisions", decided.value, _MAX_ANSWER)
        _check_number(f"a turn of {name}.decisions", decided.turn, state.turns)
        if not 0 <= decided.probability <= 1:
            raise InvalidMessageError(f"a probability of {name}.decisions is not between 0 and 1")


def _check_collecting(collecting: CollectState, start: Start) -> None:
    name = "resume.state.collecting"
    _check_known(f"{name}.given_up", collecting.given_up, {field.name for field in start.collect})
    _check_count(f"{name}.given_up", collecting.given_up, len(start.collect))
    _check_known(f"{name}.field", [collecting.field], {"", *(field.name for field in start.collect)})
    for text in (collecting.value, collecting.one, collecting.other):
        _check_length(f"a text of {name}", text, MAX_TEXT)
    _check_number(f"{name}.place", collecting.place, MAX_TEXT, least=-1)
    _check_number(f"{name}.attempts", collecting.attempts, MOST_ATTEMPTS)
    _check_number(f"{name}.left", collecting.left, MOST_LEFT)
    _check_number(f"{name}.read_backs", collecting.read_backs, MOST_READ_BACKS)


def _check_known(name: str, given: Iterable[str], known: Collection[str]) -> None:
    if any(one not in known for one in given):
        raise InvalidMessageError(f"{name} has a name that START does not have")


def _check_user(state: SessionState) -> None:
    _check_length("resume.state.user.text", state.user.text, _MAX_USER_TEXT)
    _check_length("resume.state.user.digits", state.user.digits, MAX_KEYS)
    if not KEYS.issuperset(state.user.digits) or "#" in state.user.digits:
        raise InvalidMessageError("resume.state.user.digits has other characters than keys before #")


def _check_queued(queued: QueuedText, config: AgentConfig) -> None:
    if queued.kind == "say":
        _check_text("a text of resume.state.queued", queued.text, MAX_SPOKEN)
    check_prompt(queued.system_prompt, config)


def _check_history(history: HistoryState) -> None:
    _check_count("resume.history.messages", history.messages, _MAX_HISTORY)
    _check_length("resume.history.summary", history.summary, _MAX_TEXT)
    open_calls: set[str] = set()
    for message in history.messages:
        if message.role == "tool":
            if message.tool_call_id not in open_calls:
                raise InvalidMessageError("resume.history has a result without a call")
            open_calls.remove(message.tool_call_id)
            continue
        if open_calls:
            break
        open_calls = _call_ids(message)
    if open_calls:
        raise InvalidMessageError("resume.history has a call without a result")


def _check_response(response: SpokenResponse, history: Sequence[ChatMessage]) -> None:
    name = "resume.history.responses"
    _check_id(f"the id of one of {name}", response.response_id)
    _check_number(f"audio_ms of {name}", response.audio_ms, _MAX_RESPONSE_MS)
    _check_number(f"begin of {name}", response.begin, len(history))
    _check_number(f"count of {name}", response.count, len(history) - response.begin)
    _check_count(f"the rounds of {name}", response.rounds, _MAX_CALLS)
    for answer in response.rounds:
        _check_length(f"a text of {name}", answer.text, _MAX_TEXT)
    end = response.begin + response.count
    messages = history[response.begin : end]
    if any(one.role not in ("assistant", "tool") for one in messages):
        raise InvalidMessageError(f"{name} has messages that are not the agent's")
    if any(one.role == "tool" for one in (*messages[:1], *history[end : end + 1])):
        raise InvalidMessageError(f"{name} has calls without their results")
    if sum(one.called for one in response.rounds) != sum(bool(one.tool_calls) for one in messages):
        raise InvalidMessageError(f"{name} has other calls than its messages")
    _check_segments(name, response)


def _check_segments(name: str, response: SpokenResponse) -> None:
    _check_count(f"the segments of {name}", response.segments, _MAX_WORDS)
    before_ms = 0
    for segment in response.segments:
        _check_number(f"a round of {name}", segment.round_number, _MAX_COUNT, least=UNREMEMBERED)
        _check_number(f"begin_ms of {name}", segment.begin_ms, response.audio_ms, least=before_ms)
        _check_length(f"a text of {name}", segment.text, _MAX_TEXT)
        _check_count(f"the words of {name}", segment.words, _MAX_WORDS)
        for number in (number for word in segment.words for number in word):
            _check_number(f"a number of the words of {name}", number, _MAX_RESPONSE_MS)
        before_ms = segment.begin_ms


def _call_ids(message: ChatMessage) -> set[str]:
    if message.tool_call_id or (message.tool_calls and message.role != "assistant"):
        raise InvalidMessageError("resume.history has calls of tools in a message of another role")
    return _checked_ids("resume.history", message.tool_calls)


def _checked_ids(name: str, calls: Sequence[ToolCall]) -> set[str]:
    _check_count(f"the calls of {name}", calls, _MAX_CALLS)
    ids = {call.id for call in calls}
    if len(ids) != len(calls):
        raise InvalidMessageError(f"{name} has two calls of one id")
    for call in calls:
        _check_id(f"the id of a call of {name}", call.id)
        _check_length(f"the name of a call of {name}", call.name, _MAX_NAME)
    return ids


def _check_agent(agent: AgentTurnState, state: SessionState, config: AgentConfig) -> None:
    if agent.turn != state.turns or not agent.turn:
        raise InvalidMessageError(f"resume.state.agent.turn is {agent.turn}; there were {state.turns} turns")
    _check_id("resume.state.agent.response_id", agent.response_id)
    if agent.kind == "say":
        # The server's own greeting has no limit.
        _check_text("resume.state.agent.text", agent.text, max(MAX_SPOKEN, len(config.greeting)))
        if agent.rounds:
            raise InvalidMessageError("resume.state.agent is a fixed text, and has rounds")
        return
    check_prompt(agent.system_prompt, config)
    _check_count("resume.state.agent.rounds", agent.rounds, config.max_tool_rounds + _EXTRA_ROUNDS)
    seen: set[str] = set()
    for number, answer in enumerate(agent.rounds):
        ids = _check_round(answer, config, is_last=number + 1 == len(agent.rounds))
        if seen & ids:
            raise InvalidMessageError("resume.state.agent.rounds has two calls of one id")
        seen |= ids


def _check_background(state: SessionState, config: AgentConfig) -> None:
    name = "resume.state.background"
    _checked_ids(name, [one.call for one in state.background])
    for one in state.background:
        _check_number(f"a turn of {name}", one.turn, state.turns, least=1)
        _check_length(f"a result of {name}", one.result or "", config.max_tool_output + _RESULT_MARK)


def _check_round(answer: RoundState, config: AgentConfig, *, is_last: bool) -> set[str]:
    name = "resume.state.agent.rounds"
    _check_length(f"a text of {name}", answer.text, _MAX_TEXT)
    ids = _checked_ids(name, answer.calls)
    if not answer.results.keys() <= ids:
        raise InvalidMessageError(f"{name} has a result without a call")
    if not is_last and len(answer.results) < len(ids):
        raise InvalidMessageError(f"{name} has a call without a result before its last round")
    for result in answer.results.values():
        _check_length(f"a result of {name}", result, config.max_tool_output + _RESULT_MARK)
    return ids


def _check_progress(progress: ResponseProgress) -> None:
    _check_id("resume.progress.response_id", progress.response_id)
    _check_length("resume.progress.text", progress.text, _MAX_TEXT)
    _check_number("resume.progress.audio_ms", progress.audio_ms, _MAX_RESPONSE_MS)
    _check_number("resume.progress.played_ms", progress.played_ms, progress.audio_ms)
    _check_count("resume.progress.words", progress.words, _MAX_WORDS)
    before_ms = 0
    for offset_ms, text in progress.words:
        _check_number("an offset of resume.progress.words", offset_ms, progress.audio_ms, least=before_ms)
        _check_length("a text of resume.progress.words", text, _MAX_WORD)
        before_ms = offset_ms
    # They are looked for in the text, between the chunks of audio of all conversations.
    if sum(len(text.split()) for _, text in progress.words) > _MAX_WORDS:
        raise InvalidMessageError(f"resume.progress.words has more than {_MAX_WORDS} words")


def _check_id(name: str, value: str) -> None:
    if not 1 <= len(value) <= _MAX_ID or not value.isprintable():
        raise InvalidMessageError(f"{name} must have 1 to {_MAX_ID} printable characters")


def _check_text(name: str, text: str, most: int) -> None:
    if not text.strip():
        raise InvalidMessageError(f"{name} is empty")
    _check_length(name, text, most)


def _check_number(name: str, value: int, most: int, *, least: int = 0) -> None:
    if not least <= value <= most:
        raise InvalidMessageError(f"{name} is {value}; it must be {least} to {most}")


def _check_length(name: str, text: str, most: int) -> None:
    if len(text) > most:
        raise InvalidMessageError(f"{name} has {len(text)} characters; at most {most} are allowed")


def _check_count(name: str, items: Sequence[object], most: int) -> None:
    if len(items) > most:
        raise InvalidMessageError(f"{name}: {len(items)} are too many; at most {most} are allowed")
