"""The only one who sends on a WebSocket."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any, NamedTuple

import msgspec
from starlette.requests import HTTPConnection
from starlette.websockets import WebSocket, WebSocketDisconnect

from parley_gateway.closing import HANGUP, SLOW_READER, Close
from parley_gateway.listening import WriterSettings
from parley_gateway.metrics import Metrics

_encode = msgspec.json.Encoder().encode
# A close frame that cannot leave is not worth much waiting (seconds).
_CLOSE_S = 2.0


class _Waiting(NamedTuple):
    message: str | bytes
    size: int
    since_s: float


class SocketWriter:
    """A bounded queue in front of a WebSocket.

    Sending never waits. A client that reads so slowly that the queue is full, or that one
    message does not leave in time, is closed with 1013 ``slow_reader``, and what was queued is
    thrown away: late speech is worth nothing, and the conversation has moved on.

    Args:
        websocket: An accepted WebSocket.
        settings: Bounds.
        metrics: Counts.
    """

    def __init__(self, websocket: WebSocket, settings: WriterSettings, metrics: Metrics) -> None:
        self._websocket = websocket
        self._settings = settings
        self._added = metrics.added
        self._texts, self._binaries = metrics.sent.labels("text"), metrics.sent.labels("binary")
        self._slow_readers = metrics.slow_readers
        self._waiting: deque[_Waiting] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._closing: Close | None = None
        self._stall: asyncio.Timeout | None = None
        self.is_gone = False
        """The client is not there any more."""

    @property
    def connection(self) -> HTTPConnection:
        """The WebSocket's request."""
        return self._websocket

    @property
    def closing(self) -> Close | None:
        """How it was closed; None while it is open."""
        return self._closing

    def send_json(self, message: Any) -> None:
        """Queue a message of anything that msgspec writes as JSON; ignored after :meth:`close`."""
        raw = _encode(message)
        self._push(raw.decode(), len(raw))

    def send_text(self, text: str) -> None:
        """Queue a text message; ignored after :meth:`close`."""
        self._push(text, len(text.encode()))

    def send_bytes(self, data: bytes) -> None:
        """Queue a binary message; ignored after :meth:`close`."""
        self._push(data, len(data))

    def close(self, code: int = HANGUP.code, reason: str = HANGUP.reason) -> None:
        """Close after what is queued; the first call counts."""
        if self._closing is None:
            self._closing = Close(code, reason)
            self._changed.set()
            self._room.set()

    async def wait_for_room(self) -> None:
        """Wait until less than half of what may wait does; for what is made faster than it is read.

        A client that does not read ends the wait as well: it is closed then.
        """
        while self._closing is None and (
            2 * len(self._waiting) > self._settings.messages or 2 * self._bytes > self._settings.bytes
        ):
            self._room.clear()
            await self._room.wait()

    async def run(self) -> None:
        """Send until it is closed or the client has gone; returns then."""
        try:
            while await self._next():
                waiting = self._waiting[0]
                try:
                    async with asyncio.timeout(self._settings.stall_s) as self._stall:
                        await self._send(waiting.message)
                finally:
                    self._stall = None
                self._added.observe(time.perf_counter() - waiting.since_s)
                if self._waiting:  # else it was emptied meanwhile
                    self._waiting.popleft()
                    self._bytes -= waiting.size
                    self._room.set()
        except TimeoutError:
            self._give_up()
        except (WebSocketDisconnect, RuntimeError):
            # Starlette raises the second for a message after the end.
            self._lose()
        await self._close()

    async def _next(self) -> bool:
        """Wait for a message; False: none follows."""
        while not self._waiting and self._closing is None:
            self._changed.clear()
            await self._changed.wait()
        return bool(self._waiting)

    async def _send(self, message: str | bytes) -> None:
        if isinstance(message, str):
            await self._websocket.send_text(message)
            self._texts.inc()
        else:
            await self._websocket.send_bytes(message)
            self._binaries.inc()

    def _push(self, message: str | bytes, size: int) -> None:
        if self._closing is not None:
            return
        settings = self._settings
        if len(self._waiting) >= settings.messages or self._bytes + size > settings.bytes:
            self._give_up()
            return
        self._waiting.append(_Waiting(message, size, time.perf_counter()))
        self._bytes += size
        self._changed.set()

    def _give_up(self) -> None:
        self._drop()
        if self._closing is None:
            self._slow_readers.inc()
        self.close(*SLOW_READER)
        if self._stall is not None and not self._stall.expired():
            self._stall.reschedule(0)  # nobody waits for the message that does not leave

    def _lose(self) -> None:
        self.is_gone = True
        self._drop()
        self.close()

    def _drop(self) -> None:
        self._waiting.clear()
        self._bytes = 0

    async def _close(self) -> None:
        if self.is_gone or self._closing is None:
            return
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._websocket.close(*self._closing)
        except (TimeoutError, WebSocketDisconnect, RuntimeError):
            self.is_gone = True
