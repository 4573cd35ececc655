"""Sessions of the real server that do not go as they should."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
import uuid

import pytest
from leftovers import AGENT_MODELS, ANY_PORTS

from parley.canaries.asking import call_canaries
from parley.launcher import EmbeddedServer, ServerOptions
from parley.protocol import Closed, Connected, Control, ErrorEvent, Start, decode_event, encode
from parley_client.transport import Frame, TritonTransport

CHUNK = bytes(640)
IDLE_S = 4
SESSIONS = 3

# A client that opens a session, says so, and then streams audio until it is killed.
VICTIM = """
import asyncio, sys
from parley.protocol import Start, encode
from parley_client.transport import Frame
from parley_client.transport import TritonTransport

async def main():
    stream = await TritonTransport(sys.argv[1]).open(sys.argv[2], 10)
    await stream.send(Frame("start", message=encode(Start()), start=True))
    reply = await stream.receive()
    print("open" if b"connected" in reply.event else reply, flush=True)
    while True:
        await stream.send(Frame("audio", audio=bytes(640)))
        await asyncio.sleep(0.02)

asyncio.run(main())
"""


class Line:
    """One stream to the server, read to the end in the background."""

    def __init__(self, transport, stream, name):
        self.transport, self.stream, self.name = transport, stream, name
        self.replies = []
        self.more = asyncio.Event()
        self.reader = asyncio.create_task(self._read())

    @classmethod
    async def open(cls, address, name=None):
        transport = TritonTransport(address)
        name = name or uuid.uuid4().hex
        return cls(transport, await transport.open(name, 10), name)

    async def _read(self):
        while (reply := await self.stream.receive()) is not None:
            self.replies.append(reply)
            self.more.set()

    async def send(self, request, message=b"", audio=b"", **flags):
        await self.stream.send(Frame(request, message=message, audio=audio, **flags))

    async def start(self, message=None):
        await self.send("start", encode(message or Start()), start=True)
        return await self.wait(Connected)

    def events(self, request=None):
        return [
            decode_event(reply.event)
            for reply in self.replies
            if reply.event and request in (None, reply.request_id)
        ]

    def finals(self, request):
        return sum(reply.final for reply in self.replies if reply.request_id == request)

    async def until(self, done, limit_s=15.0):
        async with asyncio.timeout(limit_s):
            while not (found := done()):
                self.more.clear()
                await self.more.wait()
        return found

    async def wait(self, kind, limit_s=15.0):
        return (await self.until(lambda: [e for e in self.events() if isinstance(e, kind)], limit_s))[0]

    async def talk(self):
        """Send audio until the call is closed, as a microphone does."""
        while not any(isinstance(event, Closed) for event in self.events()):
            await self.send("audio", audio=CHUNK)
            await asyncio.sleep(0.02)

    async def end(self):
        await self.send("end", end=True)
        closed = await self.wait(Closed)
        await self.until(lambda: self.finals("start") and self.finals("end"))
        return closed

    async def close(self):
        self.stream.cancel()
        self.reader.cancel()
        await asyncio.wait([self.reader])
        await self.transport.close()


@pytest.fixture(scope="module")
def strict(tmp_path_factory):
    """A server with few sessions and little patience."""
    environment = {
        "PARLEY_VOICE_AGENT_IDLE_LIMIT_S": str(IDLE_S),
        "PARLEY_VOICE_AGENT_MAX_SESSIONS": str(SESSIONS),
    }
    options = ServerOptions(
        state_dir=tmp_path_factory.mktemp("strict"), environment=environment, exit_timeout_s=20, **ANY_PORTS
    )
    with EmbeddedServer(options, on_progress=logging.getLogger("strict").warning) as running:
        yield running


@pytest.fixture
async def line(strict):
    opened = await Line.open(strict.endpoints.grpc)
    yield opened
    await opened.close()


def codes(events):
    return [event.code for event in events if isinstance(event, ErrorEvent)]


async def test_events_end_with_closed_and_both_requests_with_final(line):
    assert (await line.start()).session_id == line.name
    assert (await line.end()).reason == "ended"
    assert isinstance(line.events()[-1], Closed)
    assert (line.finals("start"), line.finals("end")) == (1, 1)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"{", "invalid_message"),
        (encode(Start(output_sample_rate=44_100)), "unsupported_sample_rate"),
        (encode(Start(voice="missing")), "unsupported_voice"),
        (encode(Start(language="xx")), "unsupported_language"),  # is not spoken
        (encode(Start(language="de")), "unsupported_language"),  # is spoken, and not understood
        (encode(Start(phrases=["€"])), "invalid_message"),
        (encode(Control(action="mute")), "invalid_message"),
    ],
)
async def test_a_session_that_cannot_be_held(line, message, code):
    await line.send("start", message, start=True)
    closed = await line.wait(Closed)
    await line.until(lambda: line.finals("start"))
    assert (codes(line.events()), closed.reason) == ([code], "failed")
    # Nothing follows the last event by itself: a client may be gone by then.
    (last,) = [reply for reply in line.replies if reply.request_id == "start" and reply.final]
    assert isinstance(decode_event(last.event), Closed)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ({"message": b"garbage"}, "invalid_message"),
        ({"message": b'{"type":"dance"}'}, "invalid_message"),
        ({"message": b'{"type":"tool_response","call_id":"none"}'}, "unknown_tool_call"),
        ({"audio": bytes(641)}, "invalid_audio"),
        ({"audio": bytes(32_002)}, "invalid_audio"),
    ],
)
async def test_bad_input_does_not_end_the_session(line, content, code):
    await line.start()
    await line.send("bad", **content)
    await line.wait(ErrorEvent)
    await line.until(lambda: line.finals("bad"))
    assert (await line.end()).reason == "ended"
    assert codes(line.events()) == [code]


async def test_the_longest_id_and_phrases(strict):
    opened = await Line.open(strict.endpoints.grpc, "i" * 128)
    try:
        await opened.start(Start(phrases=["Ljubljana", "Jane Doe"], phrase_weight=3.0))
        await opened.send("chunk", audio=CHUNK)
        await opened.until(lambda: opened.finals("chunk"))
        assert (await opened.end()).reason == "ended"
        assert codes(opened.events()) == []
    finally:
        await opened.close()


async def test_start_twice(line):
    await line.start()
    await line.send("again", encode(Start()), start=True)
    await line.until(lambda: line.finals("again"))
    assert codes(line.events("again")) == ["session_exists"]
    await line.send("chunk", audio=CHUNK)
    await line.until(lambda: line.finals("chunk"))
    assert (await line.end()).reason == "ended"


async def test_a_chunk_without_start(line):
    await line.send("chunk", audio=CHUNK)
    (reply,) = await line.until(lambda: line.replies)
    assert "START" in reply.error


async def test_too_many_sessions(strict):
    # Sessions are counted by instance: fill both, and one more cannot be held anywhere.
    lines = [await Line.open(strict.endpoints.grpc) for _ in range(2 * SESSIONS + 1)]
    try:
        for opened in lines:
            await opened.send("start", encode(Start()), start=True)
        await asyncio.gather(*(opened.until(opened.events) for opened in lines))
        refused = [opened for opened in lines if not isinstance(opened.events()[0], Connected)]
        assert len(refused) == 1
        assert (await refused[0].wait(Closed)).reason == "failed"
        assert codes(refused[0].events()) == ["too_many_sessions"]
        # Health checks have places of their own, and leave nothing behind.
        for _ in range(10):
            seen = await asyncio.to_thread(call_canaries, strict.endpoints.grpc, ["voice_agent"], 20)
            assert seen == ["voice_agent answered"]
        await asyncio.gather(*(opened.end() for opened in lines if opened not in refused))
    finally:
        await asyncio.gather(*(opened.close() for opened in lines))
    # Their places are free again.
    again = await Line.open(strict.endpoints.grpc)
    await again.start()
    await again.end()
    await again.close()


async def test_an_idle_client_is_closed(line):
    await line.start()
    began = time.monotonic()
    closed = await line.wait(Closed, IDLE_S + 10)
    assert (codes(line.events()), closed.reason) == (["session_idle"], "idle")
    assert time.monotonic() - began >= IDLE_S - 1


async def test_audio_keeps_a_session_alive(line):
    await line.start()
    end = time.monotonic() + IDLE_S + 2
    while time.monotonic() < end:
        await line.send("audio", audio=CHUNK)
        await asyncio.sleep(0.2)
    assert (await line.end()).reason == "ended"


@pytest.fixture
def victims(strict):
    """Starts clients in processes of their own, each with an open session; ends them afterwards.

    A place that an earlier client has just left may take a moment to be free: it is asked for again.
    """
    started = []

    def start():
        end = time.monotonic() + 20
        while True:
            name = uuid.uuid4().hex
            victim = subprocess.Popen(
                [sys.executable, "-c", VICTIM, strict.endpoints.grpc, name], stdout=subprocess.PIPE, text=True
            )
            started.append(victim)
            said = victim.stdout.readline()
            if said == "open\n":
                return victim, name
            assert "too_many_sessions" in said
            assert time.monotonic() < end, "no place was given back"

    yield start
    for victim in started:
        victim.kill()
        victim.communicate()


async def open_soon(address, name=None):
    """Hold a session within twenty seconds, however often it is refused before."""
    async with asyncio.timeout(20):
        while True:
            opened = await Line.open(address, name)
            try:
                await opened.send("start", encode(Start()), start=True)
                (first, *_) = await opened.until(opened.events)
                if isinstance(first, Connected):
                    return await opened.end()
            finally:
                await opened.close()
            await asyncio.sleep(0.2)


async def test_killed_clients_give_their_places_back(strict, victims):
    for _ in range(2 * SESSIONS + 1):  # more than there are places
        victim, name = victims()
        victim.kill()
        victim.wait()
    assert (await open_soon(strict.endpoints.grpc)).reason == "ended"
    assert (await open_soon(strict.endpoints.grpc, name)).reason == "ended"  # its id is free too


async def test_half_open_clients_give_their_places_back(strict, victims):
    names = []
    for _ in range(2 * SESSIONS):
        victim, name = victims()
        os.kill(victim.pid, signal.SIGSTOP)  # the connection stays open, without a client
        names.append(name)
    assert (await open_soon(strict.endpoints.grpc)).reason == "ended"
    assert (await open_soon(strict.endpoints.grpc, names[0])).reason == "ended"


async def test_stopping_the_server_closes_open_calls(tmp_path):
    options = ServerOptions(
        load_models=AGENT_MODELS, state_dir=tmp_path / "state", exit_timeout_s=8, **ANY_PORTS
    )
    server = EmbeddedServer(options, limits=None)  # it ends, and stays away
    server.start()
    lines = []
    try:
        lines = [await Line.open(server.endpoints.grpc) for _ in range(4)]
        for opened in lines:
            await opened.start()
        talking = asyncio.gather(*(opened.talk() for opened in lines[:2]))
        await asyncio.sleep(0.5)
        began = time.monotonic()
        os.kill(server.pid, signal.SIGTERM)  # as a container's runtime does it, without the launcher
        reasons = [(await opened.wait(Closed, 5)).reason for opened in lines]
        assert reasons == ["shutdown"] * 4
        await talking
        assert [e for opened in lines for e in opened.events() if isinstance(e, ErrorEvent)] == []
        assert time.monotonic() - began < 5
        # Polite clients leave. Then the server exits, at the latest with its exit timeout: now and then
        # Triton 24.10 keeps a model loaded until that.
        for opened in lines:
            await opened.close()
        lines = []
        while server.poll() is None:
            assert time.monotonic() - began < 8 + 40, "the server exits"
            await asyncio.sleep(0.1)
    finally:
        for opened in lines:
            await opened.close()
        server.stop()
