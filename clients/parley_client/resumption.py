"""What a call keeps of its session, so that it can go on at another server.

It follows what is sent and what comes, without tasks and without a clock of its own: the newest
:class:`parley.protocol.Checkpoint`, what the application has of the response under way, the user's audio
and the messages that the checkpoint does not contain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from parley import protocol
from parley.chat import ToolCall
from parley.checkpoint import HistoryState, ResponseProgress, Resume, SessionState
from parley_client.errors import NotResumableError
from parley_client.event_filter import MovedEvents
from parley_client.events import ServerEvent
from parley_client.progress import ResponseTracker
from parley_client.queues import BYTES_PER_MS, OutgoingMessage
from parley_client.replay import SentAudio, SentMessages, interleave

_NO_STATE = SessionState(version=0)
_NO_HISTORY = HistoryState()


@dataclass(frozen=True, slots=True)
class CallCheckpoint:
    """The newest state of a call's session, from which another client could go on."""

    number: int
    """Counts the checkpoints of the call."""
    settings: protocol.Start
    history: HistoryState
    state: SessionState
    settled: bool
    """Whether neither side had a turn under way."""
    answers: list[protocol.Answer]
    """Events that answer what the state contains, and have not come."""
    sent: int
    """Messages of the application that were sent to a server, without those on playback."""
    missing: frozenset[int]
    """Which of them the state does not contain; they are counted from 1."""
    changes: list[protocol.Remember | protocol.Update] = field(default_factory=list)
    """Of the messages that it does not contain, those that change the history or the settings."""
    progress: ResponseProgress | None = None
    """What has come of the response under way; None: nothing has, or there is none."""


class Resumption:
    """Everything that another server needs.

    Args:
        start: How the session was opened.
        replay_ms: How much audio is kept (milliseconds).
        clock: Seconds of a monotonic clock.
    """

    def __init__(self, start: protocol.Start, replay_ms: int, clock: Callable[[], float]) -> None:
        resume = start.resume
        self._start = start
        self._settings: protocol.Start | None = None
        self._history: HistoryState | None = None
        self._state: SessionState | None = None
        self._checkpoints = 0
        self._audio = SentAudio(replay_ms, resume.audio_ms if resume else 0)
        self._messages = SentMessages((resume.state.handled or 0) if resume else 0)
        # Of the newest checkpoint, that have not come.
        self._answers: list[protocol.Answer] = []
        self._responses = ResponseTracker(clock)
        self._requests: dict[str, int] = {}  # turns of the tool calls without an answer, by the call's id
        self._moved = MovedEvents(self._responses)
        self._has_begun = False
        self.settled = False
        """Whether neither side had a turn under way at the newest checkpoint."""
        if resume is not None:
            self._settings = msgspec.structs.replace(start, resume=None)
            self._restore(resume)

    def _restore(self, resume: Resume) -> None:
        """Begin with the state of a session that another client had."""
        self._state, self._history = resume.state, resume.history
        agent = resume.state.agent
        self._requests = {call.id: turn for turn, call in waiting_calls(resume.state)}
        if agent is None:
            return
        if resume.progress is not None:
            self._responses.restore(agent.turn, resume.progress)

    @property
    def has_room(self) -> bool:
        """Whether a message may be sent, or has to wait for a checkpoint that contains others."""
        return not self._messages.is_full

    # --- the stream ---------------------------------------------------------------------------------

    def on_sent(self, content: OutgoingMessage) -> None:
        """A request is sent for the first time."""
        if content.message:
            self._on_message(content.message)
        self._audio.add(content.audio)

    def _on_message(self, raw: bytes) -> None:
        message = protocol.decode_message(raw)
        if isinstance(message, protocol.Playback):
            self.on_playback(message.response_id, message.played_ms)
            return
        if isinstance(message, protocol.ToolResponse) and message.final:
            self._requests.pop(message.call_id, None)
        self._messages.add(raw, message, self._audio.end)

    def on_playback(self, response_id: str, played_ms: float) -> None:
        """The application has reported how much of a response it played."""
        self._responses.on_playback(response_id, played_ms)

    def on_event(self, event: ServerEvent) -> list[ServerEvent]:
        """Take an event of the server into account.

        Returns:
            What the application gets of it: nothing of checkpoints, and nothing that it has already.
        """
        if isinstance(event, protocol.Checkpoint):
            self._on_checkpoint(event)
            return []
        if isinstance(event, protocol.GoAway):
            return []
        self._has_begun = self._has_begun or _belongs_to_a_turn(event)
        if self._answers and event == self._answers[0]:
            del self._answers[0]
        elif isinstance(event, protocol.ToolRequest):
            self._requests[event.call_id] = event.turn
        elif isinstance(event, protocol.ToolCancelled):
            self._requests.pop(event.call_id, None)
        return self._pass_on(event)

    def _pass_on(self, event: ServerEvent) -> list[ServerEvent]:
        passed = self._moved.pass_on(event)
        for one in passed:
            self._responses.on_event(one)
        return passed

    def _on_checkpoint(self, event: protocol.Checkpoint) -> None:
        state = self._state = event.state
        self._settings = event.settings or self._settings
        self._history = event.history or self._history
        self.settled = event.settled
        self._checkpoints += 1
        self._audio.forget(state.audio_ms)
        self._messages.on_checkpoint(state)
        self._answers = list(event.answers)
        over = state.turns if state.agent is None else state.agent.turn - 1
        running = {one.call.id for one in state.background}
        self._requests = {
            call_id: turn for call_id, turn in self._requests.items() if turn > over or call_id in running
        }

    # --- going on -----------------------------------------------------------------------------------

    @property
    def history(self) -> HistoryState | None:
        """Of the newest checkpoint that had one; None: there is none."""
        return self._history

    @property
    def checkpoint(self) -> CallCheckpoint | None:
        """From what another client could go on; None: there is nothing yet."""
        if self._state is None:
            return None
        return CallCheckpoint(
            number=self._checkpoints,
            settings=self._settings or self._start,
            history=self._history or _NO_HISTORY,
            state=self._state,
            settled=self.settled,
            answers=list(self._answers),
            sent=self._messages.count,
            missing=self._messages.missing,
            changes=self._messages.changes,
            progress=self._progress(self._state),
        )

    def _progress(self, state: SessionState) -> ResponseProgress | None:
        return None if state.agent is None else self._responses.progress(state.agent.response_id)

    @property
    def can_move(self) -> bool:
        """Whether another server could go on, or begin again because nothing was said yet."""
        return self._state is not None or not self._has_begun

    def make_start(self) -> protocol.Start:
        """How the session is opened at another server: without ``resume`` if nothing was said yet.

        Raises:
            NotResumableError: there is no checkpoint, or it is too large.
        """
        state = self._state
        if state is None and not self._has_begun:
            return self._start
        if state is None:
            raise NotResumableError("the server has sent no checkpoint")
        history = self._history or _NO_HISTORY
        resume = Resume(state=state, history=history, progress=self._progress(state), audio_ms=self._begin_ms)
        start = msgspec.structs.replace(
            self._settings or self._start,
            traceparent=self._start.traceparent,
            describe=False,
            checkpoints=True,
            resume=resume,
        )
        size = len(protocol.encode(start))
        if size > protocol.MAX_RESUME_BYTES:
            most = protocol.MAX_RESUME_BYTES
            raise NotResumableError(f"the session's state has {size} bytes; at most {most} are allowed")
        return start

    def go_on(self, connected: protocol.Connected) -> tuple[list[ServerEvent], list[OutgoingMessage]]:
        """Another server goes on from :meth:`make_start`.

        Returns:
            Events that the server before would have sent, and the requests that the new one gets again.
        """
        state = self._state or _NO_STATE
        shift = self._audio.begin_anew() if self._state is None else 0
        answers, self._answers = self._answers, []
        events = [one for answer in answers for one in self._pass_on(answer)]
        ends = [*self._move_tools(state), *self._moved.begin(state.agent, unanswered=state.unanswered)]
        for event in ends:
            self._responses.on_event(event)
        messages = self._messages.begin_stream(state, shift)
        max_chunk_bytes = connected.max_chunk_ms * BYTES_PER_MS
        return [*events, *ends], interleave(self._audio, self._begin_ms, messages, max_chunk_bytes)

    def _move_tools(self, state: SessionState) -> list[ServerEvent]:
        """Keep what is known of the calls that the state waits for, and end the others.

        The server does not ask again for a call that the state contains. If the call is unknown here, its
        request was lost and is among the events.
        """
        calls = waiting_calls(state)
        waiting = {call.id for _, call in calls}
        events: list[ServerEvent] = [
            protocol.ToolCancelled(turn=turn, call_id=call_id, reason="closed")
            for call_id, turn in self._requests.items()
            if call_id not in waiting
        ]
        own = {tool.name for tool in (self._settings or self._start).tools}
        lost = [
            (turn, call)
            for turn, call in calls
            if call.name in own and call.id not in self._requests and not self._messages.answers(call.id)
        ]
        self._requests = {call_id: turn for call_id, turn in self._requests.items() if call_id in waiting}
        for turn, call in lost:
            self._requests[call.id] = turn
            events.append(
                protocol.ToolRequest(turn=turn, call_id=call.id, name=call.name, arguments=call.arguments)
            )
        return events

    @property
    def _begin_ms(self) -> int:
        """Where the audio that is sent again begins."""
        state = self._state or _NO_STATE
        return max(self._audio.begin_ms, min(state.audio_ms, self._audio.end // BYTES_PER_MS))


def _belongs_to_a_turn(event: ServerEvent) -> bool:
    """Whether a conversation in which this has come cannot begin again."""
    if isinstance(event, protocol.AgentState):
        return event.state != "listening"
    return not isinstance(event, protocol.Connected | protocol.ErrorEvent)


def waiting_calls(state: SessionState) -> list[tuple[int, ToolCall]]:
    """Calls of tools without a result, with their turns."""
    running = [(one.turn, one.call) for one in state.background if one.result is None]
    known = {call.id for _, call in running}
    if (agent := state.agent) is not None:
        running += [
            (agent.turn, call)
            for one in agent.rounds
            for call in one.calls
            if call.id not in one.results and call.id not in known
        ]
    return running
