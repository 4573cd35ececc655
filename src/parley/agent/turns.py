"""Whose turn it is: what the agent says, what it is about to say, and what it may have to say."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, Protocol, TypeAlias

from parley.agent.endpointer import UserTurn
from parley.agent.history_writer import HistoryWriter
from parley.agent.preemption import PreemptionBudget, PreemptiveGeneration, PreparedResponse
from parley.agent.response import FixedText, ResponseSource, SystemPrompt
from parley.agent.tools import ToolExecutor
from parley.agent.turn import AgentTurn, TurnOutput, TurnTiming
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

InterruptReason: TypeAlias = Literal["words", "speech", "command", "input", "client"]
ResumeReason: TypeAlias = Literal["noise", "backchannel", "echo", "too_short", "too_few_words", "no_words"]

_MAX_WAITING = 16
_MAX_JOINED = 8_000
"""Characters of what the user has said while it could not be answered; the oldest are forgotten."""
_log = logging.getLogger(__name__)


class AgentTurnHandler(Protocol):
    """Whoever wants to know how the agent's turns go."""

    def on_turn_started(self) -> None:
        """The agent is about to answer."""
        ...

    def on_interrupted(self) -> None:
        """The agent was made to stop."""
        ...

    def on_turn_ended(self) -> None:
        """A turn of the agent has ended by itself, well or not; another one may follow."""
        ...

    def on_agent_silent(self) -> None:
        """The agent has nothing to say any more."""
        ...

    def on_task_failed(self, what: str) -> None:
        """Called in the handler of an exception that nobody expected."""
        ...


class AgentTurns:
    """Owns the agent's turns, and writes into the history what was said in them.

    There is at most one turn under way and one prepared. What is to be said next waits in a bounded queue.

    Args:
        name: that no other session has or had.
        stage: where turns are performed.
        history: of the session; nobody else adds to it.
        desk: runs the tools of the turn under way.
        think: makes the thinker that answers a prompt.
        by_speech: whether speech interrupts; typed text and the client always do.
        handler: is told how it goes.
        counted: takes what became of each answer that was prepared: ``used`` or ``discarded``.
    """

    def __init__(
        self,
        name: str,
        stage: TurnOutput,
        history: History,
        *,
        desk: ToolExecutor,
        think: Callable[[SystemPrompt], ResponseSource],
        by_speech: bool,
        handler: AgentTurnHandler,
        counted: Callable[[str], None],
    ) -> None:
        self._name = name
        self._output = stage
        self._by_speech = by_speech
        self._history = history
        self._history_writer = HistoryWriter(history)
        self._tools = desk
        self._think = think
        self._handler = handler
        config = stage.config
        budget = PreemptionBudget(config.speculations_per_turn, config.wasted_speculations_per_minute)
        self._preemptive = PreemptiveGeneration(budget, counted)
        self._turns = 0
        self._made = 0
        self._current: AgentTurn | None = None
        self._task: asyncio.Task[None] | None = None
        self._paused = False
        self._pause_told = False
        self._next: deque[Say | Respond] = deque()
        self._waiting: UserTurn | None = None
        self._unanswered = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = False

    def open(self, greeting: Say | None = None) -> None:
        """The client is there: say the greeting first, and then what has come up meanwhile."""
        self._open = True
        if greeting is not None:
            self._next.appendleft(greeting)
        if self._next or self._waiting is not None:
            self._go_on()

    @property
    def current(self) -> AgentTurn | None:
        """The turn under way."""
        return self._current

    def change(self, stage: TurnOutput, *, by_speech: bool) -> None:
        """The next turns are performed elsewhere, with another prompt or other tools."""
        self._output, self._by_speech = stage, by_speech
        self.discard()

    # --- what the user has said -----------------------------------------------------------

    def prepare(self, text: str) -> None:
        """Begin an answer to what may be all that the user has to say."""
        self.discard()
        if self._current is not None or not self._open or not text or not self._preemptive.allowed():
            return
        prompt = SystemPrompt(self._history, text)
        turn = self._make(self._think(prompt))
        self._preemptive.keep(PreparedResponse(text, turn, prompt, self._run(turn)))

    def discard(self) -> None:
        """It was not all: throw away the answer that was begun."""
        self._preemptive.discard()

    def answer(self, user: UserTurn) -> None:
        """The user's turn is over. Without words it only counts if nobody has answered the one before."""
        current = self._current
        if not user.text:
            self.discard()
            if current is not None:
                return
            if not self._unanswered:
                self._go_on()
                return
        elif not self._open or not self._may_interrupt(current, user):
            self._waiting = user if self._waiting is None else _joined(self._waiting, user)
            return
        elif current is not None:
            self.interrupt("input" if user.requested else "words")
        if self._waiting is not None:
            user, self._waiting = _joined(self._waiting, user), None
        self._unanswered = False
        prepared = self._preemptive.take(user.text)
        if user.text:
            self._history.add_user(user.text)
        occasion = TurnTiming(
            user.heard_at,
            user.detected_at,
            user.decided_at,
            self._preemptive.turn_over(),
            prepared is not None,
        )
        self._handler.on_turn_started()
        if prepared is None:
            turn = self._make(self._think(SystemPrompt(self._history)))
            self._begin(turn, self._run(turn), occasion)
        else:
            prepared.prompt.settle()
            self._begin(prepared.turn, prepared.task, occasion)

    def say(self, saying: Say | Respond) -> None:
        """Say this, word for word, or what the language model has to say, after what is being said.

        Raises:
            OverloadedError: too much is waiting to be said.
        """
        if len(self._next) >= _MAX_WAITING:
            raise OverloadedError(f"{_MAX_WAITING} sentences are waiting to be said")
        self._next.append(saying)
        if self._current is None and self._open:
            self._go_on()

    def note(self, note: Remember) -> None:
        """Remember this after what is being said, and do not answer it.

        Raises:
            OverloadedError: too much is waiting to be remembered.
        """
        self._history_writer.note(note)
        self.discard()
        if self._current is None:
            self._history_writer.write_notes()

    # --- what the user does meanwhile -----------------------------------------------------

    def pause(self, at_ms: int, *, playback: bool) -> None:
        """The user may be speaking over the agent."""
        turn = self._current
        if turn is None or self._paused:
            return
        self._paused, self._pause_told = True, playback
        turn.pause(playback=playback)
        if playback:
            self._output.emit(Paused(turn=turn.number, response_id=turn.response_id, at_ms=at_ms), None)

    def resume(self, reason: ResumeReason, text: str) -> bool:
        """Go on with the turn if it is paused; returns whether an event has told the reason and the text."""
        turn = self._current
        if turn is None or not self._paused:
            return False
        self._paused = False
        if self._pause_told:
            event = Resumed(turn=turn.number, response_id=turn.response_id, reason=reason, text=text)
            self._output.emit(event, None)
        turn.resume()
        return self._pause_told

    def ignore(self, reason: ResumeReason, text: str) -> None:
        """Go on: what the user has said is no turn."""
        told = self.resume(reason, text)
        if text and not told and reason != "noise":
            self._output.emit(SpeechIgnored(reason=reason, text=text), None)

    def interrupt(self, reason: InterruptReason) -> None:
        """Stop the turn under way, unless it must not be; only what the user has heard of it was said."""
        turn = self._current
        if turn is None or self._task is None or not (turn.interruptible or reason == "client"):
            return
        self._current, self._paused = None, False
        self._next = deque(
            waits for waits in self._next if isinstance(waits, Say) and not waits.interruptible
        )
        heard = turn.stop()
        self._task.cancel()
        self._tools.drop(turn.number)
        self._history_writer.add(turn, heard)
        self._unanswered = self._history.unanswered or (turn.acted and not heard.text)
        self._history_writer.write_notes()
        self._output.emit(
            Interrupted(
                turn=turn.number,
                response_id=turn.response_id,
                played_ms=heard.played_ms,
                spoken_text=heard.text,
                reason=reason,
            ),
            None,
        )
        self._output.emit(turn.metrics(interrupted=True), None)
        self._handler.on_interrupted()

    def stop(self, response_id: str | None) -> None:
        """The client wants no more of this response, or of any, nor of what waits to be said."""
        current = self._current
        if response_id is not None and (current is None or current.response_id != response_id):
            return
        self._next.clear()
        if current is not None:
            self.interrupt("client")
            self._go_on()

    def truncate(self, response_id: str, played_ms: int) -> None:
        """The client knows how much of a response was heard.

        Raises:
            InvalidMessageError: nothing is known of that response any more.
        """
        current = self._current
        if current is not None and current.response_id == response_id:
            if not current.playout.sent_ms:
                raise InvalidMessageError(f"response {response_id!r} has no audio yet")
            self.played(response_id, played_ms)
            self.stop(response_id)
        heard = self._history_writer.correct(response_id, played_ms)
        # What was begun early has read the old history.
        self.discard()
        if self._current is None:
            self._unanswered = self._history.unanswered
        event = Truncated(response_id=response_id, played_ms=heard.played_ms, spoken_text=heard.text)
        self._output.emit(event, None)

    def played(self, response_id: str, played_ms: int) -> None:
        """The client has played so much; marks of a response that is over by now are late, not wrong."""
        if self._current is not None and self._current.response_id == response_id:
            self._current.playout.mark(played_ms, _now())

    def close(self) -> set[asyncio.Task[None]]:
        """Say nothing more; returns what is still ending."""
        self._open = False
        self._next.clear()
        self._waiting = None
        self.discard()
        turn, self._current = self._current, None
        if turn is not None and self._task is not None:
            turn.stop()
            self._task.cancel()
        self._tools.close()
        return set(self._tasks)

    # --- turns ----------------------------------------------------------------------------

    def _make(self, thinker: ResponseSource, *, interruptible: bool = True) -> AgentTurn:
        self._made += 1
        number = self._turns + 1
        response_id = f"{self._name}-{number}"
        # A prepared answer may be thrown away, and the one that takes its number is another.
        name = f"{response_id}.{self._made}"
        return AgentTurn(number, response_id, name, self._output, thinker, interruptible=interruptible)

    def _begin(self, turn: AgentTurn, task: asyncio.Task[None], occasion: TurnTiming) -> None:
        self._turns = turn.number
        self._current, self._task = turn, task
        turn.give(occasion)

    def _run(self, turn: AgentTurn) -> asyncio.Task[None]:
        task = asyncio.create_task(self._take(turn), name=turn.response_id)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _take(self, turn: AgentTurn) -> None:
        complete = False
        try:
            await turn.run()
            complete = True
        except Exception:  # noqa: BLE001 - logged and told to the client
            turn.failed = True
            if self._current is turn:
                self._handler.on_task_failed("turn")
            else:
                _log.exception("%s: an answer that was prepared failed", turn.response_id)
        if self._current is turn:
            self.resume("no_words", "")  # it has failed while it was paused
            self._current = None
            self._history_writer.add(turn, None if complete else turn.stop())
            self._history_writer.write_notes()
            self._output.emit(turn.metrics(interrupted=False), None)
            self._handler.on_turn_ended()
            self._go_on()

    def _go_on(self) -> None:
        """Say what is to be said next."""
        if not self._open:
            return
        if self._next:
            self.discard()
            turn = self._make_next(self._next.popleft())
            self._begin(turn, self._run(turn), TurnTiming())
        elif self._waiting is not None:
            user, self._waiting = self._waiting, None
            self.answer(user)
        else:
            self._handler.on_agent_silent()

    def _make_next(self, what: Say | Respond) -> AgentTurn:
        if isinstance(what, Say):
            recital = FixedText(what.text, remember=what.remember)
            return self._make(recital, interruptible=what.interruptible)
        self._unanswered = False
        self._handler.on_turn_started()
        prompt = SystemPrompt(self._history, system_prompt=what.system_prompt, use_tools=what.use_tools)
        return self._make(self._think(prompt))

    def _may_interrupt(self, current: AgentTurn | None, user: UserTurn) -> bool:
        return current is None or (current.interruptible and (self._by_speech or user.requested))


def _joined(first: UserTurn, then: UserTurn) -> UserTurn:
    return replace(then, text=f"{first.text} {then.text}".strip()[-_MAX_JOINED:])


def _now() -> float:
    return asyncio.get_running_loop().time()
