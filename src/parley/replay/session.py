"""A session that is recorded or replayed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from parley.agent.config import AgentConfig
from parley.agent.metrics import AgentMetrics
from parley.agent.ports import Engines, Outlet
from parley.agent.session import AgentSession
from parley.calls.following import FollowedCall
from parley.chance import current_chance
from parley.errors import ParleyError
from parley.protocol import CloseReason, ServerEvent, Start, encode
from parley.replay.call_log import digest_of, pack
from parley.replay.course import Course, find_course
from parley.replay.ports import NO_AUDIO, Port, PortOutlet, through

T = TypeVar("T")


class CallCourse(Course, Port, ABC):
    """What a :class:`CourseSession` follows; its methods get what the entries of a file have."""

    asks = 0
    """Requests so far."""

    def stimulus(self, kind: str, data: bytes = b"") -> None:
        """Something has come from outside."""

    def finish(self) -> None:
        """The session has ended."""

    def sent(self, event: ServerEvent, audio: NDArray[np.int16] | None) -> None:
        """See :class:`parley.replay.ports.Port`."""
        self.sent_as(encode(event), b"" if audio is None else digest_of(audio.astype("<i2").tobytes()))

    @abstractmethod
    def sent_as(self, event: bytes, audio: bytes) -> None:
        """The client is sent an event, with audio that has this digest."""

    @abstractmethod
    def asked(self, number: int, kind: str, digest: bytes, content: bytes) -> None:
        """A request begins."""

    @abstractmethod
    async def wait(self, number: int, answers: Any, make: Callable[[], Awaitable[T]]) -> T:
        """The next outcome of a request: what ``make`` returns, which is an ``answers``."""

    def _begin(self, kind: str, question: Any, audio: NDArray[np.int16] = NO_AUDIO) -> int:
        number = self.asks
        self.asks += 1
        self.asked(number, kind, digest_of(pack([kind, question, audio])), pack(question))
        return number

    async def ask(
        self,
        kind: str,
        question: Any,
        answers: Any,
        make: Callable[[], Awaitable[T]],
        audio: NDArray[np.int16] = NO_AUDIO,
    ) -> T:
        """See :class:`parley.replay.ports.Port`."""
        return await self.wait(self._begin(kind, question, audio), answers, make)

    async def stream(
        self, kind: str, question: Any, answers: Any, make: Callable[[], AsyncGenerator[T, None]]
    ) -> AsyncGenerator[T, None]:
        """See :class:`parley.replay.ports.Port`."""
        number, items = self._begin(kind, question), make()
        try:
            while found := await self.wait(number, list[answers], lambda: _next(items)):
                yield found[0]
        finally:
            await self.wait(number, None, items.aclose)


async def _next(items: AsyncGenerator[T, None]) -> list[T]:
    """The next item; empty: there is none."""
    async for item in items:
        return [item]
    return []


class CourseSession(AgentSession):
    """A session all of whose doings follow from a course."""

    def __init__(  # noqa: PLR0917 - those of the base, behind one more
        self,
        course: CallCourse,
        session_id: str,
        start: Start,
        engines: Engines,
        outlet: Outlet,
        config: AgentConfig,
        *,
        metrics: AgentMetrics,
        followed: FollowedCall | None = None,
    ) -> None:
        self._course = course
        entered = current_chance.set(course)
        try:
            super().__init__(
                session_id,
                start,
                through(course, engines),
                PortOutlet(course, outlet),
                config,
                metrics=metrics,
                followed=followed,
            )
        finally:
            current_chance.reset(entered)

    def _from_outside(self, kind: str, data: Any = "") -> None:
        if find_course(None) is not self._course:
            self._course.stimulus(kind, data if isinstance(data, bytes) else str(data).encode())

    def push_audio(self, raw: bytes) -> None:
        """See the base."""
        self._from_outside("audio", raw)
        super().push_audio(raw)

    def on_message(self, raw: bytes) -> None:
        """See the base."""
        self._from_outside("message", raw)
        super().on_message(raw)

    def end(self, reason: CloseReason) -> None:
        """See the base."""
        self._from_outside("end", reason)
        super().end(reason)

    def go_away(self, time_left_ms: int) -> None:
        """See the base."""
        self._from_outside("go_away", time_left_ms)
        super().go_away(time_left_ms)

    def report_error(self, error: ParleyError) -> None:
        """See the base."""
        self._from_outside("error", error.to_wire())
        super().report_error(error)

    async def run(self) -> None:
        """See the base."""
        self._from_outside("run")
        entered = current_chance.set(self._course)
        try:
            await super().run()
        finally:
            current_chance.reset(entered)
            self._course.finish()
