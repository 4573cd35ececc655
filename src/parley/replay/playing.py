"""Plays a recorded call again: the agent's own code, with everything around it from the file."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextvars import Context
from datetime import datetime
from typing import Any

from parley.agent.config import NO_MODEL, AgentConfig
from parley.agent.metrics import UNMEASURED
from parley.agent.ports import Engines, Scoring
from parley.errors import ModelUnavailableError, from_wire
from parley.protocol import Start
from parley.replay.answers import NOTHING, STREAMS, Answers
from parley.replay.call_log import (
    CANCELLED,
    AnyEntry,
    Ask,
    AskAnswer,
    AskOutcome,
    Header,
    Iteration,
    Read,
    Stimulus,
    digest_of,
    event_of,
    result_of,
    unpack,
)
from parley.replay.course import ReplayLoop
from parley.replay.ports import STIMULI, CourseSession, Port
from parley.tools.base import ReportProgress

_ENDED_AT_ONCE = STREAMS | {"chat.abort", "synthesizer.abort", "recognizer.close"}
_AFTER_S = 5.0
"""Behind the end of the file a call is played that has not ended by then."""
_MAX_CLOSING = 1_000
"""Iterations in which the tasks of a call end that is not played on."""


class _PlayedFuture(asyncio.Future[AskOutcome]):
    """Ends as the file says, also where it is cancelled, until it is ``released``."""

    closes = False
    """Whether it is the end of a request that is waited for."""
    _is_released = _is_cancelled = False

    def cancel(self, msg: Any = None) -> bool:  # noqa: ARG002 - of the base
        self._is_cancelled = True
        return super().cancel() if self._is_released else not self.done()

    def end(self, outcome: AskOutcome) -> None:
        """The outcome has come."""
        if outcome == CANCELLED:
            super().cancel()
        else:
            self.set_result(outcome)

    def release(self) -> None:
        """From now on it ends at once where it is cancelled."""
        self._is_released = True
        if self._is_cancelled:
            super().cancel()


class Player(Port):
    """Plays one call. Its steps are those of the file as long as the agent does as it did."""

    def __init__(self, header: Header, entries: list[AnyEntry], start: Start, config: AgentConfig) -> None:
        super().__init__(header.seed, datetime.fromisoformat(header.started))
        self.loop = ReplayLoop()
        self.asked_at: list[tuple[float, Ask]] = []
        """All that the agent has asked, and when."""
        self.missed: tuple[float, AnyEntry] | None = None
        """When the agent has first not done what the file has next; None: it has done all as it did."""
        self.unanswered = ""
        """What the agent has asked that the file has no answer to: it is not played on. Empty: nothing."""
        self._header, self._entries = header, entries
        self._start, self._config = start, config
        self._session: CourseSession | None = None
        self._free: Answers | None = None
        """Not None: the agent has done otherwise than in the file."""
        self._is_over = self._is_closing = False
        self._expected = 0  # requests of the file so far
        self._pending: dict[int, _PlayedFuture] = {}
        self._reporters: dict[int, ReportProgress] = {}
        self._reads: dict[bytes, list[Read]] = defaultdict(list)
        for entry in entries:
            if isinstance(entry, Read):
                self._reads[entry.key].append(entry)

    def run(self) -> None:
        """Play the call."""
        with self.loop.running():
            try:
                for index, entry in enumerate(self._entries):
                    if not self._follow(entry):
                        self.missed = self.loop.now, entry
                        self._go_on_freely(index)
                        break
            finally:
                self._close()

    def _close(self) -> None:
        """End what is left of a call that has not ended: nothing of it counts."""
        self._is_closing = True
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        for future in self._pending.values():
            future.release()
            future.cancel()
        for _ in range(_MAX_CLOSING):
            if not asyncio.all_tasks(self.loop) or (due := self.loop.next_time()) is None:
                break
            self.loop.begin_iteration(due)
            while not self.loop.is_over:
                self.loop.run_next()

    # --- as in the file -------------------------------------------------------------------

    def _follow(self, entry: AnyEntry) -> bool:
        """Do what an entry says, behind the steps before it; returns whether the agent has done so, too."""
        while self.steps < entry.at:
            if self.loop.is_over:
                return False
            self.loop.run_next()
        match entry:
            case Iteration():
                if not self.loop.is_over or len(self.asked_at) != self._expected:
                    return False
                self.loop.begin_iteration(entry.now)
                if self._session is None:
                    self._session = self._open()
            case Stimulus():
                self._apply(entry)
            case Ask():
                self._expected += 1
                asked = [(ask.kind, ask.digest) for _, ask in self.asked_at[self._expected - 1 :][:1]]
                return asked == [(entry.kind, entry.digest)]
            case AskAnswer():
                if (future := self._pending.pop(entry.number, None)) is None:
                    return False
                future.end(entry.outcome)
                self.loop.run_newest()
            case _:
                pass
        return True

    def _open(self) -> CourseSession:
        parts: dict[str, Any] = dict.fromkeys(self._header.has, True)
        more = {"metrics": UNMEASURED, "followed": parts.pop("followed", None)}
        nothing: Any = None  # what is asked through a port is never used
        if parts.pop("turn", False) and self._config.turn != NO_MODEL:
            parts["turn"] = Scoring(nothing, lambda _: None)
        if self._config.turn_text == NO_MODEL:
            parts.pop("reads_turns", None)
        engines = Engines(lambda *_: nothing, nothing, nothing, **parts)
        return CourseSession(self, self._header.session, self._start, engines, nothing, self._config, **more)

    def _apply(self, stimulus: Stimulus) -> None:
        assert self._session is not None, "a call begins with its session"
        kind = stimulus.kind
        if kind == "run":
            self._work = self.loop.create_task(self._session.run())
            self.loop.run_newest()
        elif kind == "progress":
            number, value = unpack(stimulus.data)
            self._reporters[number](value)
        elif kind in STIMULI:
            argument = unpack(stimulus.data)
            getattr(self._session, kind)(from_wire(argument) if kind == "report_error" else argument)
        else:
            raise ValueError(kind)

    # --- otherwise than in the file ---------------------------------------------------------

    def _go_on_freely(self, index: int) -> None:
        """Play the rest by its times: what comes from outside then, and answers as late as they were."""
        self._free = Answers(self._entries, index)
        now = self.loop.now
        for entry in self._entries[index:]:
            if isinstance(entry, Iteration):
                now = entry.now
            elif isinstance(entry, Stimulus):
                self._at(now, self._apply_freely, entry)
        self._at(now + _AFTER_S, self.finish)
        for number, future in tuple(self._pending.items()):
            self._answer_freely(number, future)
        while not (self._is_over or self.unanswered):
            if self.loop.is_over:
                self.loop.begin_iteration(self.loop.next_time() or self.loop.now)
            else:
                self.loop.run_next()

    def _at(self, when: float, do: Callable[..., object], *args: Any) -> None:
        self.loop.call_at(when, do, *args, context=Context())

    def _apply_freely(self, stimulus: Stimulus) -> None:
        assert self._free is not None
        # The request of a tool's progress may have another number.
        if stimulus.kind != "progress" and self._free.is_timely(stimulus):
            self._apply(stimulus)

    def _answer_freely(self, number: int, future: _PlayedFuture) -> None:
        assert self._free is not None
        future.release()
        if future.done():
            return
        _, ask = self.asked_at[number]
        ends = future.closes and ask.kind in _ENDED_AT_ONCE
        found = (0.0, NOTHING) if ends else self._free.answer(ask)
        if found is None:
            self.unanswered = ask.kind
        else:
            self._at(self.loop.now + found[0], self._end_freely, future, found[1], ask.kind)

    def _end_freely(self, future: _PlayedFuture, outcome: AskOutcome, kind: str) -> None:
        if future.done():
            return
        if outcome == CANCELLED:  # what would have come if the agent had waited is unknown
            self.unanswered = kind
        else:
            future.end(outcome)

    # --- what the session asks ------------------------------------------------------------

    def stimulus(self, kind: str, data: bytes) -> None:
        """See the base."""

    def finish(self) -> None:
        """See the base."""
        self._is_over = True

    def read(self, kind: str, question: Any, answers: Any, get: Callable[[], Any]) -> Any:  # noqa: ARG002
        """See the base."""
        if not (reads := self._reads[digest_of([kind, question])]):
            self.unanswered = kind
            raise ModelUnavailableError(f"{kind} was not asked when the call was recorded")
        before = bisect_right(reads, self.steps, key=lambda read: read.at)
        return result_of(reads[max(0, before - 1)].outcome, answers)

    def tell(self, kind: str, question: Any, answers: Any, do: Callable[[], Any]) -> None:
        """See the base."""

    def reporter(self, report: ReportProgress) -> ReportProgress:
        """See the base."""
        self._reporters[self.asks] = report
        return report

    def asked(self, number: int, kind: str, digest: bytes, content: bytes) -> None:
        """See the base."""
        if self._is_closing:
            return
        ask = Ask(self.steps, number, kind, digest, content)
        self.asked_at.append((self.loop.now, ask))
        if self._free is None or (event := event_of(ask)).get("type") != "tool_request":
            return
        if (responses := self._free.respond(event)) is None:
            self.unanswered = "tool of the client"
        for delay_s, message in responses or ():
            self._at(self.loop.now + delay_s, self._apply, Stimulus(0, "on_message", message))

    async def wait(self, number: int, answers: Any, make: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ARG002
        """See the base."""
        self._pending[number] = future = _PlayedFuture(loop=self.loop)
        future.closes = answers is None
        if self._is_closing:
            future.release()
            future.cancel()
        elif self._free is not None:
            self._answer_freely(number, future)
        return result_of(await future, answers)
