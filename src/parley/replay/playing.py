"""Plays a recorded call again: the agent's own code, with everything around it from the file."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextvars import Context
from datetime import datetime
from typing import Any, TypeVar, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.agent.config import AgentConfig
from parley.agent.metrics import UNMEASURED
from parley.agent.ports import Engines, TurnScoring
from parley.calls.following import FollowedCall
from parley.checkpoint import SessionState
from parley.errors import ModelUnavailableError, from_wire
from parley.protocol import ClientMessage, ServerEvent, Start
from parley.replay.answers import NOTHING, STREAMS, Answers
from parley.replay.call_log import (
    CANCELLED,
    Answer,
    AnyEntry,
    Ask,
    Header,
    Iteration,
    Outcome,
    Read,
    Stimulus,
    digest_of,
    pack,
    result_of,
    unpack,
)
from parley.replay.loop import ReplayLoop
from parley.replay.session import CallCourse, CourseSession
from parley.tools.base import ReportProgress

T = TypeVar("T")
_ENDED_AT_ONCE = frozenset({"abort", "close"})
_AFTER_S = 5.0
"""Behind the end of the file a call is played that has not ended by then."""


class Absent:
    """In the place of all that a session asks through its course, which never asks it."""

    def __getattr__(self, name: str) -> Callable[..., Absent]:
        return lambda *_, **__: self


class _PlayedFuture(asyncio.Future[Outcome]):
    """Ends as the file says, also where it is cancelled, until it is ``released``."""

    released = False
    closes = False
    """Whether it is the end of a request that is waited for."""
    _is_cancelled = False

    def cancel(self, msg: Any = None) -> bool:  # noqa: ARG002 - of the base
        self._is_cancelled = True
        return super().cancel() if self.released else not self.done()

    def end(self, outcome: Outcome) -> None:
        """The outcome has come."""
        if outcome == CANCELLED:
            super().cancel()
        else:
            self.set_result(outcome)

    def release(self) -> None:
        """From now on it ends at once where it is cancelled."""
        self.released = True
        if self._is_cancelled:
            super().cancel()


class Player(CallCourse):
    """Plays one call. Its steps are those of the file as long as the agent does as it did."""

    def __init__(self, header: Header, entries: list[AnyEntry], start: Start, config: AgentConfig) -> None:
        super().__init__(header.seed, datetime.fromisoformat(header.started))
        self.loop = ReplayLoop()
        self.sent_events: list[tuple[float, bytes, bytes]] = []
        """What the client was sent: when, the event, and the digest of its audio."""
        self.diverged_at: float | None = None
        """When the agent first did otherwise than in the file."""
        self.unanswered = ""
        """What it has then asked that the file has no answer to: it is not played on. Empty: nothing."""
        self._header, self._entries = header, entries
        self._start, self._config = start, config
        self._session: CourseSession
        self._free: Answers | None = None
        self._is_over = self._is_closing = False
        self._contents: dict[int, bytes] = {}
        self._asked: list[tuple[str, bytes]] = []
        self._expected = 0  # requests of the file so far
        self._pending: dict[int, _PlayedFuture] = {}
        self._reporters: dict[int, ReportProgress] = {}
        self._reads: dict[bytes, list[Read]] = defaultdict(list)
        self._read_count: dict[bytes, int] = defaultdict(int)
        for entry in entries:
            if isinstance(entry, Read):
                self._reads[entry.key].append(entry)

    def run(self) -> None:
        """Play the call."""
        with self.loop.running():
            for index, entry in enumerate(self._entries):
                if not self._follow(entry):
                    self.diverged_at = self.loop.now
                    self._go_on_freely(index)
                    break
            self._close()

    def _close(self) -> None:
        """End what is left of a call that has not ended: nothing of it counts."""
        self._is_closing = True
        ended: set[asyncio.Task[Any]] = set()
        while tasks := asyncio.all_tasks(self.loop):
            for task in tasks - ended:
                task.cancel()
            ended |= tasks
            for future in self._pending.values():
                future.release()
                future.cancel()
            due = self.loop.next_timer if self.loop.is_idle else None
            if due is None and self.loop.is_idle:
                break  # of no task that heeds its cancellation
            self.loop.begin_iteration(max(self.loop.now, due or 0.0))
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
                return self._begin_iteration(entry.now)
            case Stimulus():
                self._apply(entry)
            case Ask():
                self._expected += 1
                asked = self._asked[entry.number] if entry.number < len(self._asked) else None
                return asked == (entry.kind, entry.digest)
            case Answer():
                return self._answer(entry)
            case _:
                pass
        return True

    def _begin_iteration(self, now: float) -> bool:
        if not self.loop.is_over or len(self._asked) != self._expected:
            return False
        self.loop.begin_iteration(now)
        if self._expected == 0 and self.steps == 0 and not hasattr(self, "_session"):
            self._open()
        return True

    def _answer(self, answer: Answer) -> bool:
        future = self._pending.pop(answer.number, None)
        if future is None:
            return False
        future.end(answer.outcome)
        self.loop.run_newest()
        return True

    def _open(self) -> None:
        absent = cast("Any", Absent())
        parts = dict.fromkeys(self._header.has, absent)
        if "reads_turns" in parts:
            parts["reads_turns"] = True
        if "turn" in parts:
            parts["turn"] = TurnScoring(absent, lambda _: None)
        engines = Engines(lambda *_: absent, absent, absent, **parts)
        followed = _Followed(self._header.mark) if self._header.mark else None
        self._session = CourseSession(
            self,
            self._header.session,
            self._start,
            engines,
            absent,
            self._config,
            metrics=UNMEASURED,
            followed=cast("FollowedCall", followed),
        )

    def _apply(self, stimulus: Stimulus) -> None:
        session, data = self._session, stimulus.data
        match stimulus.kind:
            case "run":
                self._work = self.loop.create_task(session.run())
                self.loop.run_newest()
            case "audio":
                session.push_audio(data)
            case "message":
                session.on_message(data)
            case "end":
                session.end(cast("Any", data.decode()))
            case "go_away":
                session.go_away(int(data))
            case "error":
                session.report_error(from_wire(data.decode()))
            case "progress":
                number, value = unpack(data, tuple[int, Any])
                self._reporters[number](value)

    # --- otherwise than in the file ---------------------------------------------------------

    def _go_on_freely(self, index: int) -> None:
        """Play the rest by its times: what comes from outside then, and answers as late as they were."""
        self._free = Answers(self._entries, index, [event for _, event, _ in self.sent_events])
        now = last = self.loop.now
        for entry in self._entries[index:]:
            if isinstance(entry, Iteration):
                last = now = entry.now
            elif isinstance(entry, Stimulus):
                self._at(now, self._apply_freely, entry)
        for number, future in tuple(self._pending.items()):
            future.release()
            if not future.done():
                self._answer_freely(number, future)
        self._at(last + _AFTER_S, self.finish)
        while not (self._is_over or self.unanswered):
            if self.loop.is_over:
                due = self.loop.now if not self.loop.is_idle else self.loop.next_timer
                self.loop.begin_iteration(max(self.loop.now, self.loop.now if due is None else due))
            else:
                self.loop.run_next()

    def _at(self, when: float, do: Callable[..., object], *args: Any) -> None:
        self.loop.call_at(when, do, *args, context=Context())

    def _apply_freely(self, stimulus: Stimulus) -> None:
        assert self._free is not None
        if stimulus.kind == "progress":
            return  # its request may have another number
        if stimulus.kind != "message" or self._free.is_timely(stimulus.data):
            self._apply(stimulus)

    def _answer_freely(self, number: int, future: _PlayedFuture) -> None:
        assert self._free is not None
        kind, digest = self._asked[number]
        if kind in _ENDED_AT_ONCE or (future.closes and kind in STREAMS):
            self._at(self.loop.now, self._end_freely, future, NOTHING, kind)
            return
        found = self._free.next_outcome(number, kind, digest, self._contents[number])
        if found is None:
            self.unanswered = kind
        else:
            self._at(self.loop.now + found[0], self._end_freely, future, found[1], kind)

    def _end_freely(self, future: _PlayedFuture, outcome: Outcome, kind: str) -> None:
        if future.done():
            return
        if outcome == CANCELLED:  # what would have come if the agent had waited is unknown
            self.unanswered = kind
        else:
            future.end(outcome)

    def finish(self) -> None:
        """See the base."""
        self._is_over = True

    # --- what the session asks ------------------------------------------------------------

    def sent_as(self, event: bytes, audio: bytes) -> None:
        """See the base."""
        if self._is_closing:
            return
        self.sent_events.append((self.loop.now, event, audio))
        if self._free is None:
            return
        if (responses := self._free.on_event(event)) is None:
            self.unanswered = "tool"
        for delay_s, message in responses or ():
            self._at(self.loop.now + delay_s, self._session.on_message, message)

    def asked(self, number: int, kind: str, digest: bytes, content: bytes) -> None:
        """See the base."""
        self._asked.append((kind, digest))
        self._contents[number] = content

    async def wait(self, number: int, answers: Any, make: Callable[[], Awaitable[T]]) -> T:  # noqa: ARG002
        """See the base."""
        self._pending[number] = future = _PlayedFuture(loop=self.loop)
        future.closes = answers is None
        if self._is_closing:
            future.release()
            future.cancel()
        elif self._free is not None:
            future.release()
            self._answer_freely(number, future)
        return cast("T", result_of(await future, answers))

    def read(self, kind: str, question: Any, answers: Any, get: Callable[[], T]) -> T:  # noqa: ARG002
        """See :class:`parley.replay.ports.Port`."""
        key = digest_of(pack([kind, question]))
        number = self._read_count[key]
        self._read_count[key] += 1
        found = [one for one in self._reads[key] if one.number <= number]
        if not found:
            self.unanswered = kind
            raise ModelUnavailableError(f"{kind} was not asked when the call was recorded")
        return cast("T", result_of(found[-1].outcome, answers))

    def tell(self, do: Callable[[], object]) -> None:
        """See :class:`parley.replay.ports.Port`."""

    def reporter(self, report: ReportProgress) -> ReportProgress:
        """See :class:`parley.replay.ports.Port`."""
        self._reporters[self.asks] = report
        return report


class _Followed:
    """Of :class:`parley.calls.following.FollowedCall` what is seen by the session."""

    def __init__(self, mark: bytes) -> None:
        self._state = msgspec.json.decode(mark, type=SessionState)

    def mark(self, state: SessionState) -> SessionState:
        mine = self._state
        return msgspec.structs.replace(
            state, call=mine.call, call_part=mine.call_part, call_seal=mine.call_seal
        )

    def on_audio(self, audio: NDArray[np.int16], *, muted: bool) -> None:
        pass

    def on_message(self, message: ClientMessage) -> None:
        pass

    def on_event(self, event: ServerEvent, audio: NDArray[np.int16] | None = None) -> None:
        pass
