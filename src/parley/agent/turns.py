"""The agent's turns: the one under way, the queued ones, and the one that is prepared preemptively."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Literal, Protocol, TypeAlias

import msgspec

from parley.agent.continued import BegunResponse, find_begun
from parley.agent.endpointer import UserTurn
from parley.agent.memory import HistoryWriter
from parley.agent.playout import HeardSpeech
from parley.agent.preemption import PreemptionBudget, PreemptiveGeneration, PreparedResponse
from parley.agent.prompt import SystemPrompt
from parley.agent.response import FixedText, ResponseSource
from parley.agent.tools import ToolExecutor
from parley.agent.turn import AgentTurn, TurnOutput, TurnTiming
from parley.agent.unheard import Unheard
from parley.chat import ChatMessage, ToolCall
from parley.checkpoint import (
    AgentTurnState,
    BackgroundCall,
    HistoryState,
    QueuedText,
    ResponseProgress,
    SessionState,
)
from parley.errors import InvalidMessageError, OverloadedError
from parley.llm.history import History
from parley.protocol import (
    Interrupted,
    Paused,
    Remember,
    Respond,
    Resumed,
    Say,
    SpeechIgnored,
    Truncated,
)
from parley.timeouts import hold_task, loop_time
from parley.token_bucket import TokenBucket
from parley.tracing import NO_TRACE, Trace
from parley.turns.interruption import InterruptionWords, words_of

InterruptReason: TypeAlias = Literal["words", "speech", "command", "input", "client"]
ResumeReason: TypeAlias = Literal[
    "noise", "backchannel", "echo", "too_short", "too_few_words", "no_words", "other_speaker"
]

MAX_QUEUED = 16
_INTERRUPTED_AT_ONCE = 8
_INTERRUPTED_PER_S = 1.0
"""Of a session. An answer after more interrupted ones begins only when there has been none for a second: each
that begins costs the language model, which all sessions share, a request and an abort."""
_MAX_JOINED = 8_000
"""Characters of user text that waits for an answer; the oldest are dropped."""
_LEAST_LEFT = 4
"""Fewest unheard words that a backchannel resumes."""
_LISTEN_S = 0.1
_LISTEN_CHECKS = 150
"""A user who speaks when the call is about to end is heard for at most 15 s; then the call goes on."""
_log = logging.getLogger(__name__)


class AgentTurnHandler(Protocol):
    """Receives the events of the agent's turns."""

    def on_turn_started(self) -> None:
        """The agent is about to answer."""
        ...

    def on_interrupted(self, heard: str) -> None:
        """The turn was stopped before its end; ``heard``: what was played of it."""
        ...

    def on_turn_ended(self) -> None:
        """A turn has ended by itself or failed; another one may follow."""
        ...

    def on_agent_silent(self) -> None:
        """No turn is under way or queued."""
        ...

    @property
    def user_pending(self) -> bool:
        """Whether speech or keys of the user are there that may become a turn."""
        ...

    async def on_spoken(self) -> None:
        """A turn was heard to its end; returns when it is known whether the conversation ends with it."""
        ...

    def on_ending(self, turn: int, call: ToolCall | None) -> bool:
        """A turn is over; returns whether the conversation ends.

        ``call``: by which the language model ends it.
        """
        ...

    def on_task_failed(self, what: str) -> None:
        """Called in the handler of an unexpected exception."""
        ...


class AgentTurns:
    """Owns the agent's turns and writes them into the history.

    At most one turn is under way and one prepared. Texts to be spoken next wait in a bounded queue.

    Args:
        name: unique for each session.
        history: of the session; only this class adds to it.
        make_response: makes the language model's answer to a prompt, of which another session may have begun.
        reply: called with a turn of the user that is in the history; returns the text that answers it, or
            empty: the language model does.
        words: those of the user's language that mean something of their own.
        whole: what is done in such a block is in a checkpoint as a whole.
        count_prepared: called with ``used`` or ``discarded`` for each prepared answer.
    """

    def __init__(
        self,
        name: str,
        output: TurnOutput,
        history: History,
        *,
        tools: ToolExecutor,
        make_response: Callable[[SystemPrompt, BegunResponse | None], ResponseSource],
        reply: Callable[[str], str],
        words: InterruptionWords,
        whole: Callable[[], AbstractContextManager[None]],
        handler: AgentTurnHandler,
        count_prepared: Callable[[str], None],
        trace: Trace = NO_TRACE,
    ) -> None:
        self._trace = trace
        self._name = name
        self._output = output
        self._history = history
        self._history_writer = HistoryWriter(history)
        self._tools = tools
        self._make_response = make_response
        self._reply = reply
        self._words = words
        self._whole = whole
        self._handler = handler
        config = output.config
        budget = PreemptionBudget(config.speculations_per_turn, config.wasted_speculations_per_minute)
        self._preemptive = PreemptiveGeneration(budget, count_prepared)
        self._interrupted = TokenBucket(_INTERRUPTED_AT_ONCE, _INTERRUPTED_PER_S, debt=1.0)
        self.turns = 0
        """Turns that have begun."""
        self._made = 0
        self._current: AgentTurn | None = None
        self._task: asyncio.Task[None] | None = None
        self._paused = False
        self._pause_sent = False
        self._paused_at = 0.0
        self._queue: deque[QueuedText] = deque()
        self._unhandled: UserTurn | None = None
        self._unanswered = False
        self._unread = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = False
        self.cut_off: Interrupted | None = None
        """What was heard of the turn that :meth:`close` has stopped; None: it has stopped none."""

    def open(self, greeting: Say | None = None) -> None:
        """Start: speak the greeting first, then what was queued meanwhile."""
        self._open = True
        if greeting is not None:
            self._queue.appendleft(_queued(greeting))
        if self._queue or self._unhandled is not None:
            self.start_next()

    def restore(self, history: HistoryState) -> None:
        """Begin with the history of another session, and with the answers in it."""
        self._history.restore(history)
        self._history_writer.restore(history)

    @property
    def history(self) -> HistoryState:
        """What was said and played, for another session."""
        kept = self._history.state()
        return msgspec.structs.replace(kept, responses=self._history_writer.answers_of(kept.messages))

    def go_on(
        self, state: SessionState, progress: ResponseProgress | None, results: Sequence[BackgroundCall] = ()
    ) -> None:
        """Start where another session has ended; its history was restored.

        ``progress``: what the client has of the turn under way; ``results`` come behind that turn.
        """
        self._open = True
        self._unread = self._unread or state.announce
        for done in results:
            self._add_result(done)
        self.turns = state.turns
        self._queue.extendleft(reversed(state.queued))
        for message in state.messages:
            if message.role != "tool":
                self._history_writer.add_message(Remember(role=message.role, text=message.content))
        if state.agent is None:
            self._history_writer.write_messages()
            self._unanswered = self._history.unanswered
        else:
            self._go_on_with(state.agent, progress)
        if state.unanswered and state.user.text:
            self.answer(UserTurn(state.user.text, heard_at=loop_time()))
        elif state.unanswered and self._history.unanswered and state.agent is None:
            self._queue.appendleft(QueuedText(kind="respond"))
        self.start_next()

    def _go_on_with(self, agent: AgentTurnState, progress: ResponseProgress | None) -> None:
        config = self._output.config
        begun = find_begun(agent, progress, (config.apology, config.acted_apology))
        source: ResponseSource
        if agent.kind == "say":
            source = FixedText(agent.text, remember=agent.remember, begun=begun)
        else:
            prompt = self._prompt(agent)
            source = self._make_response(prompt, begun)
            self._handler.on_turn_started()
        self.turns = agent.turn - 1
        turn = self._make(
            source, interruptible=agent.interruptible, response_id=agent.response_id, begun=begun
        )
        self._begin(turn, self._run(turn), TurnTiming())

    @property
    def unhandled(self) -> str:
        """The user's turn that waits for the end of the one under way; empty: there is none."""
        return "" if self._unhandled is None else self._unhandled.text

    @property
    def queued(self) -> list[QueuedText]:
        """Texts and answers that wait for their turn."""
        return list(self._queue)

    @property
    def messages(self) -> list[ChatMessage]:
        """Messages that wait for the end of the turn under way."""
        return self._history_writer.waiting

    @property
    def results(self) -> list[BackgroundCall]:
        """Results that wait for the end of the turn under way."""
        return self._history_writer.waiting_results

    @property
    def unread(self) -> bool:
        """Whether there are results of which the agent is to speak, and no answer has read them."""
        return self._open and self._unread

    @property
    def current(self) -> AgentTurn | None:
        """The turn under way."""
        return self._current

    def change(self, output: TurnOutput) -> None:
        """Use another output, prompt or tools from the next turn on."""
        self._output = output
        self.discard()

    # --- turns of the user -----------------------------------------------------------

    def prepare(self, text: str, stopped_at: float | None) -> None:
        """Begin an answer before the user's turn, with speech until ``stopped_at``, is certainly over."""
        self.discard()
        if self._current is not None or not self._open or not text:
            return
        if not self._preemptive.budget.take(loop_time()):
            return
        prompt = SystemPrompt(self._history, text, unheard=self._unheard(text))
        turn = self._make(self._respond(prompt, text), since=stopped_at)
        self._preemptive.set(PreparedResponse(text, turn, prompt, self._run(turn)))

    async def read(self, text: str) -> float | None:
        """See :meth:`parley.agent.preemption.PreemptiveGeneration.read`."""
        return await self._preemptive.read(text)

    def discard(self) -> None:
        """The user's turn goes on: discard the prepared answer."""
        self._preemptive.discard()

    def answer(self, user: UserTurn) -> None:
        """Answer a turn of the user that is over, or keep it until the turn under way has ended.

        A turn without words is answered only if the one before was not.
        """
        if not user.text:
            self.discard()
            if self._current is not None:
                return
            if not self._unanswered:
                self.start_next()
                return
        elif not self._open or self._current is not None:
            user = replace(user, stopped_at=None)  # its answer also waits for the turn under way
            self._unhandled = user if self._unhandled is None else _joined(self._unhandled, user)
            self._output.changed()
            return
        with self._whole():
            self._answer(user)

    def _answer(self, user: UserTurn) -> None:
        if self._unhandled is not None:
            user, self._unhandled = _joined(self._unhandled, user), None
        self._unanswered = self._unread = False
        prepared = self._preemptive.take(user.text)
        reply = ""
        if user.text:
            self._history.add_user(user.text)
            reply = self._reply(user.text)
        timing = TurnTiming(user, self._preemptive.budget.end_turn(), speculated=prepared is not None)
        self._handler.on_turn_started()
        if prepared is None:
            prompt = SystemPrompt(self._history, unheard=self._unheard(user.text))
            source = FixedText(reply) if reply else self._respond(prompt, user.text)
            turn = self._make(source, since=user.stopped_at)
            self._begin(turn, self._run(turn), timing)
        else:
            prepared.prompt.drop_draft()
            self._begin(prepared.turn, prepared.task, timing)

    def _unheard(self, text: str) -> Unheard | None:
        """What is left of an interrupted answer, if the turn of the user that follows may want it."""
        words, known = words_of(text), self._words
        goes_on = known.asks_to_go_on(words)
        found = self._history_writer.unheard(lambda said: goes_on and known.is_command(words_of(said)))
        # Keys that were pressed have no letters.
        if found is None or known.is_command(words) or not any(map(str.isalpha, text)):
            return None
        unheard, about = found
        if unheard.asks and not goes_on:
            return None
        return replace(unheard, wanted=goes_on or unheard.is_wanted(text, about, known))

    def _respond(self, prompt: SystemPrompt, text: str) -> ResponseSource:
        """The answer to a turn of the user; after "go on" or a backchannel the text that was not heard."""
        words, unheard = words_of(text), prompt.unheard
        if unheard is None or not unheard.whole or self._words.drops_rest(words):
            return self._make_response(prompt, None)
        is_long = len(unheard.text.split()) >= _LEAST_LEFT
        if self._words.asks_to_go_on(words) or (is_long and self._words.is_backchannel(words)):
            return FixedText(unheard.text)
        return self._make_response(prompt, None)

    def say(self, saying: Say | Respond) -> None:
        """Queue a text, or an answer of the language model.

        Raises:
            OverloadedError: the queue is full.
        """
        if len(self._queue) >= MAX_QUEUED:
            raise OverloadedError(f"{MAX_QUEUED} texts are queued already")
        self._queue.append(_queued(saying))
        self._output.changed()
        if self._current is None and self._open:
            self.start_next()

    def add_message(self, message: Remember) -> None:
        """Add a message to the history, behind the turn under way.

        Raises:
            OverloadedError: too many messages wait for the end of the turn.
        """
        self._history_writer.add_message(message)
        self._output.changed()
        self.discard()
        if self._current is None:
            self._history_writer.write_messages()

    def add_result(self, done: BackgroundCall) -> None:
        """Add the result of a call that went on beside the conversation, behind the turn under way."""
        self._add_result(done)
        self._output.changed()
        self.discard()
        if self._current is None and self._open:
            self._history_writer.write_messages()

    def _add_result(self, done: BackgroundCall) -> None:
        self._history_writer.add_result(done)
        self._unread = self._unread or done.announce

    # --- interruptions -----------------------------------------------------

    def pause(self, at_ms: int, *, playback: bool) -> None:
        """The user may be speaking over the agent."""
        turn = self._current
        if turn is None or self._paused:
            return
        self._paused, self._pause_sent = True, playback
        self._paused_at = loop_time()
        turn.pause(playback=playback)
        if playback:
            self._output.emit(Paused(turn=turn.number, response_id=turn.response_id, at_ms=at_ms), None)

    @property
    def paused_at(self) -> float | None:
        """Since when the turn under way is paused (seconds); None: it is not."""
        return self._paused_at if self._paused else None

    def resume(self, reason: ResumeReason, text: str) -> bool:
        """Continue a paused turn; returns whether an event has reported the reason and the text."""
        turn = self._current
        if turn is None or not self._paused:
            return False
        self._paused = False
        if self._pause_sent:
            event = Resumed(turn=turn.number, response_id=turn.response_id, reason=reason, text=text)
            self._output.emit(event, None)
        turn.resume()
        return self._pause_sent

    def ignore(self, reason: ResumeReason, text: str) -> None:
        """Continue: the user's words are no turn."""
        reported = self.resume(reason, text)
        if text and not reported and reason != "noise":
            self._output.emit(SpeechIgnored(reason=reason, text=text), None)

    def yields_to(self, user: UserTurn) -> bool:
        """Whether a turn of the user interrupts the one under way."""
        turn = self._current
        by_user = self._output.by_speech or user.requested
        return self._open and turn is not None and bool(user.text) and turn.interruptible and by_user

    def interrupt(self, reason: InterruptReason, *, keep_queued: bool = False) -> bool:
        """Stop the turn under way; the history keeps what was played of it.

        Queued texts that are interruptible, and queued answers, are dropped unless ``keep_queued``.

        Returns:
            False: there is no turn, or it is not interruptible.
        """
        turn = self._current
        if turn is None or self._task is None or not (turn.interruptible or reason == "client"):
            return False
        span = turn.trace.child("interruption", start_s=self._paused_at if self._paused else None)
        self._current, self._paused = None, False
        if not keep_queued:
            self._queue = deque(
                queued for queued in self._queue if queued.kind == "say" and not queued.interruptible
            )
        self._interrupted.spend(1.0, loop_time())
        heard = turn.stop()
        self._task.cancel()
        turn.cancel_ending()
        self._remember(turn, heard)
        self._unanswered = self._history.unanswered or (turn.acted and not heard.text)
        self._tools.on_interrupted()
        self._history_writer.write_messages()
        self._output.changed()
        self._output.emit(_interrupted(turn, heard, reason), None)
        self._output.emit(turn.metrics(interrupted=True), None)
        span.set({"parley.reason": reason, "parley.played_ms": heard.played_ms})
        span.end()
        turn.record("interrupted")
        self._handler.on_interrupted(heard.text)
        return True

    def stop(self, response_id: str | None) -> bool:
        """Stop this response only, or any and the queued ones; returns whether a turn was stopped.

        The caller starts the next turn: :meth:`start_next`.
        """
        current = self._current
        if response_id is not None:
            is_current = current is not None and current.response_id == response_id
            return is_current and self.interrupt("client", keep_queued=True)
        self._queue.clear()
        return self.interrupt("client")

    def check_truncation(self, response_id: str, played_ms: int) -> None:
        """Prepare the truncation of the response under way; the caller then stops it.

        Raises:
            InvalidMessageError: the response has no audio yet.
        """
        current = self._current
        if current is not None and current.response_id == response_id:
            if not current.playout.length_ms:
                raise InvalidMessageError(f"response {response_id!r} has no audio yet")
            self.mark_played(response_id, played_ms)

    def truncate(self, response_id: str, played_ms: int) -> None:
        """Correct how much of a response that is over was played.

        Raises:
            InvalidMessageError: the response is unknown, or too old.
        """
        heard = self._history_writer.correct(response_id, played_ms)
        # A prepared answer has read the old history.
        self.discard()
        if self._current is None:
            self._unanswered = self._history.unanswered
        self._output.changed()
        event = Truncated(response_id=response_id, played_ms=heard.played_ms, spoken_text=heard.text)
        self._output.emit(event, None)

    def mark_played(self, response_id: str, played_ms: int) -> None:
        """Record what the client has played; a mark of a response that is over is ignored."""
        if self._current is not None and self._current.response_id == response_id:
            self._current.playout.report(played_ms, loop_time())

    def close(self, said: str = "") -> set[asyncio.Task[None]]:
        """Stop all turns; the history keeps what was played, and what the user has said since.

        ``said``: words of the user that belong to no turn yet.

        Returns:
            The tasks that are still ending.
        """
        self._open = False
        self._queue.clear()
        self.discard()
        turn, self._current = self._current, None
        if turn is not None and self._task is not None:
            heard = turn.stop()
            self._task.cancel()
            self._history_writer.add(turn.response_id, turn.rounds, turn.playout, turn.memory(heard))
            self.cut_off = _interrupted(turn, heard, "client")
            turn.record("closed")
        self._history_writer.write_messages()
        if said := f"{self.unhandled} {said}".strip():
            self._history.add_user(said)
        self._unhandled = None
        return {*self._tasks, *self._tools.close()}

    # --- turns ----------------------------------------------------------------------------

    def _make(
        self,
        source: ResponseSource,
        *,
        interruptible: bool = True,
        since: float | None = None,
        response_id: str = "",
        begun: BegunResponse | None = None,
    ) -> AgentTurn:
        self._made += 1
        number = self.turns + 1
        unique = f"{self._name}-{number}"
        # A prepared answer may be discarded; the next one gets the same number.
        name = f"{unique}.{self._made}"
        trace = self._trace.child("turn", start_s=since)
        return AgentTurn(
            number,
            response_id or unique,
            name,
            self._output,
            source,
            interruptible=interruptible,
            begun=begun,
            trace=trace,
        )

    def _begin(self, turn: AgentTurn, task: asyncio.Task[None], timing: TurnTiming) -> None:
        self.turns = turn.number
        self._current, self._task = turn, task
        self._output.changed()
        turn.release(timing)

    def _run(self, turn: AgentTurn) -> asyncio.Task[None]:
        return hold_task(self._tasks, self._perform(turn), turn.response_id)

    async def _perform(self, turn: AgentTurn) -> None:
        complete = False
        try:
            if wait_s := self._interrupted.wait_s(loop_time()):
                await asyncio.sleep(wait_s)
            await turn.run()
            await self._handler.on_spoken()
            if turn.ending is not None:
                await self._listen()
            complete = True
        except Exception:  # noqa: BLE001 - logged and reported to the client
            turn.failed = True
            if self._current is turn:
                self._handler.on_task_failed("turn")
            else:
                _log.exception("%s: a prepared answer failed", turn.response_id)
        if self._current is turn:
            self.resume("no_words", "")  # it failed while paused
            # A user who has spoken, though without interrupting, gets an answer.
            heard_out = self._unhandled is None and not self._handler.user_pending
            ends = complete and heard_out and self._handler.on_ending(turn.number, turn.ending)
            if not ends:
                turn.cancel_ending()
            self._current = None
            self._remember(turn, None if complete else turn.stop())
            self._history_writer.write_messages()
            self._output.changed()
            self._output.emit(turn.metrics(interrupted=False), None)
            turn.record("complete" if complete else "failed")
            if ends:
                self._open = False
                return
            self._handler.on_turn_ended()
            self.start_next()

    async def _listen(self) -> None:
        """Let a user speak to the end who does so over the last words of the call."""
        for _ in range(_LISTEN_CHECKS):
            if self._unhandled is not None or not self._handler.user_pending:
                return
            await asyncio.sleep(_LISTEN_S)

    def _remember(self, turn: AgentTurn, heard: HeardSpeech | None) -> None:
        self._tools.drop(turn.number)
        messages = turn.memory(heard)
        self._tools.forget_results()
        self._history_writer.add(turn.response_id, turn.rounds, turn.playout, messages)

    def start_next(self) -> None:
        """Start the next queued turn, unless one is under way."""
        if not self._open or self._current is not None:
            return
        if self._queue:
            self.discard()
            turn = self._make_next(self._queue.popleft())
            self._begin(turn, self._run(turn), TurnTiming())
        elif self._unhandled is not None:
            user, self._unhandled = self._unhandled, None
            # Its times are from before the wait.
            self.answer(replace(user, heard_at=loop_time(), detected_at=None, decided_at=None))
        else:
            self._handler.on_agent_silent()

    def _make_next(self, what: QueuedText) -> AgentTurn:
        if what.kind == "say":
            return self._make(FixedText(what.text, remember=what.remember), interruptible=what.interruptible)
        self._unanswered = self._unread = False
        self._handler.on_turn_started()
        prompt = self._prompt(what)
        return self._make(self._make_response(prompt, None))

    def _prompt(self, wanted: AgentTurnState | QueuedText) -> SystemPrompt:
        """For an answer to what the history ends with."""
        unheard = None
        if wanted.system_prompt is None and self._history.unanswered:
            unheard = self._unheard(self._history.conversation[-1].content)
        return SystemPrompt(
            self._history,
            system_prompt=wanted.system_prompt,
            use_tools=wanted.use_tools,
            must_call=wanted.must_call,
            unheard=unheard,
        )


def _queued(saying: Say | Respond) -> QueuedText:
    if isinstance(saying, Respond):
        return QueuedText(
            kind="respond",
            system_prompt=saying.system_prompt,
            use_tools=saying.use_tools,
            must_call=saying.must_call,
        )
    return QueuedText(text=saying.text, interruptible=saying.interruptible, remember=saying.remember)


def _interrupted(turn: AgentTurn, heard: HeardSpeech, reason: InterruptReason) -> Interrupted:
    return Interrupted(
        turn=turn.number,
        response_id=turn.response_id,
        played_ms=heard.played_ms,
        spoken_text=heard.text,
        reason=reason,
    )


def _joined(first: UserTurn, then: UserTurn) -> UserTurn:
    return replace(then, text=f"{first.text} {then.text}".strip()[-_MAX_JOINED:])
