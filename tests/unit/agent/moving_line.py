"""The client library on agents of the tests: servers that take a call, lose it, and are left by it."""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import pairwise
from types import MethodType

import numpy as np
from agent_fakes import FakeCall, FakeChat, FakeRecognition, FakeRecognizer, calls, says
from moving_client import _behind

from parley.agent.config import AgentConfig
from parley.agent.host import Incoming
from parley.agent.session import AgentSession
from parley.asr.messages import AsrReply, SpeechStartedEvent, SpeechStoppedEvent, TranscriptEvent
from parley.checkpoint import SessionState
from parley.errors import ModelUnavailableError, UnsupportedVoiceError
from parley.protocol import ClientMessage, Start, decode_start, encode
from parley_client.transport import Frame, ServerReply

WORDS = ("alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel", "india", "juliet")
CHUNK_MS = 20
SILENCE_MS = 300
ANSWER = "I see."


def sound(word: int) -> bytes:
    """20 ms of a word, or of silence (-1)."""
    return np.full(16 * CHUNK_MS, word + 1, "<i2").tobytes()


class ReadingRecognizer(FakeRecognizer):
    """Reads words from the samples; silence of 300 ms ends an utterance."""

    def __init__(self, recognition: FakeRecognition, name: str, first: str, last: str) -> None:
        super().__init__(recognition, name, first, last)
        self._utterance = 0
        self._words: list[str] = []
        self._silent = 0

    async def push(self, audio):
        begin = self.samples
        reply = await super().push(audio)
        events = list(reply.events)
        changes = [0, *(int(at) + 1 for at in np.flatnonzero(np.diff(audio))), len(audio)]
        for at, end in pairwise(changes):
            if at < end and audio[at]:
                self._hear(int(audio[at]) - 1, begin + at, events)
            elif self._words:
                silent, self._silent = self._silent, self._silent + end - at
                if self._silent >= SILENCE_MS * 16:
                    events += self._end(begin + at + SILENCE_MS * 16 - silent)
        return AsrReply(events=events, stream_ms=reply.stream_ms)

    def _hear(self, word: int, at: int, events: list) -> None:
        if not self._words:
            self._utterance += 1
            events.append(SpeechStartedEvent(utterance=self._utterance, at_ms=at // 16))
        if not self._words or self._words[-1] != WORDS[word]:
            self._words.append(WORDS[word])
        self._silent = 0

    def _end(self, at: int) -> list:
        text, self._words = " ".join(self._words), []
        stopped_ms = (at - min(self._silent, SILENCE_MS * 16)) // 16
        return [
            SpeechStoppedEvent(utterance=self._utterance, at_ms=stopped_ms, detected_at_ms=at // 16),
            TranscriptEvent(utterance=self._utterance, text=text, is_final=True, confidence=0.9),
        ]

    async def flush(self):
        reply = await super().flush()
        events = self._end(self.samples) if self._words else []
        return AsrReply(events=events, stream_ms=reply.stream_ms)


class _Recognition(FakeRecognition):
    def __call__(self, name: str, first: str = "", last: str = "") -> FakeRecognizer:
        self.streams.append(ReadingRecognizer(self, name, first, last))
        return self.streams[-1]


class _Chat(FakeChat):
    """Answers the same to all, but asks for a tool where the user wants it to look."""

    async def generate(self, request):
        if request.sampling.max_tokens > 1:
            last = request.messages[-1]
            if last.role == "tool":
                answer = says("It is clear.")
            elif last.role == "user" and "look" in last.content and request.tools:
                answer = calls(("look", {}))
            else:
                answer = says(ANSWER)
            self.answers.append(_behind(answer, request.prefix))
        async for event in super().generate(request):
            yield event


class Server:
    """One host; writes down which messages of the client its session has handled."""

    def __init__(self, number: int) -> None:
        self.start: Start | None = None
        self.call = FakeCall(AgentConfig(), f"server-{number}", chat=_Chat())
        self.call.recognition = recognition = _Recognition()
        engines = self.call.host._engines
        object.__setattr__(engines, "recognizer", recognition)
        self.call.synthesizer.voices = None
        self.call.synthesizer.stored = {f"slow-{n}": 0.3 for n in range(10)}
        self.call.synthesizer.stored["bad"] = UnsupportedVoiceError("no voice bad")
        self.handled: list[ClientMessage] = []
        self.session: AgentSession | None = None

    def handle(self, request: Incoming, outlet: StreamOutlet) -> None:
        self.call.host.handle(request, outlet)
        if request.start:
            self.start = decode_start(request.message)
            self.session = self.call.host._sessions[request.session_id]
            handle = self.session._handle

            def write_down(_session: AgentSession, message: ClientMessage, number: int) -> None:
                self.handled.append(message)
                handle(message, number)

            self.session._handle = MethodType(write_down, self.session)

    def contained(self, state: SessionState) -> list[ClientMessage]:
        """Messages that this session has handled, and whose effect is in a state of it."""
        assert self.start is not None
        before = self.start.resume.state.handled if self.start.resume else 0
        numbered = enumerate(self.handled, before + 1)
        return [one for number, one in numbered if number <= state.handled and number not in state.unfinished]

    def state(self) -> SessionState:
        """Of the session now."""
        assert self.session is not None
        return self.session._snapshot().state


class StreamOutlet:
    """The responses to one request, on a stream."""

    def __init__(self, stream: LineStream, request_id: str) -> None:
        self._stream = stream
        self._request_id = request_id

    def send(self, event, audio=None) -> None:
        self._stream.answer(self._reply(event, audio))

    def finish(self, last=None) -> None:
        self._stream.answer(self._reply(last, None, final=True))

    def _reply(self, event, audio, *, final: bool = False) -> ServerReply:
        raw = b"" if event is None else encode(event)
        samples = np.zeros(0, np.int16) if audio is None else audio
        return ServerReply(self._request_id, raw, samples, final=final)

    async def is_cancelled(self) -> bool:
        return self._stream.is_cut


class LineStream:
    """A stream to a server, over a network that takes its time and is cut behind a reply.

    Args:
        server: The other side.
        call_id: Of the session.
        latency_s: Of each direction.
        replies: So many arrive; None: all.
        arrives: Whether what is under way to the server at the cut arrives there.
    """

    acknowledges = True

    def __init__(
        self, server: Server, call_id: str, latency_s: float, replies: int | None, *, arrives: bool
    ) -> None:
        self.server = server
        self.is_cut = False
        self.arrived = 0
        self._call_id = call_id
        self._latency_s = latency_s
        self.replies = replies
        self._arrives = arrives
        self._frames: deque[Frame] = deque()
        self._replies_under_way: deque[ServerReply | None] = deque()
        self._queue: asyncio.Queue[ServerReply | None] = asyncio.Queue()

    async def send(self, frame: Frame) -> None:
        if self.is_cut:
            raise ModelUnavailableError("Socket closed")
        self._frames.append(frame)
        asyncio.get_running_loop().call_later(self._latency_s, self._deliver)

    def _deliver(self) -> None:
        frame = self._frames.popleft()  # timers of one time have no order
        if self.is_cut and not self._arrives:
            return
        request = Incoming(
            self._call_id, frame.message, frame.audio, frame.start, frame.end, frame.request_id
        )
        self.server.handle(request, StreamOutlet(self, frame.request_id))

    def answer(self, reply: ServerReply) -> None:
        loop = asyncio.get_running_loop()
        for one in [reply, None] if reply.final and reply.request_id == "start" else [reply]:
            self._replies_under_way.append(one)
            loop.call_later(self._latency_s, self._arrive)

    def _arrive(self) -> None:
        self._queue.put_nowait(self._replies_under_way.popleft())

    async def finish(self) -> None:
        pass

    async def receive(self) -> ServerReply | None:
        if self.arrived == self.replies or self.is_cut:
            self.is_cut = True
            raise ModelUnavailableError("Socket closed")
        reply = await self._queue.get()
        self.arrived += 1
        return reply

    def cancel(self) -> None:
        self.is_cut = True


class Line:
    """Makes streams to one server after the other; the first ones are cut, the last one is not.

    Args:
        cuts: Of each stream that is cut: how many replies arrive.
    """

    def __init__(self, cuts: list[int], latency_s: float = 0.0, *, arrives: bool = True) -> None:
        self._cuts = list(cuts)
        self._latency_s = latency_s
        self._arrives = arrives
        self.streams: list[LineStream] = []

    def __call__(self) -> Line:
        return self

    async def open(self, call_id: str, timeout_s: float) -> LineStream:
        cut = self._cuts.pop(0) if self._cuts else None
        server = Server(len(self.streams))
        stream = LineStream(server, call_id, self._latency_s, cut, arrives=self._arrives)
        self.streams.append(stream)
        return stream

    async def close(self) -> None:
        pass

    def stop_cutting(self) -> None:
        """From now on all replies arrive."""
        self._cuts.clear()
        for stream in self.streams:
            stream.replies = None

    @property
    def contained(self) -> list[ClientMessage]:
        """The messages that have taken effect: of each session those in the state that was gone on from."""
        servers = [stream.server for stream in self.streams if stream.server.start is not None]
        states = [server.start.resume.state for server in servers[1:]] + [servers[-1].state()]
        return [one for server, state in zip(servers, states, strict=True) for one in server.contained(state)]
