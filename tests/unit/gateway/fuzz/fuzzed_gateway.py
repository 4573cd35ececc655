"""A gateway in a thread of its own, in front of an agent and models that answer every request."""

import asyncio
import contextlib
import gc
import itertools
import json
import logging
import re
import threading
from collections import Counter, deque

import numpy as np
import psutil
import pytest
from fake_agent import FakeStream
from fake_models import serving_fake
from fuzz_messages import OPENINGS
from listening_gateway import WELL, always_ready
from twilio_line import AUTH_TOKEN, PUBLIC_URL, sign
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed
from websockets.protocol import State

from parley import protocol
from parley.asr.messages import TranscriptEvent
from parley.llm.messages import Completed, TextDelta
from parley.tts.messages import SpeechChunk
from parley_gateway.app import create_app
from parley_gateway.servers import Servers
from parley_gateway.serving import running
from parley_gateway.settings import load_settings

DESCRIPTION = protocol.AgentDescription(
    recognizer="parakeet_tdt",
    language_model="qwen3",
    synthesizers=["espeak"],
    languages=["en"],
    voices=["man-1"],
    tools=[],
    examples=[],
)

PATIENCE_S = 30
"""Longer operations count as hanging."""
_CODE = re.compile(r"[A-Za-z][A-Za-z0-9_\- ]*")
_RATES = {"key_requests": "", "key_sessions": "", "ip_requests": "", "ip_sessions": "", "auth_failures": ""}
_APIS = {
    "sessions": ("/v1/sessions/{session}/stream", {"subprotocols": ["parley.v1"]}),
    "design": ("/v1/sessions/{session}/stream?protocol=design", {}),
    "realtime": ("/v1/realtime?model=parley", {"subprotocols": ["realtime"]}),
    "transcription": ("/v1/realtime?intent=transcription", {"subprotocols": ["realtime"]}),
    "listen": ("/v1/listen?encoding=linear16&sample_rate=16000&interim_results=true", {}),
    "flux": ("/v2/listen?model=flux-general-en&encoding=linear16&eager_eot_threshold=0.3", {}),
    "converse": ("/v1/agent/converse", {}),
    "speak": ("/v1/speak?encoding=linear16&sample_rate=24000", {}),
    "twilio": (
        "/v1/twilio/stream",
        {"additional_headers": {"X-Twilio-Signature": sign(f"wss{PUBLIC_URL[5:]}/v1/twilio/stream")}},
    ),
}


def turn_events(turn, rate):
    """One turn of a conversation in which everything happens."""
    response, call = f"r{turn}", f"c{turn}"
    samples = np.zeros(rate // 10, np.int16)

    def audio(offset_ms):
        fields = {"turn": turn, "response_id": response, "offset_ms": offset_ms, "text": "Hi"}
        event = protocol.Audio(sample_rate=rate, samples=len(samples), **fields)
        return event, samples

    said = {"utterance": turn, "text": "hello", "confidence": 0.9}
    words = [protocol.Word(text="hello", start_ms=0, end_ms=100, confidence=0.9)]
    yield protocol.SpeechStarted(at_ms=0), None
    yield protocol.Transcript(is_final=False, **said), None
    yield protocol.SpeechStopped(at_ms=100, detected_at_ms=300), None
    yield protocol.Transcript(is_final=True, words=words, **said), None
    yield protocol.TurnDecision(utterance=turn, decision="commit", reason="waited", text="hello"), None
    yield protocol.AgentState(state="processing"), None
    yield protocol.ToolRequest(turn=turn, call_id=call, name="get_time", arguments={"a": 1}), None
    run = protocol.ToolRun(turn=turn, call_id="s1", name="x", arguments={}, is_error=False, duration_ms=1)
    yield run, None
    yield protocol.ResponseText(turn=turn, response_id=response, text="Hi "), None
    yield protocol.AgentState(state="speaking"), None
    yield audio(0)
    yield protocol.Paused(turn=turn, response_id=response, at_ms=0), None
    yield protocol.Resumed(turn=turn, response_id=response, reason="noise"), None
    yield audio(100)
    if turn % 2:
        yield protocol.Paused(turn=turn, response_id=response, at_ms=0), None
        yield protocol.Interrupted(turn=turn, response_id=response, played_ms=50, spoken_text="Hi"), None
    else:
        yield protocol.ResponseDone(turn=turn, response_id=response, audio_ms=200), None
    yield protocol.ErrorEvent(code="tool_timeout", message="late", retryable=True), None
    yield protocol.TurnMetrics(turn=turn), None
    yield protocol.AgentState(state="listening"), None


class Stream(FakeStream):
    """Ends when it is cancelled, as gRPC's does."""

    def cancel(self):
        super().cancel()
        self.frames.put_nowait(None)


class TalkativeAgents:
    """A transport: every request moves a conversation on, so that everything happens to every API."""

    def __init__(self):
        self.tasks = set()

    async def open(self, call_id, timeout_s):
        stream = Stream()
        task = asyncio.create_task(self._hold(stream))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return stream

    async def close(self):
        """Calls end by themselves."""

    @staticmethod
    async def _hold(stream):
        start = protocol.decode_message((await stream.frames.get()).message)
        rate = start.output_sample_rate
        stream.say(protocol.Connected(session_id="fuzz", output_sample_rate=rate, agent=DESCRIPTION))
        events = itertools.chain.from_iterable(turn_events(turn, rate) for turn in itertools.count(1))
        while (frame := await stream.frames.get()) is not None:
            if frame.end:
                stream.hang_up()
            elif frame.message and isinstance(protocol.decode_message(frame.message), protocol.Update):
                stream.say(protocol.Updated())
            else:
                stream.say(*next(events))
            stream.acknowledge(frame)
            stream.seen.clear()
        stream.end()


def prepare(models):
    """Make models answer every request, and store almost nothing."""
    models.heard, models.asked, models.transcribed = deque(maxlen=1), deque(maxlen=1), deque(maxlen=1)
    texts = itertools.count()

    def hear(request):
        said = {"confidence": 0.9, "start_ms": 0, "end_ms": 100}
        turn = next(texts)
        known = {name: value for name, value in said.items() if name in TranscriptEvent.__struct_fields__}
        if turn % 5:
            return []
        return [TranscriptEvent(utterance=turn, text="hello", is_final=turn % 2 == 0, words=[], **known)]

    async def answer(message):
        if message["op"] == "abort":
            return
        if "text" in message:
            audio = np.zeros(20 * min(len(message["text"]), 100), np.int16)
            yield {"CHUNK": SpeechChunk(sample_rate=16_000, offset=0, words=[]), "AUDIO": audio}
        else:
            yield {"EVENT": TextDelta(text="Hi.")}
            yield {"EVENT": Completed(finish_reason="stop")}

    models.hear, models.answer = hear, answer


class Faults(logging.Handler):
    """Records errors, which no message of a client may cause."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.seen = []

    def emit(self, record):
        if record.levelno >= logging.ERROR or record.name == "asyncio":
            trace = logging.Formatter().formatException(record.exc_info) if record.exc_info else ""
            self.seen.append(f"{record.name}: {record.getMessage()} {trace}")


class FuzzedGateway:
    """Runs for a whole module; every call of a method has a deadline."""

    def __init__(self, folder):
        (folder / "token").write_text(AUTH_TOKEN)
        self._settings = {
            "listen": {"port": 0, "public_url": PUBLIC_URL},
            "security": {"insecure_allow_anonymous": True},
            "twilio": {"auth_token_file": str(folder / "token"), "own_twiml": True},
            "rates": _RATES | {"messages_per_s": 1_000_000, "bytes_per_s": 10**12},
            "sessions": {"waiting": 100_000, "remembered": 10},
        }
        self.codes = Counter()
        self.faults = Faults()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fuzzed-gateway")

    def __enter__(self):
        logging.getLogger().addHandler(self.faults)
        self._thread.start()
        self._stack = contextlib.AsyncExitStack()
        self.run(self._start())
        return self

    def __exit__(self, *_):
        self.run(self._stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()
        logging.getLogger().removeHandler(self.faults)

    def run(self, coroutine):
        """Run something in the gateway's loop."""
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(coroutine, PATIENCE_S), self._loop).result()

    async def _start(self):
        models = await self._stack.enter_async_context(serving_fake())
        prepare(models)
        settings = load_settings(
            flags=self._settings | {"servers": {"addresses": [models.address], "metrics_url": ""}}
        )
        self.agents = TalkativeAgents()
        self.app = create_app(
            settings,
            servers=Servers(settings.servers, probe=always_ready, ask_models=lambda *_: WELL),
            transport=lambda _: self.agents,
        )
        self.gateway = self.app.state.gateway
        self.url = (await self._stack.enter_async_context(running(settings, app=self.app))).url
        self._idle_tasks = self._tasks()

    # --- driving --------------------------------------------------------------------------

    def drive(self, api, messages, *, flood=False):
        """Send messages to an API, on as many connections as it takes until all were read.

        Args:
            flood: Do not wait until one was read before the next is sent; what comes after one that ends the
                connection is lost then.
        """
        self.run(self._drive(api, deque(messages), flood))
        assert not self.faults.seen, "\n".join(self.faults.seen)

    async def _drive(self, api, messages, flood):
        for _ in range(len(messages) + 1):
            if not messages:
                return
            await self._connection(api, messages, flood)
        assert not messages, "the API takes nothing"

    async def _connection(self, api, messages, flood):
        path, options = _APIS[api]
        if "{session}" in path:
            path = path.format(session=await self._new_session())
        url = f"ws{self.url.removeprefix('http')}{path}"
        async with connect(url, **options, compression=None, max_size=None) as socket:
            reader = asyncio.create_task(self._read(api, socket))
            with contextlib.suppress(ConnectionClosed):
                for opening in OPENINGS.get(api, ()):
                    await self._send(socket, opening, flood)
                while messages and (await self._send(socket, messages[0], flood) or flood):
                    messages.popleft()
            await socket.close()
            await reader
        assert socket.close_code not in (1006, 1011), (socket.close_code, socket.close_reason)

    async def _send(self, socket, message, flood):
        """Whether the gateway has read it."""
        before = self.received
        await socket.send(message)
        while not flood and self.received == before and socket.state is State.OPEN:  # noqa: ASYNC110
            await asyncio.sleep(0)
        return self.received > before

    async def _new_session(self):
        reader, writer = await asyncio.open_connection(*self.url.removeprefix("http://").split(":"))
        writer.write(
            b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        )
        answer = await reader.read()
        writer.close()
        return json.loads(answer.partition(b"\r\n\r\n")[2])["session_id"]

    async def _read(self, api, socket):
        with contextlib.suppress(ConnectionClosed):
            async for raw in socket:
                if isinstance(raw, str):
                    self._judge(json.loads(raw))

    def _judge(self, message):
        assert isinstance(message, dict)
        if message.get("type") in ("error", "Error"):
            error = message.get("error", message)
            code = error.get("code") or error.get("type")
            assert isinstance(code, str), message
            assert _CODE.fullmatch(code), message
            self.codes[code] += 1

    @property
    def received(self):
        """Messages that the gateway has read."""
        return sum(
            sample.value
            for metric in self.gateway.metrics.received.collect()
            for sample in metric.samples
            if sample.name.endswith("_total")
        )

    # --- afterwards -----------------------------------------------------------------------

    def settle(self):
        """Wait until nothing of any connection is left."""
        try:
            self.run(self._settle())
        except TimeoutError:
            pytest.fail(f"{self.gateway.calls.count} calls and these tasks are left: {self._tasks()}")
        assert not self.faults.seen, "\n".join(self.faults.seen)

    async def _settle(self):
        while self.gateway.calls.count or self._tasks() - self._idle_tasks:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    def _tasks(self):
        """How many of each kind; those that only wait for this are left out."""
        coroutines = [task.get_coro() for task in asyncio.all_tasks(self._loop)]
        names = [getattr(coroutine, "__qualname__", type(coroutine).__name__) for coroutine in coroutines]
        return Counter(name for name in names if not name.startswith(("FuzzedGateway.", "wait_for")))

    def memory(self):
        """Resident bytes of this process, after everything that can be freed was."""
        gc.collect()
        return psutil.Process().memory_info().rss
