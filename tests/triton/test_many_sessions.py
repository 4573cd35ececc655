"""Sixteen calls at once for half a minute, some of them ended in every unkind way."""

from __future__ import annotations

import asyncio
import json
import random
import time
from contextlib import suppress

import pytest
import soundfile
from leftovers import shared_memory_bytes

from parley.launcher.options import ROOT
from parley.protocol import Closed, Connected, ErrorEvent, ResponseText, ToolRequest, Transcript, TurnMetrics
from parley_client import CallEndedError, CallLostError, Deadlines, connect
from parley_client.audio.microphone import PacedMicrophone
from parley_client.cli.demo_tools import DEMO_TOOLS
from parley_client.transport import TritonTransport

CLIPS = ROOT / "tests/data/conversation"
SESSIONS = 16
WARM_SECONDS = 30.0
SECONDS = 25.0
ROUNDS = 3
MOST_GROWTH = 64 * 2**20
SEED = 20
# What a caller may say, and what only its own answer may contain.
CITIES = {"02-weather.wav": "Paris", "08-time.wav": "Tokyo"}


@pytest.fixture(scope="module")
def clips():
    texts = {entry["file"]: entry["text"] for entry in json.loads((CLIPS / "manifest.json").read_text())}
    return {name: (text, soundfile.read(CLIPS / name, dtype="int16")[0]) for name, text in texts.items()}


class Caller:
    """Calls again and again, and notes whatever is wrong."""

    def __init__(self, number, address, clips, until):
        self.random = random.Random(SEED * 1000 + number)
        # Each caller asks about one city only: another one in its events is another's call.
        self.clip = ("02-weather.wav", "08-time.wav")[number % 2]
        self.city = CITIES[self.clip]
        self.others = set(CITIES.values()) - {self.city}
        self.address, self.clips, self.until = address, clips, until
        self.calls = self.answered = 0
        self.wrong = []

    async def run(self):
        while time.monotonic() < self.until:
            self.calls += 1
            ending = self.random.choice(("hang_up", "hang_up", "cancel", "drop"))
            try:
                await self._call(ending)
            except (CallEndedError, CallLostError) as error:
                self.wrong.append(f"{ending}: {error!r}")

    async def _call(self, ending):
        length = self.random.uniform(6, 14)
        transports = []

        def dial():
            transports.append(TritonTransport(self.address))
            return transports[-1]

        # Sixteen calls are more than two processors do in time.
        deadlines = Deadlines(close_s=30.0)
        async with connect(self.address, tools=DEMO_TOOLS, transport=dial, deadlines=deadlines) as call:
            microphone = PacedMicrophone(call.send_audio)
            speaking = asyncio.create_task(microphone.run())
            listening = asyncio.create_task(self._listen(call))
            try:
                await asyncio.sleep(self.random.uniform(0, 1))
                microphone.speak(self.clips[self.clip][1])
                if ending != "hang_up":
                    # Leaves in the middle of whatever is going on.
                    await asyncio.sleep(self.random.uniform(0.2, 3))
                else:
                    await asyncio.sleep(length / 2)
                    microphone.speak(self.clips[self.clip][1])
                    await asyncio.sleep(length / 2)
            finally:
                speaking.cancel()
                with suppress(asyncio.CancelledError):
                    await speaking
            if ending == "hang_up":
                closed = await call.hang_up()
                await asyncio.wait([listening], timeout=10)
                if closed is None or closed.reason != "ended":
                    self.wrong.append(f"hung up, closed with {closed}")
            elif ending == "drop":
                await transports[-1].close()  # no END, no word: the stream is cancelled
            listening.cancel()
            (heard,) = await asyncio.gather(listening, return_exceptions=True)
            dropped = ending == "drop" and isinstance(heard, CallLostError)
            if isinstance(heard, Exception) and not dropped:
                self.wrong.append(f"{ending}: {heard!r}")

    async def _listen(self, call):
        seen_connected = 0
        closed = False
        async for event in call:
            if closed:
                self.wrong.append(f"{event} after closed")
            closed = isinstance(event, Closed)
            if isinstance(event, Connected):
                seen_connected += 1
                if event.session_id != call.id or seen_connected > 1:
                    self.wrong.append(f"connected to {event.session_id}, not {call.id}")
            elif isinstance(event, ErrorEvent) and event.code != "audio_dropped":
                self.wrong.append(f"error {event.code}: {event.message}")
            elif isinstance(event, TurnMetrics):
                self.answered += 1
            elif isinstance(event, (Transcript, ToolRequest, ResponseText)):
                self._check_whose(event)

    def _check_whose(self, event):
        if any(city.lower() in str(event).lower() for city in self.others):
            self.wrong.append(f"somebody else's: {event}")


async def call_for(seconds, address, clips):
    callers = [Caller(n, address, clips, time.monotonic() + seconds) for n in range(SESSIONS)]
    async with asyncio.timeout(seconds + 60), asyncio.TaskGroup() as group:
        for caller in callers:
            group.create_task(caller.run())
    return callers


def stubs(server):
    return {usage.pid: usage.name for usage in server.usage()}


async def settle(server):
    """Wait until the server has freed what the calls used; tell what is left (bytes)."""
    used = [shared_memory_bytes(server.shm_prefix), sum(usage.private_bytes for usage in server.usage())]
    for _ in range(20):
        await asyncio.sleep(0.5)
        now = [shared_memory_bytes(server.shm_prefix), sum(usage.private_bytes for usage in server.usage())]
        if now >= used:
            break
        used = now
    return used


@pytest.mark.timeout(300)
async def test_sixteen_calls_at_once(server, clips):
    processes = stubs(server)
    # Caches and pools reach their size; the language model's memory grows at each new length of a step.
    await call_for(WARM_SECONDS, server.endpoints.grpc, clips)
    # What leaks grows each time, a cache that was not full yet does not.
    callers = []
    for _ in range(ROUNDS):
        shared_before, private_before = await settle(server)
        callers += await call_for(SECONDS, server.endpoints.grpc, clips)
        shared_after, private_after = await settle(server)
        if private_after <= private_before + MOST_GROWTH:
            break

    assert [problem for caller in callers for problem in caller.wrong] == []
    assert sum(caller.calls for caller in callers) >= SESSIONS * 2
    assert sum(caller.answered for caller in callers) >= SESSIONS
    assert stubs(server) == processes, "a model's process died or was replaced"
    assert shared_after <= shared_before + 4 * 2**20
    assert private_after <= private_before + MOST_GROWTH
