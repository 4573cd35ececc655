"""A session over a WebSocket: a bounded writer, metered messages, and one way to end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Self, TypeVar

import msgspec
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from parley import protocol
from parley.errors import ParleyError, SessionIdleError, ShuttingDownError
from parley.timeouts import cancel_all, first_to_end, loop_time
from parley_client.errors import CallEndedError, CallLostError
from parley_gateway.errors import RateLimitedError, WrongGatewayError, status_of
from parley_gateway.failures import answer
from parley_gateway.gateway import Gateway
from parley_gateway.metrics import Metrics
from parley_gateway.security.guard import until_revoked
from parley_gateway.security.principal import accepted_subprotocol
from parley_gateway.security.rates import Meter
from parley_gateway.settings_sections import WriterSettings

_log = logging.getLogger("parley.gateway")
_encode = msgspec.json.Encoder().encode
_ResultT = TypeVar("_ResultT")
# Wait for a close frame to be sent (seconds).
_CLOSE_S = 2.0
# Wait at shutdown for a call to end by itself (seconds).
_DRAIN_S = 1.0
REGULAR_REASONS = ("ended", "hangup", "agent_ended", "transferred", "idle", "silence")
"""Of the agent's event ``closed``: the conversation is over."""
_CODES = {413: 1009, 429: 1013, 503: 1013, 504: 1013}


class Close(NamedTuple):
    """Code and reason of a close frame."""

    code: int
    reason: str


HANGUP = Close(1000, "hangup")
GOING_AWAY = Close(1001, "going_away")
SLOW_READER = Close(1013, "slow_reader")


def close_of_call(reason: str) -> Close:
    """How a WebSocket is closed after the agent's event ``closed`` with this reason."""
    if reason == "shutdown":
        return GOING_AWAY
    return Close(1000 if reason in REGULAR_REASONS else 1011, reason)


def close_of(error: ParleyError) -> Close:
    """How a WebSocket that failed with ``error`` is closed."""
    if isinstance(error, ShuttingDownError):
        return GOING_AWAY
    if isinstance(error, RateLimitedError):
        return Close(1008, error.code)
    status = status_of(error)
    return Close(_CODES.get(status, 1011 if status >= 500 else 1008), error.code)


class _Waiting(NamedTuple):
    message: str | bytes
    size: int
    since_s: float


class SocketWriter:
    """A bounded queue in front of an accepted WebSocket.

    Sending never waits. If the queue is full, or a message is not sent in time, the client reads too slowly:
    it is closed with 1013 ``slow_reader`` and its queue is dropped, because late speech is useless.
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
        """Whether the connection is lost."""

    @property
    def connection(self) -> HTTPConnection:
        """The WebSocket's request."""
        return self._websocket

    @property
    def closing(self) -> Close | None:
        """How it was closed; None while it is open."""
        return self._closing

    def send_json(self, message: Any) -> None:
        """Queue a JSON message of a value that msgspec encodes; ignored after :meth:`close`."""
        raw = _encode(message)
        self._push(raw.decode(), len(raw))

    def send_bytes(self, data: bytes) -> None:
        """Queue a binary message; ignored after :meth:`close`."""
        self._push(data, len(data))

    def close(self, code: int = HANGUP.code, reason: str = HANGUP.reason) -> None:
        """Close after the queued messages; only the first call counts."""
        if self._closing is None:
            self._closing = Close(code, reason)
            self._changed.set()
            self._room.set()

    async def wait_for_room(self) -> None:
        """Wait until the queue is at most half full, or closed: for data produced faster than it is read."""
        while self._closing is None and (
            2 * len(self._waiting) > self._settings.messages or 2 * self._bytes > self._settings.bytes
        ):
            self._room.clear()
            await self._room.wait()

    async def run(self) -> None:
        """Send until it is closed or the connection is lost."""
        try:
            while await self._next():
                waiting = self._waiting[0]
                try:
                    async with asyncio.timeout(self._settings.stall_s) as self._stall:
                        await self._send(waiting.message)
                finally:
                    self._stall = None
                self._added.observe(time.perf_counter() - waiting.since_s)
                if self._waiting:  # else it was dropped meanwhile
                    self._waiting.popleft()
                    self._bytes -= waiting.size
                    self._room.set()
        except TimeoutError:
            self._close_slow()
        except (WebSocketDisconnect, RuntimeError):
            # Starlette raises RuntimeError for a message after the end.
            self._lose()
        await self._close()

    async def _next(self) -> bool:
        """Wait for a message; returns False if none follows."""
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
            self._close_slow()
            return
        self._waiting.append(_Waiting(message, size, time.perf_counter()))
        self._bytes += size
        self._changed.set()

    def _close_slow(self) -> None:
        self._drop()
        if self._closing is None:
            self._slow_readers.inc()
        self.close(*SLOW_READER)
        if self._stall is not None and not self._stall.expired():
            self._stall.reschedule(0)

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


async def refuse(
    websocket: WebSocket,
    error: ParleyError,
    gateway: Gateway,
    response: Callable[[ParleyError], Response] = answer,
) -> None:
    """Answer a WebSocket's request, before it is accepted, with the HTTP ``response`` for ``error``.

    What belongs to another gateway is served by that one, if it can be reached.
    """
    if isinstance(error, WrongGatewayError) and await gateway.peers.pass_on_websocket(
        websocket, error.instance
    ):
        return
    gateway.metrics.refused.labels(error.code).inc()
    await websocket.send_denial_response(response(error))


async def accept(websocket: WebSocket, subprotocol: str) -> None:
    """Accept a WebSocket with ``subprotocol`` if the client offers it, else with one of the gateway's own."""
    offered = websocket.scope.get("subprotocols", [])
    await websocket.accept(subprotocol if subprotocol in offered else accepted_subprotocol(websocket))


class WebSocketSession:
    """Both directions of an accepted WebSocket. An API implements :meth:`on_message` and :meth:`send_events`.

    Args:
        websocket: Accepted.
        gateway: The parts of the process.
        idle: Ends the session of a silent client; None: clients may be silent.
        drains: Whether the session has time to end by itself when the process shuts down.
    """

    def __init__(
        self,
        websocket: WebSocket,
        gateway: Gateway,
        *,
        idle: IdleLimit | None = None,
        drains: bool = False,
    ) -> None:
        self.gateway = gateway
        self.writer = SocketWriter(websocket, gateway.settings.writer, gateway.metrics)
        self.messages = _Messages(websocket, gateway.guard.meter(), gateway.metrics, idle)
        """The client's messages, until it disconnects."""
        self._drains = drains

    async def on_message(self, message: str | bytes) -> None:
        """Handle a message of the client; the next one is read afterwards.

        Raises:
            CallEndedError, CallLostError: the other direction ends the session.
            ParleyError: the session is closed with it.
        """
        raise NotImplementedError

    async def send_events(self) -> None:
        """Send to the client until the session is over."""
        raise NotImplementedError

    @property
    def has_opened(self) -> bool:
        """Whether its call was opened; an earlier failure is a refusal."""
        return True

    def on_failed(self, error: ParleyError) -> None:
        """Report the failure that ends the session, in the API's format."""

    def close_after(self, closed: protocol.Closed | None) -> None:
        """Close as the agent's last event says, if there is one. A process that ends closes by itself."""
        if closed is not None and not self.gateway.calls.going_away.is_set():
            self.writer.close(*close_of_call(closed.reason))

    def beside(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """What else runs as long as the session; the first that ends, ends the session."""
        return ()

    async def run(self) -> Close:
        """Run until one direction ends; then end the other and close.

        Returns:
            How the WebSocket was closed: as ``writer.close`` was called; by the error that ended a direction;
            with 1008 if its credentials are no longer accepted; with 1001 if the process shuts down; else
            with 1000.
        """
        writing = asyncio.ensure_future(self.writer.run())
        parts = (
            writing,
            self._receive(),
            self.send_events(),
            until_revoked(self.writer.connection),
            self._wait_for_shutdown(),
            *self.beside(),
        )
        with self.gateway.calls.attend():
            async with first_to_end(*parts) as (_, *others):
                await self._end(writing, others)
        assert self.writer.closing is not None
        return self.writer.closing

    async def _wait_for_shutdown(self) -> None:
        await self.gateway.calls.going_away.wait()
        if self._drains:
            await asyncio.sleep(_DRAIN_S)

    async def _receive(self) -> None:
        try:
            async for message in self.messages:
                await self.on_message(message)
        except (CallEndedError, CallLostError):
            await asyncio.get_running_loop().create_future()

    async def _end(self, writing: asyncio.Future[None], others: Sequence[asyncio.Future[None]]) -> None:
        results = await cancel_all(others)
        failure = next((result for result in results if isinstance(result, Exception)), None)
        if failure is not None:
            error = _known(failure)
            self.gateway.metrics.on_call_failed(error, has_opened=self.has_opened)
            self.on_failed(error)
            self.writer.close(*close_of(error))
        self.writer.close(*(GOING_AWAY if self.gateway.calls.going_away.is_set() else HANGUP))
        await asyncio.wait([writing], timeout=self.gateway.settings.writer.stall_s)


class _Messages:
    """The client's messages. Nothing is read ahead: TCP slows down a client that is too fast.

    Not a generator: the garbage collector would finish an abandoned one in another task.

    Raises:
        MessageTooLargeError: a message is too large.
        RateLimitedError: there are too many messages.
        SessionIdleError: no message came in time.
    """

    def __init__(self, websocket: WebSocket, meter: Meter, metrics: Metrics, idle: IdleLimit | None) -> None:
        self._websocket = websocket
        self._meter = meter
        self._idle = idle
        self._texts, self._binaries = (metrics.received.labels(kind) for kind in ("text", "binary"))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str | bytes:
        message = await (self._receive() if self._idle is None else self._idle.wait_for(self._receive()))
        if message is None:
            raise StopAsyncIteration
        return message

    async def _receive(self) -> str | bytes | None:
        while (event := await self._websocket.receive())["type"] == "websocket.receive":
            text, data = event.get("text"), event.get("bytes")
            if text is not None:
                self._meter.message(len(text.encode()))
                self._texts.inc()
                return str(text)
            if data is not None:
                self._meter.message(len(data))
                self._binaries.inc()
                return bytes(data)
        return None


def _known(failure: Exception) -> ParleyError:
    if isinstance(failure, ParleyError):
        return failure
    _log.error("a connection failed", exc_info=failure)
    return ParleyError("the gateway failed; its log says why")


class IdleLimit:
    """Limits the silence of a client to ``limit_s``; ``what`` names the awaited messages in the error."""

    def __init__(self, limit_s: float, what: str) -> None:
        self._limit_s = limit_s
        self._what = what
        self._timeout: asyncio.Timeout | None = None

    def touch(self) -> None:
        """Restart the limit, while the server works for the client."""
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(loop_time() + self._limit_s)

    async def wait_for(self, message: Awaitable[_ResultT]) -> _ResultT:
        """Await a message; raises SessionIdleError if it does not come in time."""
        try:
            async with asyncio.timeout(self._limit_s) as self._timeout:
                return await message
        except TimeoutError as error:
            raise SessionIdleError(f"no {self._what} came for {self._limit_s:g} s") from error
        finally:
            self._timeout = None
