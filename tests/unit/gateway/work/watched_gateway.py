"""A gateway whose work per turn of its event loop is counted while clients of another thread use it."""

import asyncio
import contextlib
from collections import Counter

import httpx
from fuzzed_gateway import PATIENCE_S, FuzzedGateway
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed
from work_counter import WorkCounter

SETTLED_TURNS = 20
"""Turns of the event loop after an answer in which nothing comes after it."""


class WatchedGateway(FuzzedGateway):
    """See :class:`FuzzedGateway`; its own tasks, and the agents and models behind it, are counted too."""

    def __init__(self, folder):
        super().__init__(folder)
        self.counter = WorkCounter()
        self.statuses = Counter()

    def __enter__(self):
        self._watching = self.counter.watching()
        self._watching.__enter__()
        super().__enter__()
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE_S)
        return self

    def __exit__(self, *error):
        self.http.close()
        super().__exit__(*error)
        self._watching.__exit__(*error)

    async def _start(self):
        await super()._start()
        self.counter.start()

    def work_of_request(self, method, target, body=None, headers=None):
        """The longest turn while a request is served."""
        try:
            answer = self.http.request(method, target, content=body, headers=headers)
        except httpx.TransportError:  # closed without reading everything
            return self.settle_turns()
        self.statuses[answer.status_code] += 1
        work = self.settle_turns()
        if target == "/v1/sessions" and answer.status_code == 201:
            self.http.delete(f"/v1/sessions/{answer.json()['session_id']}")
        return work

    def settle_turns(self):
        """Wait for some turns; the longest since the last call."""
        self.run(_turns())
        return self.counter.take()

    def new_session(self):
        """The id of a session that waits for its stream."""
        # A fake model that answers late, since lines are counted, leaves its server doubted for a moment.
        while (answer := self.http.post("/v1/sessions", json={})).status_code == 503:
            self.run(asyncio.sleep(0.05))
        assert answer.status_code == 201, answer.text
        return answer.json()["session_id"]

    @contextlib.asynccontextmanager
    async def open_session(self):
        """The id of a session whose stream is open."""
        session = await asyncio.to_thread(self.new_session)
        url = f"ws{self.url.removeprefix('http')}/v1/sessions/{session}/stream"
        async with connect(url, subprotocols=["parley.v1"], max_size=None) as socket:
            await socket.recv()
            reading = asyncio.create_task(_read(socket))
            yield session
            await socket.close()
            await reading

    async def work_of_messages(self, socket, messages):
        """For each message to a WebSocket: its name, and the longest turn while it is handled.

        A connection that a message has closed is opened again for the next one.
        """
        remaining = iter(messages)
        message = next(remaining, None)
        while message is not None:
            target = socket.target
            if "{session_id}" in target:
                target = target.replace("{session_id}", await asyncio.to_thread(self.new_session))
            url = f"ws{self.url.removeprefix('http')}{target}"
            async with connect(
                url, subprotocols=socket.subprotocols or None, additional_headers=socket.headers,
                compression=None, max_size=None,
            ) as client:  # fmt: skip
                reading = asyncio.create_task(_read(client))
                with contextlib.suppress(ConnectionClosed):
                    for opening in socket.opening:
                        await self._say(client, reading, opening)
                    while message is not None and not reading.done():
                        name, content = message
                        yield name, await self._say(client, reading, content)
                        message = next(remaining, None)
                await client.close()
                await reading

    async def _say(self, client, reading, message):
        before = self.received
        await client.send(message)
        while self.received == before and not reading.done():  # noqa: ASYNC110 - in another thread
            await asyncio.sleep(0.001)
        return await asyncio.to_thread(self.settle_turns)


async def _read(client):
    with contextlib.suppress(ConnectionClosed):
        async for _ in client:
            pass


async def _turns():
    for _ in range(SETTLED_TURNS):
        await asyncio.sleep(0)
