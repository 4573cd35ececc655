"""A voice agent without a server: plays the other side of a call's transport."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import numpy as np

from parley import protocol
from parley.errors import ParleyError
from parley_client.transport import Frame, ServerReply

CONNECTED = protocol.Connected(session_id="fake", output_sample_rate=22_050)


class FakeStream:
    """One stream; a behaviour reads its frames and answers them."""

    acknowledges = True

    def __init__(self):
        self.frames: asyncio.Queue[Frame | None] = asyncio.Queue()
        self.replies: asyncio.Queue[ServerReply | Exception | None] = asyncio.Queue()
        self.seen: list[Frame] = []
        self.cancelled = asyncio.Event()
        self.may_send = asyncio.Event()
        self.may_send.set()

    # the client's side

    async def send(self, frame: Frame) -> None:
        await self.may_send.wait()
        self.seen.append(frame)
        self.frames.put_nowait(frame)

    async def finish(self) -> None:
        self.frames.put_nowait(None)

    async def receive(self) -> ServerReply | None:
        reply = await self.replies.get()
        if isinstance(reply, Exception):
            raise reply
        return reply

    def cancel(self) -> None:
        self.cancelled.set()

    # the agent's side

    def say(self, event: protocol.ServerEvent, samples: np.ndarray | None = None) -> None:
        audio = np.zeros(0, np.int16) if samples is None else samples
        self.replies.put_nowait(ServerReply("start", protocol.encode(event), audio))

    def acknowledge(self, frame: Frame, error: str = "") -> None:
        if frame.acknowledged or error:
            self.replies.put_nowait(ServerReply(frame.request_id, final=True, error=error))

    async def begin(self) -> Frame:
        """Take START, and say that the session is open."""
        start = await self.frames.get()
        assert start is not None
        assert start.start
        self.say(CONNECTED)
        return start

    async def wait_for_end(self) -> None:
        """Take all requests up to END."""
        while not (await self.frames.get()).end:
            pass

    def close(self, reason: str = "ended") -> None:
        """Hang up, and end the stream."""
        self.hang_up(reason)
        self.end()

    def hang_up(self, reason: str = "ended") -> None:
        self.say(protocol.Closed(reason=reason))
        self.replies.put_nowait(ServerReply("start", final=True))

    def fail(self, error: Exception) -> None:
        self.replies.put_nowait(error)

    def end(self) -> None:
        self.replies.put_nowait(None)


Behaviour = Callable[[FakeStream], Awaitable[None]]


class FakeAgent:
    """Makes transports whose streams have the given behaviours, one for each call in turn."""

    def __init__(self, *behaviours: Behaviour | Exception):
        self._behaviours = deque(behaviours or (polite,))
        self.streams: list[FakeStream] = []
        self.call_ids: list[str] = []
        self.closed = 0
        self._tasks: list[asyncio.Task[None]] = []

    def __call__(self) -> FakeAgent:
        return self

    async def open(self, call_id: str, timeout_s: float) -> FakeStream:
        behaviour = self._behaviours.popleft() if len(self._behaviours) > 1 else self._behaviours[0]
        if isinstance(behaviour, Exception):
            raise behaviour
        stream = FakeStream()
        self.streams.append(stream)
        self.call_ids.append(call_id)
        self._tasks.append(asyncio.create_task(behaviour(stream)))
        return stream

    async def close(self) -> None:
        self.closed += 1
        for task in self._tasks:
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        self._tasks.clear()


def refusing(error: ParleyError, reason: str = "failed") -> Behaviour:
    """Refuses the session with an error, and closes it for a reason."""

    async def refuse(stream: FakeStream) -> None:
        await stream.frames.get()
        stream.say(protocol.ErrorEvent.of(error))
        stream.hang_up(reason)

    return refuse


async def polite(stream: FakeStream) -> None:
    """Connects, acknowledges every request, and closes at END."""
    await serve(stream)


async def serve(stream: FakeStream, on_frame: Callable[[Frame], None] = lambda _: None) -> None:
    """The polite agent; ``on_frame`` may say more about a frame."""
    await stream.begin()
    while (frame := await stream.frames.get()) is not None:
        if frame.end:
            stream.hang_up()
        else:
            on_frame(frame)
        stream.acknowledge(frame)
    stream.end()
