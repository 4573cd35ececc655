"""A person on a gateway's WebSocket: speaks recordings in real time and notes what comes back."""

from __future__ import annotations

import asyncio
import json
import time
import wave
from contextlib import asynccontextmanager

import httpx
import msgspec
from websockets.asyncio.client import connect

from parley.launcher.options import ROOT
from parley_client.cli.demo_tools import DEMO_TOOLS
from parley_client.tools import ToolTable

CLIPS = ROOT / "tests" / "data" / "conversation"
CHUNK_MS = 20
DEADLINE_S = 30.0
TOOLS = msgspec.to_builtins(ToolTable(DEMO_TOOLS).definitions)


class Caller:
    """One session; ``events`` are the JSON messages, each ``audio`` with the binary one behind it."""

    subprotocol = "parley.v1"

    def __init__(self, socket, session_id, http):
        self.socket = socket
        self.session_id = session_id
        self.http = http
        self.events = []
        self.tools = {}
        """Name → answers a request by the WebSocket."""
        self._clips = asyncio.Queue()
        self._changed = asyncio.Condition()

    async def hear(self):
        """Note everything; the samples of audio are put into their message."""
        async for message in self.socket:
            if isinstance(message, bytes):
                before = self.events[-1]
                assert before["type"] == "audio"
                assert "pcm" not in before
                assert len(message) == 2 * before["samples"]
                before["pcm"] = message
                continue
            event = json.loads(message) | {"at_s": time.monotonic()}
            self.events.append(event)
            if event["type"] == "tool_request" and event["name"] in self.tools:
                answer = self.tools[event["name"]](**event["arguments"])
                await self.send("tool_response", call_id=event["call_id"], output=answer)
            async with self._changed:
                self._changed.notify_all()

    async def talk(self):
        """A microphone that never pauses: clips, and silence between them."""
        size = CHUNK_MS * 32
        pcm, due = b"", time.monotonic()
        while True:
            if not pcm and not self._clips.empty():
                pcm = self._clips.get_nowait()
            await self.socket.send((pcm[:size] + bytes(size))[:size])
            pcm = pcm[size:]
            due += CHUNK_MS / 1000
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    def say(self, clip):
        """Speak a recording as soon as the one before it is over."""
        with wave.open(str(next(CLIPS.glob(f"*-{clip}.wav")))) as file:
            self._clips.put_nowait(file.readframes(file.getnframes()))

    async def send(self, kind, **fields):
        await self.socket.send(json.dumps({"type": kind, **fields}))

    def of(self, kind, since=0):
        return [event for event in self.events[since:] if event["type"] == kind]

    def answer(self, response_id):
        """A response's text so far."""
        return "".join(event["text"] for event in self.of("response") if event["response_id"] == response_id)

    async def until(self, kind, since=0, **fields):
        """The first event of a kind with these fields, from position ``since`` on."""

        def find():
            matching = (event for event in self.of(kind, since) if fields.items() <= event.items())
            return next(matching, None)

        async with asyncio.timeout(DEADLINE_S), self._changed:
            await self._changed.wait_for(find)
        return find()


class DesignCaller(Caller):
    """One session with the messages of the protocol design; ``events`` have the audio too."""

    subprotocol = "parley.design"

    async def hear(self):
        async for message in self.socket:
            is_audio = isinstance(message, bytes)
            self.events.append({"type": "audio", "pcm": message} if is_audio else json.loads(message))
            async with self._changed:
                self._changed.notify_all()


@asynccontextmanager
async def call(url, *, kind=Caller, headers=None, **options):
    """A session of the gateway at ``url``."""
    async with httpx.AsyncClient(timeout=30, base_url=url, headers=headers) as http:
        created = (await http.post("/v1/sessions", json=options)).raise_for_status().json()
        async with connect(
            created["stream_url"],
            subprotocols=["bearer", created["token"], kind.subprotocol],
            compression=None,
        ) as socket:
            one = kind(socket, created["session_id"], http)
            hearing, talking = asyncio.create_task(one.hear()), asyncio.create_task(one.talk())
            try:
                yield one
            finally:
                talking.cancel()
                hearing.cancel()
                await asyncio.gather(hearing, talking, return_exceptions=True)


async def ask_for_the_weather(caller):
    """A tool, answered on the stream."""
    caller.tools["get_weather"] = lambda city: {"temperature": 8, "sky": f"foggy in {city}"}
    caller.say("weather")
    heard = await caller.until("transcript", is_final=True)
    assert heard["text"].lower().strip(".?") == "what's the weather in paris"
    request = await caller.until("tool_request")
    assert (request["name"], request["arguments"]) == ("get_weather", {"city": "Paris"})
    done = await caller.until("response_done")
    assert "8 degrees" in caller.answer(done["response_id"])


async def interrupt_a_story(caller):
    """Speech over the agent's."""
    before = len(caller.events)
    caller.say("story")
    await caller.until("transcript", before, is_final=True)
    heard = len(caller.events)
    story = (await caller.until("audio", heard))["response_id"]
    await asyncio.sleep(2.0)  # the story is being heard
    caller.say("stop")
    interrupted = await caller.until("interrupted", heard, response_id=story)
    assert interrupted["reason"] in ("command", "words", "speech")
    assert interrupted["played_ms"] > 1_000
    assert interrupted["spoken_text"]
    assert caller.answer(story).startswith(interrupted["spoken_text"][:20])
    assert caller.of("paused", heard)[0]["response_id"] == story
    at = caller.events.index(interrupted)
    await caller.until("metrics", at)
    assert all(event["response_id"] != story for event in caller.of("audio", at))
