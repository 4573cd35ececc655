"""Engines with given results, and a client that records everything."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from parley.agent.config import AgentConfig
from parley.agent.headroom import CallBoard, Headroom
from parley.agent.host import Host, Incoming
from parley.agent.metrics import FAMILIES, AgentMetrics
from parley.agent.ports import Engines, Scoring
from parley.agents.registry import AgentRegistry
from parley.asr.messages import (
    AsrEvent,
    AsrOptions,
    AsrReply,
    OnsetEvent,
    SpeechStartedEvent,
    SpeechStoppedEvent,
    TranscriptEvent,
)
from parley.calls.writing import CallWriter
from parley.chat import ToolCall
from parley.engines.base import SpeakerModel
from parley.errors import ParleyError
from parley.knowledge.passages import KnowledgeSearch
from parley.llm.messages import Choices, Completed, LlmEvent, TextDelta, ToolCalled, TurnEnd
from parley.metrics import MetricsRecorder
from parley.protocol import (
    AgentState,
    Audio,
    Closed,
    ErrorEvent,
    Interrupted,
    Paused,
    Resumed,
    ServerEvent,
    Start,
    Text,
    ToolRequest,
    Transcript,
    TurnMetrics,
    encode,
)
from parley.tracing import Tracing
from parley.tts.messages import SpeechChunk, WordMark
from parley.tts.voice_routing import find_route

CHUNK_MS = 20
SILENCE = bytes(CHUNK_MS * 32)


def now() -> float:
    return asyncio.get_running_loop().time()


def utterance(number: int, start_ms: int, end_ms: int, text: str) -> list[tuple[int, AsrEvent]]:
    """What a recogniser says at least of one utterance, and when."""
    stopped_ms = end_ms + 300
    return [
        (start_ms + 96, SpeechStartedEvent(utterance=number, at_ms=start_ms)),
        (stopped_ms, SpeechStoppedEvent(utterance=number, at_ms=end_ms, detected_at_ms=stopped_ms)),
        (stopped_ms, TranscriptEvent(utterance=number, text=text, is_final=True, confidence=0.9)),
    ]


def all_of_utterance(number: int, start_ms: int, end_ms: int, text: str) -> list[tuple[int, AsrEvent]]:
    """The same with the first sound, and the text while it is spoken, if there is time for one."""
    begun, *ended = utterance(number, start_ms, end_ms, text)
    partial = TranscriptEvent(utterance=number, text=text, is_final=False, confidence=0.9)
    early = [(start_ms + 300, partial)] if text and end_ms - start_ms >= 300 else []
    return [(start_ms + 32, OnsetEvent(at_ms=start_ms)), begun, *early, *ended]


class FakeRecognizer:
    """Delivers the recognition's script as the audio reaches the given times."""

    model = "fake_asr"

    def __init__(self, recognition: FakeRecognition, name: str, first: str, last: str) -> None:
        self.recognition = recognition
        self.name = name
        self.first = first
        self.last = last
        self.opened = False
        self.closed = False
        self.samples = 0
        self.flushes = 0
        self._busy = False

    async def languages(self):
        assert not self.opened
        if isinstance(self.recognition.languages, ParleyError):
            raise self.recognition.languages
        return self.recognition.languages

    async def check(self, options) -> None:
        assert not self.opened
        self.recognition.checks.append(options)
        if self.recognition.refusals:
            raise self.recognition.refusals.popleft()

    async def start(self, options) -> None:
        await asyncio.sleep(self.recognition.start_s)
        if self.recognition.start_failures:
            raise self.recognition.start_failures.popleft()
        self.opened = True
        self.options = options

    async def push(self, audio: NDArray[np.int16]) -> AsrReply:
        assert self.opened
        assert not self.closed
        with self._alone():
            await asyncio.sleep(self.recognition.push_s)
        if self.recognition.push_failures:
            raise self.recognition.push_failures.popleft()
        self.samples += len(audio)
        self.recognition.pushes.append(len(audio))
        return self._reply()

    def begin_turn(self) -> None:
        self.recognition.turns_over.append(self.samples // 16)

    async def flush(self) -> AsrReply:
        self.flushes += 1
        with self._alone():
            await asyncio.sleep(self.recognition.push_s)
        events = list(self.recognition.on_flush) or self._rest_of_utterance()
        return AsrReply(events=events, stream_ms=self.samples // 16)

    def _rest_of_utterance(self) -> list[AsrEvent]:
        """What the script has left of the utterance that has begun, which ends now."""
        recognition, rest = self.recognition, []
        while recognition.speaking:
            event = recognition.script.popleft()[1]
            if isinstance(event, SpeechStoppedEvent):
                at_ms = self.samples // 16
                event = SpeechStoppedEvent(utterance=event.utterance, at_ms=at_ms, detected_at_ms=at_ms)
            rest.append(event)
            recognition.speaking = not (isinstance(event, TranscriptEvent) and event.is_final)
        return rest

    async def close(self) -> None:
        self.closed = True

    @contextmanager
    def _alone(self):
        assert not self._busy, "calls of one recogniser must not overlap"
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    def _reply(self) -> AsrReply:
        events = []
        script = self.recognition.script
        while script and script[0][0] * 16 <= self.samples:
            events.append(script.popleft()[1])
            if isinstance(events[-1], SpeechStartedEvent):
                self.recognition.speaking = True
            elif isinstance(events[-1], SpeechStoppedEvent):
                self.recognition.speaking = False
        return AsrReply(events=events, stream_ms=self.samples // 16)


class FakeRecognition:
    """Makes recognisers that share one script."""

    def __init__(self) -> None:
        self.script: deque[tuple[int, AsrEvent]] = deque()
        self.on_flush: list[AsrEvent] = []
        self.speaking = False
        self.checks: list[AsrOptions] = []
        self.refusals: deque[ParleyError] = deque()
        self.start_failures: deque[ParleyError] = deque()
        self.push_failures: deque[ParleyError] = deque()
        self.languages: tuple[str, ...] | ParleyError = ("en", "de")
        self.start_s = 0.005
        self.push_s = 0.005
        self.turns_over: list[int] = []
        self.pushes: list[int] = []
        self.streams: list[FakeRecognizer] = []

    def __call__(self, name: str, first: str, last: str) -> FakeRecognizer:
        self.streams.append(FakeRecognizer(self, name, first, last))
        return self.streams[-1]


def says(text: str) -> list[LlmEvent]:
    """A spoken answer, one word at a time."""
    words = text.split(" ")
    pieces = [word + (" " if index + 1 < len(words) else "") for index, word in enumerate(words)]
    return [
        *(TextDelta(text=piece) for piece in pieces),
        Completed(finish_reason="stop", prompt_tokens=10, completion_tokens=len(pieces)),
    ]


def calls(*named: tuple[str, dict]) -> list[LlmEvent]:
    """An answer that asks for tools."""
    return [
        *(
            ToolCalled(call=ToolCall(id=f"c{index}", name=name, arguments=arguments))
            for index, (name, arguments) in enumerate(named)
        ),
        Completed(finish_reason="tool_calls", prompt_tokens=10, completion_tokens=5),
    ]


class FakeChat:
    """Gives the prepared answers in order; an exception in an answer is raised at its place."""

    def __init__(self) -> None:
        self.answers: deque[list[LlmEvent | Exception]] = deque()
        self.otherwise = "Okay."
        self.requests = []
        self.warmed = []
        self.aborted: list[str] = []
        self.running: set[str] = set()
        self.warm_up_s = 0.02
        self.warm_up_failure: Exception | None = None
        self.first_s = 0.02
        self.token_s = 0.01
        self.asked = []  # requests with questions
        self.decided: deque[list[list[float]] | Exception] = deque()
        self.decision_s = 0.15
        self.endings: dict[str, float | Exception] = {}
        self.read = []  # requests about the end of a turn
        self.reads = False  # whether answers say it
        self.read_s = 0.05

    async def generate(self, request):
        if request.turn_end:
            self.read.append(request)
            async with self._running(request):
                await asyncio.sleep(self.read_s)
                ending = self.endings.get(request.messages[-1].content, 1.0)
                if isinstance(ending, Exception):
                    raise ending
            yield TurnEnd(probability=ending)
            yield Completed(finish_reason="stop", prompt_tokens=10, completion_tokens=1)
            return
        if request.questions:
            self.asked.append(request)
            async with self._running(request):
                await asyncio.sleep(self.decision_s)
                answer = self.decided.popleft() if self.decided else []
                if isinstance(answer, Exception):
                    raise answer
            # As a model does that has no probabilities for some, or for all.
            yield Choices(probabilities=answer or [[] for _ in request.questions])
            yield Completed(finish_reason="stop", prompt_tokens=10, completion_tokens=1)
            return
        if request.sampling.max_tokens == 1:
            self.warmed.append(request)
            async with self._running(request):
                await asyncio.sleep(self.warm_up_s)
                if self.warm_up_failure:
                    raise self.warm_up_failure
            yield Completed(finish_reason="length", prompt_tokens=10, completion_tokens=1)
            return
        self.requests.append(request)
        if request.request_id in self.aborted:  # as the model does: the abort may have overtaken its request
            yield Completed(finish_reason="abort")
            return
        answer = self.answers.popleft() if self.answers else says(self.otherwise)
        async with self._running(request), aclosing(self._answer(request, answer)) as events:
            async for event in events:
                yield event

    async def _answer(self, request, answer):
        if request.reads_turn and not self.reads:
            yield TurnEnd(probability=None)
        await asyncio.sleep(self.first_s)
        if request.reads_turn and self.reads:
            yield TurnEnd(probability=self.endings.get(request.messages[-1].content, 1.0))
        for event in answer:
            if isinstance(event, Exception):
                raise event
            yield event
            await asyncio.sleep(self.token_s)

    @asynccontextmanager
    async def _running(self, request):
        self.running.add(request.request_id)
        try:
            yield
        finally:
            self.running.discard(request.request_id)

    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    def prompt(self, index: int = -1) -> list[tuple[str, str]]:
        """(role, text) of one request's messages."""
        return [(message.role, message.content) for message in self.requests[index].messages]


class FakeSynthesizer:
    """Every character lasts 50 ms; a word's mark lies where its first character is."""

    voices = ("low", "high")
    languages = ("en", "de")
    rate = 22_050
    character_ms = 50

    def __init__(self) -> None:
        self.requests = []
        self.aborted: list[str] = []
        self.running: set[str] = set()
        self.failures: deque[ParleyError | None] = deque()
        self.first_s = 0.01
        self.marks = True
        self.late_marks = False
        self.loudness = 0  # of a noise; 0: a constant
        self.stored: dict[str, ParleyError | float] = {}  # what is answered about a voice, or after how long

    async def speak(self, request):
        self.requests.append(request)
        self.running.add(request.request_id)
        try:
            await asyncio.sleep(self.first_s)
            failure = self.failures.popleft() if self.failures else None
            if failure is not None:
                raise failure
            per_character = self.rate * self.character_ms // 1000
            total = len(request.text) * per_character
            for offset in range(0, total, 4096):
                length = min(4096, total - offset)
                marks = [
                    mark for mark in self._marks(request.text) if offset <= mark.at_sample < offset + length
                ]
                chunk = SpeechChunk(sample_rate=self.rate, offset=offset, words=marks)
                if self.late_marks:
                    chunk = SpeechChunk(sample_rate=self.rate, offset=offset)
                yield chunk, self._sound(offset, length)
                await asyncio.sleep(0)
            if self.late_marks:
                marks = [
                    WordMark(start_char=mark.start_char, end_char=mark.end_char, at_sample=total)
                    for mark in self._marks(request.text)
                ]
                yield SpeechChunk(sample_rate=self.rate, offset=total, words=marks), np.zeros(0, np.int16)
        finally:
            self.running.discard(request.request_id)

    def _sound(self, offset: int, length: int) -> NDArray[np.int16]:
        if not self.loudness:
            return np.full(length, 1000, np.int16)
        return np.random.default_rng(offset).integers(-self.loudness, self.loudness, length).astype(np.int16)

    def check_known(self, voice: str | None, language: str) -> bool:
        return find_route([("fake", self)], voice, language).certain

    async def check_voice(self, voice: str) -> None:
        answer = self.stored[voice]
        if isinstance(answer, ParleyError):
            raise answer
        await asyncio.sleep(answer)

    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    def _marks(self, text: str) -> list[WordMark]:
        if not self.marks:
            return []
        marks, start = [], 0
        for word in text.split(" "):
            at = start * self.rate * self.character_ms // 1000
            marks.append(WordMark(start_char=start, end_char=start + len(word), at_sample=at))
            start += len(word) + 1
        return marks


class FakeTurnModel:
    """Gives the prepared scores in order; an exception is raised in its place."""

    def __init__(self) -> None:
        self.scores: deque[float | Exception] = deque()
        self.otherwise = 0.9
        self.takes_s = 0.01
        self.heard: list[NDArray[np.int16]] = []
        self.traceparents: list[str] = []
        self.running = 0

    async def score(self, speech: NDArray[np.int16], *, traceparent: str = "") -> float:
        self.heard.append(speech)
        self.traceparents.append(traceparent)
        self.running += 1
        try:
            await asyncio.sleep(self.takes_s)
        finally:
            self.running -= 1
        score = self.scores.popleft() if self.scores else self.otherwise
        if isinstance(score, Exception):
            raise score
        return score


@dataclass
class Sent:
    """One event as the client got it."""

    at: float
    event: ServerEvent
    audio: NDArray[np.int16] | None


@dataclass
class FakeOutlet:
    """Writes down what is sent, and checks what must hold of every session."""

    sent: list[Sent] = field(default_factory=list)
    finished: bool = False
    gone: bool | Exception = False
    more: asyncio.Event = field(default_factory=asyncio.Event)
    violations: list[AssertionError] = field(default_factory=list)
    _silent: set[str] = field(default_factory=set)
    _paused: str | None = None
    _state: str = ""

    def send(self, event: ServerEvent, audio: NDArray[np.int16] | None = None) -> None:
        try:
            self._check(event, audio)
        except AssertionError as error:
            # The sender may catch it and go on.
            self.violations.append(error)
            raise
        self.sent.append(Sent(now(), event, audio))
        self.more.set()

    def _check(self, event: ServerEvent, audio: NDArray[np.int16] | None) -> None:
        assert not self.finished, f"{event} after the end"
        if isinstance(event, Audio):
            assert audio is not None
            assert len(audio) == event.samples
            assert event.samples or event.text
            assert event.response_id not in self._silent, "audio after it was interrupted"
            assert event.response_id != self._paused, "audio while it is paused"
        else:
            assert audio is None
        if isinstance(event, ToolRequest):
            # Only what is certain to be answered is being processed.
            assert self._state in ("processing", "speaking"), "a tool before the user's turn was over"
        if isinstance(event, AgentState):
            self._state = event.state
        if isinstance(event, Paused):
            assert self._paused is None
            self._paused = event.response_id
        if isinstance(event, Resumed):
            assert self._paused == event.response_id
        if isinstance(event, Resumed | Interrupted) and self._paused == event.response_id:
            self._paused = None
        if isinstance(event, Interrupted):
            self._silent.add(event.response_id)

    def finish(self, last=None) -> None:
        assert not self.finished
        if last is not None:
            self.send(last)
        self.last = last
        self.finished = True

    async def is_cancelled(self) -> bool:
        assert not self.finished, "a finished request must not be asked about"
        if isinstance(self.gone, Exception):
            raise self.gone
        return self.gone

    @property
    def events(self) -> list[ServerEvent]:
        return [sent.event for sent in self.sent]

    def of(self, kind) -> list:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def codes(self) -> list[str]:
        return [error.code for error in self.of(ErrorEvent)]

    @property
    def states(self) -> list[str]:
        return [event.state for event in self.of(AgentState)]

    @property
    def finals(self) -> list[str]:
        return [event.text for event in self.of(Transcript) if event.is_final]

    @property
    def reason(self) -> str | None:
        """Why the session was closed; None: it is open."""
        closed = self.of(Closed)
        if not closed:
            return None
        assert len(closed) == 1
        assert self.events[-1] is closed[0]
        assert self.finished
        return closed[0].reason


class FakeCall:
    """A client on a host with fake engines; sends its audio in real time."""

    begun: ClassVar[list[tuple[asyncio.AbstractEventLoop, FakeCall]]] = []
    """Calls with their event loops; a fixture ends those that a test leaves open."""

    def __init__(
        self,
        config: AgentConfig | None = None,
        session_id: str | int = "call",
        tracing: Tracing | None = None,
        chat: FakeChat | None = None,
        *,
        hears: Iterable[tuple[int, int, str]] = (),
        answers: Iterable[list[LlmEvent | Exception]] = (),
        agents: AgentRegistry | None = None,
        knowledge: KnowledgeSearch | None = None,
        calls: CallWriter | None = None,
        reads_turns: bool = False,
        speaker: SpeakerModel | None = None,
    ) -> None:
        self.recognition = FakeRecognition()
        self.hears(*hears)
        self.chat = chat or FakeChat()
        self.chat.answers.extend(answers)
        self.synthesizer = FakeSynthesizer()
        self.turn_model = FakeTurnModel()
        self.unscored: list[str] = []
        self.unjudged: list[str] = []
        self.speculated: list[str] = []
        self.released: list[str | int] = []
        self.ends: list[FakeOutlet] = []
        self.release_takes_s = 0.0
        self.outlet = FakeOutlet()
        self.id = session_id
        self.began = 0.0
        self.room: Callable[[int], bytes] = lambda at_ms: SILENCE
        """What the microphone hears in the chunk that begins at this time."""
        self._microphone: asyncio.Task[None] | None = None
        scoring = Scoring(self.turn_model, self.unscored.append)
        engines = Engines(
            self.recognition,
            self.chat,
            self.synthesizer,
            scoring,
            self.speculated.append,
            tracing=tracing,
            agents=agents,
            knowledge=knowledge,
            calls=calls,
            reads_turns=reads_turns,
            speaker=speaker and Scoring(speaker, self.unjudged.append),
        )
        self.metrics = MetricsRecorder(FAMILIES)
        config = config or AgentConfig()
        p95_ms = config.answer_goal_ms if config.refuse_when_late else None
        self.headroom = Headroom(
            CallBoard(), p95_ms=p95_ms, most=config.max_calls, typical_call_s=config.typical_call_s
        )
        agent_metrics = AgentMetrics(
            instance="agent_0", goal_ms=1_000.0, metrics=self.metrics, on_answer=self.headroom.on_answer
        )
        self.host = Host(engines, config, self._release, agent_metrics, self.headroom)
        self.metrics.collect_with(self.host.record_sessions)

    async def _release(self, session_id: str | int, request_id: str) -> None:
        self.released.append(session_id)
        await asyncio.sleep(self.release_takes_s)
        self.ends.append(FakeOutlet())
        self.host.handle(Incoming(session_id, end=True, request_id=request_id), self.ends[-1])

    async def start(self, message: Start | bytes | None = None, *, microphone: bool = True) -> None:
        """START, and wait until the session is open or refused; then switch the microphone on."""
        raw = message if isinstance(message, bytes) else encode(message or Start())
        self.begun.append((asyncio.get_running_loop(), self))
        self.host.handle(Incoming(self.id, message=raw, start=True), self.outlet)
        await self.outlet.more.wait()
        self.began = now()
        if microphone:
            self._microphone = asyncio.create_task(self._record())

    async def _record(self) -> None:
        for count in range(1, 1_000_000):
            await asyncio.sleep(max(0.0, self.began + count * CHUNK_MS / 1000 - now()))
            self.send(audio=self.room((count - 1) * CHUNK_MS))

    async def hang_up(self) -> None:
        """Switch the microphone off."""
        if self._microphone is not None:
            self._microphone.cancel()
            await asyncio.wait([self._microphone])
            self._microphone = None

    def hears(self, *utterances: tuple[int, int, str]) -> None:
        """The user says (start_ms, end_ms, text), ..."""
        for number, (start_ms, end_ms, text) in enumerate(utterances, 1):
            self.recognition.script.extend(all_of_utterance(number, start_ms, end_ms, text))

    def send(self, message=None, audio: bytes = b"", *, end: bool = False) -> FakeOutlet:
        """One request; returns its own outlet."""
        answer = FakeOutlet()
        raw = message if isinstance(message, bytes) else encode(message) if message else b""
        self.host.handle(Incoming(self.id, message=raw, audio=audio, end=end), answer)
        return answer

    async def request(self, message, kind: type, count: int = 1):
        """Send a message, and wait for the ``count``-th event of a kind."""
        self.send(message)
        return await self.wait_for(kind, count)

    async def until(self, ms: float) -> None:
        """Wait until the client has been recording for ``ms`` milliseconds."""
        await asyncio.sleep(self.began + ms / 1000 - now())

    async def wait_for(self, kind, count: int = 1):
        """The ``count``-th event of a kind."""
        async with asyncio.timeout(120):
            while len(found := self.outlet.of(kind)) < count:
                self.outlet.more.clear()
                await self.outlet.more.wait()
        return found[count - 1]

    def at_ms(self, event) -> float:
        """When an event was sent, in milliseconds of the recording."""
        at = next(sent.at for sent in self.outlet.sent if sent.event is event)
        return (at - self.began) * 1000

    async def end(self, kind: type | None = None, count: int = 1):
        """END, after the ``count``-th event of a kind if one is given; then check that nothing is left over.

        Returns:
            That event.
        """
        event = None if kind is None else await self.wait_for(kind, count)
        await self.hang_up()
        self.send(end=True)
        await self.check_nothing_left()
        return event

    async def check_nothing_left(self) -> None:
        """Everything that the session had has ended, also the microphone."""
        await self.hang_up()
        await asyncio.sleep(10)
        assert self.outlet.reason is not None
        assert not self.outlet.violations
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not others, f"left over: {others}"
        problems = asyncio.get_running_loop().problems
        assert not problems, problems
        assert not self.chat.running
        assert not self.synthesizer.running
        assert not self.turn_model.running
        assert all(stream.closed for stream in self.recognition.streams if stream.opened)
        assert len(self.host) == 0


async def open_call(start: Start | bytes | None = None, *, microphone: bool = True, **options) -> FakeCall:
    """A call whose session is open, or refused; ``options`` are those of ``FakeCall``."""
    call = FakeCall(**options)
    await call.start(start, microphone=microphone)
    return call


async def hold_call(
    start: Start | None = None, *, until: type = TurnMetrics, count: int = 1, **options
) -> FakeCall:
    """A call that has ended, after the ``count``-th event of a kind; by default of a turn's metrics."""
    call = await open_call(start, **options)
    await call.end(until, count)
    return call


async def say(call: FakeCall, text: str) -> None:
    """Type a text, and wait for the end of its answer."""
    count = len(call.outlet.of(TurnMetrics)) + 1
    call.send(Text(text=text))
    await call.wait_for(TurnMetrics, count)


def spoken(call: FakeCall) -> list[str]:
    """What was given to the synthesizer."""
    return [request.text for request in call.synthesizer.requests]
