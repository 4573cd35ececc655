"""The application's side of a call that outlives its servers."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager

from resuming_agent import Servers, frame

from parley import protocol
from parley_client import NO_RETRY, Deadlines, connect

LIMITS = Deadlines(connect_s=5, send_s=5, acknowledge_s=5, silence_s=30, consumer_s=5, close_s=5, resume_s=20)


class Conversation:
    """Holds a call, with all that it sent and got."""

    def __init__(self, servers, names=("a", "b"), deadlines=LIMITS, **options):
        self.events = []
        self.audio = b""
        self.tools = Counter()
        self._changed = asyncio.Event()

        async def look() -> str:
            """Look something up."""
            self.tools["look"] += 1
            await asyncio.sleep(0)
            return "42"

        self._connection = connect(
            names,
            transport=servers,
            retry=NO_RETRY,
            tools=[look],
            deadlines=deadlines,
            **{"resume": True} | options,
        )

    async def __aenter__(self):
        self.call = await self._connection.__aenter__()
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *problem):
        await self._connection.__aexit__(*problem)
        async with asyncio.timeout(10):
            await self._reader

    async def _read(self):
        try:
            async for event in self.call:
                self.events.append(event)
                self._changed.set()
        finally:
            self._changed.set()

    async def until(self, condition):
        async with asyncio.timeout(20):
            while not condition():
                assert not self._reader.done(), self.events[-3:]
                self._changed.clear()
                await self._changed.wait()

    async def answered(self, turn):
        await self.until(
            lambda: self.got(protocol.TurnMetrics) and self.got(protocol.TurnMetrics)[-1].turn >= turn
        )

    def got(self, *kinds):
        return [event for event in self.events if isinstance(event, kinds)]

    async def speak(self, *words):
        for word in words:
            self.audio += frame(word)
            await self.call.send_audio(frame(word))


@asynccontextmanager
async def moving_call(*streams, **options):
    """A call and its servers, of which the first have these streams; it is hung up at the end."""
    servers = Servers(*streams)
    line = Conversation(servers, **options)
    try:
        async with line:
            yield line, servers
            await line.call.hang_up()
    finally:
        await servers.stop()
