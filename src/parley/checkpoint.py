"""What a conversation needs to go on, on another server or after a failure.

The agent sends a :class:`parley.protocol.Checkpoint` whenever one of these parts changes. The client keeps
the latest of each, adds what it knows itself (:class:`ResponseProgress`), and sends all of it in
``Start.resume``. A server keeps nothing of a session that is gone.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from parley.chat import ChatMessage, ToolCall

CHECKPOINT_VERSION = 1
"""Clients ignore fields that they do not know, and do not send them back: a field without which a session
cannot go on needs a new version."""


class SegmentState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A stretch of a response's audio: what it says, and where."""

    text: str
    round_number: int = 0
    """Of :attr:`SpokenResponse.rounds`; -1: its text is not remembered."""
    begin_ms: int = 0
    """In the response's audio; it ends where the next one begins."""
    words: list[tuple[int, int, int]] = []
    """Of each word: begin and end in the text, and where it begins in the segment's audio (milliseconds)."""
    complete: bool = True
    """Whether all of its audio was sent."""


class SpokenRound(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One answer of the language model within a response that is over."""

    text: str = ""
    """All of it, also what was not played."""
    called: bool = False
    """Whether it called tools whose results are in the history: the next message with calls is its."""


class SpokenResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A response that is over, and can still be truncated (:class:`parley.protocol.Truncate`)."""

    response_id: str
    audio_ms: int
    """The length of its audio that was sent."""
    begin: int = 0
    """Where its messages begin in :attr:`HistoryState.messages`."""
    count: int = 0
    """How many they are."""
    rounds: list[SpokenRound] = []
    segments: list[SegmentState] = []


class HistoryState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The conversation as it was played."""

    messages: list[ChatMessage] = []
    """Without the system prompt."""
    summary: str = ""
    """Of what came before them."""
    responses: list[SpokenResponse] = []
    """The newest, oldest first. A server cannot truncate any other response of an earlier one."""


class UserTurnState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The user's turn that is not over."""

    text: str = ""
    """Its final transcripts so far, joined; empty: none."""
    digits: str = ""
    """Keys that are not yet a turn (:class:`parley.protocol.Dtmf`)."""


class RoundState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One answer of the language model that ended with tool calls."""

    text: str = ""
    said: bool = False
    """Whether any of the text goes to the user."""
    calls: list[ToolCall] = []
    results: dict[str, str] = {}
    """What each call's tool returned, by the call's id. A call without a result is still running."""


class AgentTurnState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The agent's turn under way: it has begun, and is not over."""

    turn: int
    response_id: str
    kind: Literal["answer", "say"] = "answer"
    """``say``: a fixed text, such as a greeting."""
    text: str = ""
    """The fixed text; empty for an answer."""
    interruptible: bool = True
    remember: bool = True
    """Whether a fixed text is added to the history."""
    system_prompt: str | None = None
    """Replaces the session's prompt for this answer. None: the session's."""
    use_tools: bool = True
    must_call: str | None = None
    """As in :class:`parley.protocol.Respond`."""
    rounds: list[RoundState] = []
    """Of an answer, those that ended with tool calls."""


class QueuedText(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A :class:`parley.protocol.Say` or :class:`parley.protocol.Respond` that waits for its turn."""

    kind: Literal["say", "respond"] = "say"
    text: str = ""
    interruptible: bool = True
    remember: bool = True
    system_prompt: str | None = None
    use_tools: bool = True
    must_call: str | None = None


class BackgroundCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call of a tool that goes on beside the conversation; its result is not in the history yet."""

    turn: int
    """The turn that made it."""
    call: ToolCall
    announce: bool = True
    """Whether the agent speaks by itself when the result has come."""
    cancel_on_interruption: bool = False
    result: str | None = None
    """What the language model reads, behind the agent's turn under way. None: the call still runs."""


class DecidedState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last answer to a question about the conversation."""

    value: str
    probability: float
    turn: int
    """Turn of the agent in which it was asked."""


class OutcomeState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What has come of a conversation so far."""

    step: str = ""
    """Empty: the agent has no steps."""
    next_step: str = ""
    """The step that begins when the language model has no request under way. Empty: none."""
    collected: dict[str, str] = {}
    confirmed: list[str] = []
    """Names of the collected fields that the user has agreed to."""
    decisions: dict[str, DecidedState] = {}


class CollectState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The field of ``Start.collect`` that the user is asked for.

    What the recogniser may have meant by the user's words is not in it: behind a move the value so far is
    read as if the recogniser had been sure.
    """

    field: str = ""
    """Empty: there is none."""
    phase: Literal["value", "confirm", "part"] = "value"
    """What was asked last: the value, whether it is right, or which of two its doubtful part is."""
    value: str = ""
    """So far; empty: there is none."""
    attempts: int = 0
    """Answers that were no possible value."""
    left: int = 0
    """Answers about something else, which the language model has answered."""
    read_backs: int = 0
    """Questions whether a value or a part of it is right."""
    one: str = ""
    other: str = ""
    """What the doubtful part may be."""
    place: int = -1
    """Where that is in the value; -1: all of it."""
    given_up: list[str] = []
    """Fields that could not be understood: a step does not begin them again by itself."""


class SessionState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything of a session but its settings and its history: small, and sent with every checkpoint."""

    version: int
    """:data:`CHECKPOINT_VERSION` of the server that made it."""
    turns: int = 0
    """Turns of the agent so far; their numbers go on."""
    utterances: int = 0
    """Utterances of the user so far; their numbers go on."""
    audio_ms: int = 0
    """The user's audio before this position is contained in the state; what follows it has to be sent
    again."""
    user: UserTurnState = UserTurnState()
    agent: AgentTurnState | None = None
    """None: no turn of the agent is under way."""
    unanswered: bool = False
    """Whether the user's last turn still gets an answer: its own turn of the agent was not begun. With a
    text in ``user``, that text is the turn, and waits for the end of the agent's turn under way."""
    queued: list[QueuedText] = []
    messages: list[ChatMessage] = []
    """For the history, behind the agent's turn under way (:class:`parley.protocol.Remember`)."""
    background: list[BackgroundCall] = []
    announce: bool = False
    """Whether the agent is to speak of results in the history that no answer has read."""
    muted: bool = False
    """Whether audio behind ``audio_ms`` is ignored."""
    extra_pause_ms: int = 0
    """What was learned of the caller's pauses (``turn.adapts``)."""
    outcomes: OutcomeState = OutcomeState()
    collecting: CollectState = CollectState()
    call: str = ""
    """Id of the call, where it is recorded or webhooks learn of it; empty otherwise."""
    call_part: int = 0
    """Which session of that call this is, from 1."""
    call_seal: str = ""
    """Made where the call is recorded: servers of the same folder of calls do not announce that again."""
    handled: int | None = None
    """How many messages of the client were handled: all behind START but
    :class:`parley.protocol.Playback`. Their effect is in the state, except for those in ``unfinished``; a
    session that goes on counts from here. None: the server does not count."""
    unfinished: list[int] = []
    """Numbers of handled messages, in order, whose effect is still to come, such as that of a
    :class:`parley.protocol.Commit` whose audio is still to be recognised."""


class ResponseProgress(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """What the client has of the response that was under way when it lost its server."""

    response_id: str
    text: str = ""
    """All of :class:`parley.protocol.ResponseText` that came."""
    audio_ms: int = 0
    """The length of its audio that came. The client goes on playing it."""
    words: list[tuple[int, str]] = []
    """``offset_ms`` and ``text`` of every :class:`parley.protocol.Audio` with words, in order."""
    played_ms: int = 0
    """How much of it was played."""
    done: bool = False
    """Whether :class:`parley.protocol.ResponseDone` came."""


class Resume(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A session that goes on; its settings are those of the :class:`parley.protocol.Start` around it."""

    state: SessionState
    history: HistoryState = HistoryState()
    progress: ResponseProgress | None = None
    """Of ``state.agent``; None: nothing of it came, or there is none."""
    audio_ms: int = 0
    """Where in the session's audio the client begins to send again: ``state.audio_ms``, or later if it no
    longer has that."""
