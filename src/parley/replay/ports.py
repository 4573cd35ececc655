"""All that a session asks of what is around it, as requests that can be recorded and answered again."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Protocol, TypeVar, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley import protocol
from parley.agent.ports import Engines, Outlet, TurnScoring
from parley.agents.registry import AgentRegistry
from parley.asr.messages import AsrOptions, AsrReply
from parley.engines.base import NamesModel, Recognizer
from parley.knowledge.passages import Passage
from parley.llm.messages import GenerateRequest, LlmEvent
from parley.protocol import ServerEvent, Tool
from parley.tools.base import ReportProgress, ToolOutcome
from parley.tts.messages import SpeakRequest, SpeechChunk

T = TypeVar("T")
NO_AUDIO = np.zeros(0, np.int16)
_UNIQUE = ("request_id", "traceparent", "cache_salt", "utterance")
"""Fields of requests that are made anew for each."""


class Port(Protocol):
    """Asks, and notes or knows what is answered.

    ``kind`` and ``question`` say what is asked; ``answers`` is the type of the answer.
    """

    def read(self, kind: str, question: Any, answers: Any, get: Callable[[], T]) -> T:
        """What ``get`` returns at once."""
        ...

    def tell(self, do: Callable[[], object]) -> None:
        """Have something done that has no answer."""
        ...

    async def ask(
        self,
        kind: str,
        question: Any,
        answers: Any,
        make: Callable[[], Awaitable[T]],
        audio: NDArray[np.int16] = NO_AUDIO,
    ) -> T:
        """The result of ``make``."""
        ...

    def stream(
        self, kind: str, question: Any, answers: Any, make: Callable[[], AsyncGenerator[T, None]]
    ) -> AsyncGenerator[T, None]:
        """The items of ``make``."""
        ...

    def reporter(self, report: ReportProgress) -> ReportProgress:
        """What a tool may call at any time in the place of ``report``."""
        ...

    def sent(self, event: ServerEvent, audio: NDArray[np.int16] | None) -> None:
        """The client is sent an event."""
        ...


def through(port: Port, engines: Engines) -> Engines:
    """The engines, asked through ``port``."""
    turn, tools, knowledge, agents = engines.turn, engines.server_tools, engines.knowledge, engines.agents
    numbers = count()
    return replace(
        engines,
        recognizer=lambda *names: PortRecognizer(port, next(numbers), engines.recognizer(*names)),
        chat=PortChat(port, engines),
        synthesizer=PortSynthesizer(port, engines),
        turn=None if turn is None else TurnScoring(PortTurnModel(port, turn), turn.failed),
        server_tools=None if tools is None else PortTools(port, engines),
        knowledge=None if knowledge is None else PortKnowledge(port, engines),
        agents=None if agents is None else cast("AgentRegistry", PortAgents(port, agents)),
    )


def _bare(request: msgspec.Struct) -> msgspec.Struct:
    return msgspec.structs.replace(request, **{name: "" for name in _UNIQUE if hasattr(request, name)})


class PortRecognizer:
    """:class:`parley.engines.base.Recognizer`."""

    def __init__(self, port: Port, number: int, recognizer: Recognizer) -> None:
        self._port, self._number, self._inner = port, number, recognizer
        self.unavailable: Sequence[str] = ()

    @property
    def model(self) -> str:
        """See the base."""
        return self._port.read("model", self._number, str, lambda: self._inner.model)

    async def languages(self) -> Sequence[str]:
        """See the base."""

        async def ask() -> tuple[list[str], list[str]]:
            return list(await self._inner.languages()), list(getattr(self._inner, "unavailable", ()))

        kind = tuple[list[str], list[str]]
        languages, self.unavailable = await self._port.ask("languages", self._number, kind, ask)
        return languages

    async def check(self, options: AsrOptions) -> None:
        """See the base."""
        question = [self._number, _bare(options)]
        await self._port.ask("check", question, None, lambda: self._inner.check(options))

    async def start(self, options: AsrOptions) -> None:
        """See the base."""
        question = [self._number, _bare(options)]
        await self._port.ask("start", question, None, lambda: self._inner.start(options))

    async def push(self, audio: NDArray[np.int16]) -> AsrReply:
        """See the base."""
        question = [self._number, len(audio)]
        return await self._port.ask("push", question, AsrReply, lambda: self._inner.push(audio), audio)

    def begin_turn(self) -> None:
        """See the base."""
        self._port.tell(self._inner.begin_turn)

    async def flush(self) -> AsrReply:
        """See the base."""
        return await self._port.ask("flush", self._number, AsrReply, self._inner.flush)

    async def close(self) -> None:
        """See the base."""
        await self._port.ask("close", self._number, None, self._inner.close)


class PortChat:
    """:class:`parley.engines.base.ChatModel`."""

    def __init__(self, port: Port, engines: Engines) -> None:
        self._port, self._inner = port, engines.chat

    @property
    def model(self) -> str:
        """Empty: there is only one."""
        inner = self._inner
        return self._port.read("chat", 0, str, lambda: inner.model if isinstance(inner, NamesModel) else "")

    def generate(self, request: GenerateRequest) -> AsyncGenerator[LlmEvent, None]:
        """See the base."""
        return self._port.stream("generate", _bare(request), LlmEvent, lambda: self._inner.generate(request))

    async def abort(self, request_id: str) -> None:
        """See the base."""
        await self._port.ask("abort", "", None, lambda: self._inner.abort(request_id))


class PortSynthesizer:
    """:class:`parley.engines.base.Synthesizer`."""

    def __init__(self, port: Port, engines: Engines) -> None:
        self._port, self._inner = port, engines.synthesizer
        self.languages: Sequence[str] = port.read("spoken", 0, list[str], lambda: [*self._inner.languages])

    @property
    def voices(self) -> Sequence[str] | None:
        """See the base."""
        return self._port.read("voices", 0, list[str] | None, lambda: self._inner.voices)

    def check_known(self, voice: str | None, language: str) -> bool:
        """See the base."""
        question = [voice, language]
        return self._port.read("known", question, bool, lambda: self._inner.check_known(voice, language))

    async def check_voice(self, voice: str) -> None:
        """See the base."""
        await self._port.ask("voice", voice, None, lambda: self._inner.check_voice(voice))

    def speak(self, request: SpeakRequest) -> AsyncGenerator[tuple[SpeechChunk, NDArray[np.int16]], None]:
        """See the base."""
        kind = tuple[SpeechChunk, np.ndarray]  # type: ignore[type-arg]
        return self._port.stream("speak", _bare(request), kind, lambda: self._inner.speak(request))

    async def abort(self, request_id: str) -> None:
        """See the base."""
        await self._port.ask("abort", "", None, lambda: self._inner.abort(request_id))


class PortTurnModel:
    """:class:`parley.engines.base.TurnModel`."""

    def __init__(self, port: Port, scoring: TurnScoring) -> None:
        self._port, self._inner = port, scoring.model

    async def score(self, speech: NDArray[np.int16], *, traceparent: str = "") -> float:
        """See the base."""
        make = lambda: self._inner.score(speech, traceparent=traceparent)  # noqa: E731
        return await self._port.ask("score", len(speech), float, make, speech)


class PortTools:
    """:class:`parley.tools.base.ServerTools`."""

    def __init__(self, port: Port, engines: Engines) -> None:
        assert engines.server_tools is not None
        self._port, self._inner = port, engines.server_tools

    @property
    def names(self) -> Collection[str]:
        """See the base."""
        return self._port.read("names", 0, list[str], lambda: sorted(self._inner.names))

    @property
    def tools(self) -> Sequence[Tool]:
        """See the base."""
        return self._port.read("tools", 0, list[Tool], lambda: [*self._inner.tools])

    def timeout_s(self, name: str) -> float | None:
        """See the base."""
        return self._port.read("timeout_s", name, float | None, lambda: self._inner.timeout_s(name))

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        traceparent: str = "",
        on_progress: ReportProgress | None = None,
    ) -> ToolOutcome:
        """See the base."""
        report = None if on_progress is None else self._port.reporter(on_progress)
        make = lambda: self._inner.call(name, arguments, traceparent=traceparent, on_progress=report)  # noqa: E731
        return await self._port.ask("tool", [name, arguments], ToolOutcome, make)


class PortKnowledge:
    """:class:`parley.knowledge.passages.KnowledgeSearch`."""

    def __init__(self, port: Port, engines: Engines) -> None:
        assert engines.knowledge is not None
        self._port, self._inner = port, engines.knowledge

    async def search(self, query: str) -> Sequence[Passage]:
        """See the base."""
        return await self._port.ask("search", query, list[Passage], lambda: self._inner.search(query))


class PortAgents:
    """Of :class:`parley.agents.registry.AgentRegistry` what a session shows its client."""

    def __init__(self, port: Port, agents: AgentRegistry) -> None:
        self._port, self._inner = port, agents

    @property
    def summaries(self) -> list[protocol.AgentSummary]:
        """The agents that sessions may name."""
        kind = list[protocol.AgentSummary]
        return self._port.read("agents", 0, kind, lambda: [*self._inner.summaries])


class PortOutlet:
    """:class:`parley.agent.ports.Outlet`."""

    def __init__(self, port: Port, outlet: Outlet) -> None:
        self._port, self._inner = port, outlet

    def send(self, event: ServerEvent, audio: NDArray[np.int16] | None = None) -> None:
        """See the base."""
        self._port.sent(event, audio)
        self._inner.send(event, audio)

    def finish(self, last: ServerEvent | None = None) -> None:
        """See the base."""
        if last is not None:
            self._port.sent(last, None)
        self._inner.finish(last)

    async def is_cancelled(self) -> bool:
        """See the base."""
        return await self._port.ask("is_cancelled", "", bool, self._inner.is_cancelled)
