"""A session all of whose doings go through one port, which records them, or plays what was recorded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Literal

import msgspec
import numpy as np

from parley.agent.config import AgentConfig
from parley.agent.ports import Engines, Outlet, Scoring
from parley.agent.session import AgentSession
from parley.asr.messages import AsrReply
from parley.checkpoint import CHECKPOINT_VERSION, SessionState
from parley.knowledge.passages import Passage
from parley.llm.messages import LlmEvent
from parley.protocol import AgentSummary, Start, Tool
from parley.replay.call_log import digest_of, leave_audio_out, pack
from parley.replay.course import Course, find_course
from parley.tools.base import ReportProgress, ToolOutcome
from parley.tts.messages import SpeechChunk

_UNIQUE = ("request_id", "traceparent", "cache_salt", "utterance")
"""Fields of requests that are made anew for each."""


class Port(Course, ABC):
    """The course of a call with all that its session asks and does.

    ``kind`` and ``question`` say what is asked; ``answers`` is the type of the answer.
    """

    asks = 0
    """Requests so far."""

    @abstractmethod
    def stimulus(self, kind: str, data: bytes) -> None:
        """Something has come from outside."""

    @abstractmethod
    def finish(self) -> None:
        """The session has ended."""

    @abstractmethod
    def read(self, kind: str, question: Any, answers: Any, get: Callable[[], Any]) -> Any:
        """What ``get`` returns at once."""

    @abstractmethod
    def tell(self, kind: str, question: Any, answers: Any, do: Callable[[], Any]) -> None:
        """Call ``do``, which has no result."""

    @abstractmethod
    def reporter(self, report: ReportProgress) -> ReportProgress:
        """What the next request, a tool's, may call at any time in the place of ``report``."""

    @abstractmethod
    def asked(self, number: int, kind: str, digest: bytes, content: bytes) -> None:
        """A request begins."""

    @abstractmethod
    async def wait(self, number: int, answers: Any, make: Callable[[], Awaitable[Any]]) -> Any:
        """The next outcome of a request: what ``make`` returns."""

    def _begin(self, kind: str, question: Any) -> int:
        number = self.asks
        self.asks += 1
        self.asked(number, kind, digest_of([kind, question]), pack(question, leave_audio_out))
        return number

    def send(self, kind: str, question: Any, answers: Any, do: Callable[[], Any]) -> None:
        """Have something done for the client."""
        self._begin(kind, question)
        self.tell(kind, question, answers, do)

    async def ask(self, kind: str, question: Any, answers: Any, make: Callable[[], Awaitable[Any]]) -> Any:
        """The result of ``make``."""
        return await self.wait(self._begin(kind, question), answers, make)

    async def stream(
        self, kind: str, question: Any, answers: Any, make: Callable[[], AsyncGenerator[Any, None]]
    ) -> AsyncGenerator[Any, None]:
        """The items of ``make``."""
        number, items = self._begin(kind, question), _made(make)
        try:
            while found := await self.wait(number, list[answers], lambda: _next(items)):
                yield found[0]
        finally:
            await self.wait(number, None, items.aclose)


async def _made(make: Callable[[], AsyncGenerator[Any, None]]) -> AsyncGenerator[Any, None]:
    async with aclosing(make()) as items:
        async for item in items:
            yield item


async def _next(items: AsyncGenerator[Any, None]) -> list[Any]:
    """The next item; empty: there is none."""
    async for item in items:
        return [item]
    return []


class Asked:
    """What is asked through a port in the place of ``inner``, which a replay does not have."""

    def __init__(self, port: Port, inner: Any, number: int = 0) -> None:
        self.port, self.inner, self.number = port, inner, number


class _Member:
    def __set_name__(self, owner: type, name: str) -> None:
        self.name, self.kind = name, f"{owner.__name__.removeprefix('Port').lower()}.{name}"


@dataclass
class Value(_Member):
    """An attribute of ``inner``, or what it is where that has none."""

    answers: Any
    default: Any = None

    def __get__(self, asked: Asked, _: type) -> Any:
        get = lambda: getattr(asked.inner, self.name, self.default)  # noqa: E731
        return asked.port.read(self.kind, [asked.number], self.answers, get)


@dataclass
class Method(_Member):
    """A method of ``inner``, called by one of :class:`Port`. Named arguments are no part of the question."""

    how: Literal["read", "tell", "send", "ask", "stream"]
    answers: Any = None

    def __get__(self, asked: Asked, _: type) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            if (report := options.get("on_progress")) is not None:
                options["on_progress"] = asked.port.reporter(report)
            make = lambda: getattr(asked.inner, self.name)(*args, **options)  # noqa: E731
            question = [asked.number, *map(_bare, args)]
            return getattr(asked.port, self.how)(self.kind, question, self.answers, make)

        return call


def _bare(value: Any) -> Any:
    if not isinstance(value, msgspec.Struct):
        return value
    return msgspec.structs.replace(value, **{name: "" for name in _UNIQUE if hasattr(value, name)})


class PortRecognizer(Asked):
    """:class:`parley.engines.base.Recognizer`."""

    model = Value(str)
    unavailable = Value(list[str], ())
    languages = Method("ask", list[str])
    check = Method("ask")
    start = Method("ask")
    push = Method("ask", AsrReply)
    begin_turn = Method("tell")
    flush = Method("ask", AsrReply)
    close = Method("ask")


class PortChat(Asked):
    """:class:`parley.engines.base.ChatModel`, and ``NamesModel``."""

    model = Value(str, "")
    generate = Method("stream", LlmEvent)
    abort = Method("ask")


class PortSynthesizer(Asked):
    """:class:`parley.engines.base.Synthesizer`."""

    languages = Value(list[str])
    voices = Value(list[str] | None)
    check_known = Method("read", bool)
    check_voice = Method("ask")
    speak = Method("stream", tuple[SpeechChunk, np.ndarray])  # type: ignore[type-arg]
    abort = Method("ask")


class PortTurn(Asked):
    """:class:`parley.engines.base.TurnModel`."""

    score = Method("ask", float)


class PortTools(Asked):
    """:class:`parley.tools.base.ServerTools`."""

    names = Value(list[str])
    tools = Value(list[Tool])
    timeout_s = Method("read", float | None)
    call = Method("ask", ToolOutcome)


class PortKnowledge(Asked):
    """:class:`parley.knowledge.passages.KnowledgeSearch`."""

    search = Method("ask", list[Passage])


class PortAgents(Asked):
    """Of :class:`parley.agents.registry.AgentRegistry` what a session shows its client."""

    summaries = Value(list[AgentSummary])


class PortOutlet(Asked):
    """:class:`parley.agent.ports.Outlet`."""

    send = Method("send")
    finish = Method("send")
    is_cancelled = Method("ask", bool)


class PortFollowed(Asked):
    """:class:`parley.calls.following.FollowedCall`."""

    on_audio = Method("tell")
    on_message = Method("tell")
    on_event = Method("tell")

    def mark(self, state: SessionState) -> SessionState:
        """A state with the mark of this call."""
        get = lambda: self.inner.mark(SessionState(version=CHECKPOINT_VERSION))  # noqa: E731
        mark = self.port.read("followed.mark", [], SessionState, get)
        return msgspec.structs.replace(
            state, call=mark.call, call_part=mark.call_part, call_seal=mark.call_seal
        )


PARTS: dict[str, type[Asked]] = {
    "turn": PortTurn,
    "server_tools": PortTools,
    "knowledge": PortKnowledge,
    "agents": PortAgents,
}
"""The parts of :class:`Engines` that can be None."""


def _through(port: Port, engines: Engines) -> Engines:
    """The engines, asked through ``port``."""
    numbers = count()
    inner = {name: getattr(engines, name) for name in PARTS}
    parts: dict[str, Any] = {name: PARTS[name](port, one) for name, one in inner.items() if one is not None}
    if engines.turn is not None:
        parts["turn"] = Scoring(PortTurn(port, engines.turn.model), engines.turn.failed)
    return replace(
        engines,
        recognizer=lambda *names: PortRecognizer(port, engines.recognizer(*names), next(numbers)),
        chat=PortChat(port, engines.chat),
        synthesizer=PortSynthesizer(port, engines.synthesizer),
        **parts,
    )


STIMULI = ("push_audio", "on_message", "end", "go_away", "report_error")
"""Methods of a session that are called from outside."""


def _stimulus(name: str) -> Any:
    def do(self: CourseSession, argument: Any) -> None:
        if find_course(None) is not self.port:
            self.port.stimulus(name, pack(argument))
        getattr(AgentSession, name)(self, argument)

    return do


class CourseSession(AgentSession):
    """A session that goes through a port; the other arguments are those of the base."""

    def __init__(  # noqa: PLR0917 - those of the base behind one more
        self,
        port: Port,
        name: str,
        start: Start,
        engines: Engines,
        outlet: Outlet,
        config: AgentConfig,
        **more: Any,
    ) -> None:
        self.port = port
        if more["followed"] is not None:
            more["followed"] = PortFollowed(port, more["followed"])
        with port.entered():
            super().__init__(name, start, _through(port, engines), PortOutlet(port, outlet), config, **more)

    push_audio, on_message, end, go_away, report_error = map(_stimulus, STIMULI)

    async def run(self) -> None:
        """See the base."""
        self.port.stimulus("run", b"")
        with self.port.entered():
            try:
                await super().run()
            finally:
                self.port.finish()
