"""uvicorn's protocols, with bounds where it has none."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, cast

import h11
import msgspec
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import HeaderLineTooLong, RequestLineTooLong, TooManyHeaders
from websockets.frames import Frame

from parley.errors import InvalidMessageError, ParleyError
from parley_gateway.connections import ConnectionLimiter
from parley_gateway.errors import HeadTooLargeError, TargetTooLongError, body_of, status_of
from parley_gateway.read_budget import ReadBudget

# A connection that has asked for nothing by then is closed (seconds).
_HEAD_S = 15.0
# A client that was refused may go on sending for so long; that is thrown away (seconds).
_REFUSED_S = 2.0
# After its API has left, a connection that cannot be closed properly is dropped (seconds).
_LINGER_S = 10.0
# Read at once, and held for a connection that waits for its share of the budget; asyncio has 256 KiB.
_READ_BYTES = 65_536
# Of a WebSocket, parsed for one event of the budget.
_PIECE_BYTES = 1_024
# Pongs that a client does not read.
_MAX_PONG_BYTES = 65_536
# Pieces of one message; without a limit, empty ones would fill the memory below every size.
_MAX_FRAGMENTS = 1_024


class _Connection(h11.Connection):
    """Parses no more events than the budget has; ``is_held``: there may be more, for a later turn."""

    def __init__(self, most_incomplete: int, budget: ReadBudget) -> None:
        super().__init__(h11.SERVER, most_incomplete)
        self._budget = budget
        self.is_held = False

    def next_event(self) -> type[h11.NEED_DATA | h11.PAUSED] | h11.Event:
        """See :class:`h11.Connection`."""
        if self.is_held or not self._budget.take():
            self.is_held = True
            return h11.NEED_DATA
        event = super().next_event()
        if isinstance(event, h11.Request | h11.EndOfMessage):
            # Sixteen headers take as long as an event.
            self._budget.spend(len(event.headers) // 16)
        return event


class _Flow(FlowControl):
    """Reads only while neither uvicorn nor the budget pauses it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._is_full = False
        self._is_held = False

    def pause_reading(self) -> None:
        """Pause until the application has taken what there is of the body."""
        self._is_full = True
        super().pause_reading()

    def resume_reading(self) -> None:
        """Go on, unless the budget is used up."""
        self._is_full = False
        if not self._is_held:
            super().resume_reading()

    def hold(self, *, is_held: bool) -> None:
        """Read nothing until the budget has room for what was read."""
        self._is_held = is_held
        if is_held:
            super().pause_reading()
        elif not self._is_full:
            super().resume_reading()


class _CycleTransport:
    """The transport as the cycle of one request uses it: what is unread at the end is thrown away."""

    def __init__(self, protocol: HttpProtocol) -> None:
        self._protocol = protocol
        self.write = protocol.transport.write
        self.is_closing = protocol.transport.is_closing

    def close(self) -> None:
        self._protocol.close_after_answer()


class HttpProtocol(H11Protocol):
    """Closes connections on which requests do not come whole, and bounds the size of heads.

    h11 looks at the size of what is incomplete only, and one read may bring 256 KiB. So it is fed with no
    more than a head may have, and the next request is fed when the one before is answered. The events of all
    connections share a budget per turn of the event loop. A request that is answered before its body has come
    is the last of its connection.
    """

    _head_timer: asyncio.TimerHandle | None = None
    _is_over = False
    """The last answer is sent; what still comes is thrown away."""

    def __init__(self, *args: Any, limiter: ConnectionLimiter, budget: ReadBudget, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limiter = limiter
        self._budget = budget
        self._descriptor = -1
        self._most = self.config.h11_max_incomplete_event_size or 0
        # A head that has as many bytes and is not complete has too many.
        self.conn = self._connection = _Connection(self._most - 1, budget)
        self._unread = bytearray()
        self._served = cast("ASGIApp", self.app)
        self.app = cast("Any", self._serve)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request; it is the last if it is answered before its body has come."""

        async def send_last(message: Message) -> None:
            if message["type"] == "http.response.start" and self.conn.their_state is h11.SEND_BODY:
                headers = MutableHeaders(raw=list(message.get("headers", ())))
                headers["Connection"] = "close"
                message = {**message, "headers": headers.raw}
            await send(message)

        await self._served(scope, receive, send_last)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request, but not for ever."""
        super().connection_made(transport)
        self.flow = self._flow = _Flow(transport)
        self._descriptor = _descriptor(transport)
        cast("Any", transport).max_size = _READ_BYTES
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """A request, or a part of it; what follows one that was refused is thrown away."""
        if not self._is_reading:
            return
        self._unread += data
        self._feed()
        # uvicorn's own timer ends at the first byte that follows an answer.
        if not self._is_answering and self._is_reading:
            self._wait_for_head()

    def _feed(self) -> None:
        while self._unread and self._is_reading and not self._connection.is_held:
            room = self._most - len(self.conn.trailing_data[0])
            if room <= 0:
                break
            piece = bytes(self._unread[:room])
            del self._unread[:room]
            super().data_received(piece)

    def _go_on(self) -> None:
        """The budget has room again."""
        self._connection.is_held = False
        if self._is_reading:
            self.handle_events()
            self._feed()
        if not self._connection.is_held and self.transport.get_protocol() is self:
            self._flow.hold(is_held=False)

    def on_response_complete(self) -> None:
        """The next request may have come already."""
        self._limiter.waiting(self._descriptor)
        super().on_response_complete()
        self._feed()

    def handle_events(self) -> None:
        """Requests that may have come whole, also while an earlier one was answered."""
        was_held, cycle = self._connection.is_held, self.cycle
        super().handle_events()
        if self.cycle is not cycle:
            self.cycle.transport = cast("Any", _CycleTransport(self))
        if self._connection.is_held and not was_held:
            self._flow.hold(is_held=True)
            self._budget.wait(self._go_on)
        if self._is_answering:
            self._limiter.busy(self._descriptor)
            self._stop_waiting()

    def close_after_answer(self) -> None:
        """Close the connection; if the request's body has not come whole, once the client has the answer."""
        if self.conn.their_state is h11.SEND_BODY or self._unread:
            self._unread.clear()
            self._close_later()
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request; 431 or 414 if its head is too large."""
        self._unread.clear()
        if self.conn.our_state is not h11.IDLE:
            # It is a body that cannot be read, and its request is under way or answered.
            self.transport.abort()
            return
        head, _ = self.conn.trailing_data
        error: ParleyError = InvalidMessageError(msg)
        if len(head) >= self._most:
            kind = HeadTooLargeError if b"\n" in head.lstrip(b"\r\n") else TargetTooLongError
            error = kind(f"a request's head has at most {self._most} bytes")
        for event in _refusal(error):
            self.transport.write(self.conn.send(event) or b"")
        self._close_later()

    def _close_later(self) -> None:
        """Close it once the client has read the answer, which the kernel discards if anything is unread."""
        self._is_over = True
        self._stop_waiting()
        try:
            self.transport.write_eof()
        except (OSError, NotImplementedError):  # the client is gone; TLS has no half-closed connections
            self.transport.close()
        else:
            self._head_timer = self.loop.call_later(_REFUSED_S, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release what waits for the client."""
        self._stop_waiting()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self, event: Any) -> None:
        """Its WebSocket has the connection from now on."""
        self._stop_waiting()
        self._limiter.busy(self._descriptor)
        self._unread.clear()
        self._flow.hold(is_held=False)
        super().handle_websocket_upgrade(event)
        protocol = cast("Any", self.transport).get_protocol()
        if not protocol.handshake_initiated:
            # websockets reads less than h11, and what it does not read it leaves unanswered.
            for part in _refusal(_why_unread(protocol.conn.handshake_exc)):
                self.transport.write(self.conn.send(part) or b"")
            self.transport.close()

    @property
    def _is_mine(self) -> bool:
        """The connection has neither become a WebSocket's nor ended."""
        return self.transport.get_protocol() is self and not self.transport.is_closing()

    @property
    def _is_reading(self) -> bool:
        return self._is_mine and not self._is_over and self.conn.their_state is not h11.ERROR

    @property
    def _is_answering(self) -> bool:
        # Before the first request there is no cycle, whatever uvicorn's annotation says.
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is not None and not cycle.response_complete

    def _wait_for_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(_HEAD_S, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def _descriptor(transport: asyncio.Transport) -> int:
    connection = transport.get_extra_info("socket")
    return -1 if connection is None else connection.fileno()


def _why_unread(cause: Exception | None) -> ParleyError:
    if isinstance(cause, RequestLineTooLong):
        return TargetTooLongError("a WebSocket's request has a too long target")
    if isinstance(cause, HeaderLineTooLong | TooManyHeaders):
        return HeadTooLargeError("a WebSocket's request has too long or too many headers")
    return InvalidMessageError("a WebSocket's request cannot be read; it has no body")


def _refusal(error: ParleyError) -> list[h11.Event]:
    body = msgspec.json.encode(body_of(error))
    headers = [
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(body))),
        ("Connection", "close"),
    ]
    status = status_of(error)
    reason = HTTPStatus(status).phrase.encode()
    response = h11.Response(status_code=status, headers=headers, reason=reason)
    return [response, h11.Data(data=body), h11.EndOfMessage()]


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """Gives up clients that are gone or flood it with what no API sees: pings and empty fragments.

    Its frames count for the budget of events per turn of the event loop.
    """

    _linger_timer: asyncio.TimerHandle | None = None
    _was_heard = False
    _is_held = False

    def __init__(self, *args: Any, budget: ReadBudget, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._budget = budget
        self._unread = bytearray()

    def data_received(self, data: bytes) -> None:
        """Something of the client."""
        self._was_heard = True
        if not self.handshake_initiated:
            super().data_received(data)  # its request, which uvicorn has parsed already
            return
        self._unread += data
        if self._is_held:
            self.transport.pause_reading()
        else:
            self._feed()

    def _feed(self) -> None:
        self._is_held = False
        while self._unread and not self.transport.is_closing():
            if not self._budget.take():
                self._is_held = True
                self.transport.pause_reading()
                self._budget.wait(self._feed)
                return
            piece = bytes(self._unread[:_PIECE_BYTES])
            del self._unread[:_PIECE_BYTES]
            super().data_received(piece)
        if self.read_paused and self.queue.empty():  # the API took all messages meanwhile
            self.read_paused = False
        if not self.read_paused:
            self.transport.resume_reading()

    def handle_events(self) -> None:
        """Pass on what was parsed."""
        self._budget.spend(len(self.conn.events))
        super().handle_events()

    async def receive(self) -> Any:
        """The next message; more is read only when everything was parsed."""
        message = await self.queue.get()
        if self.read_paused and not self._is_held and self.queue.empty():
            self.read_paused = False
            self.transport.resume_reading()
        return message

    def send_receive_event_to_app(self) -> None:
        """Pass a message on; uvicorn would log a traceback for one that is no UTF-8."""
        if self.curr_msg_data_type == "text" and not self.close_sent:
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                self.frames = []
                self.conn.send_close(1007)
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()

    async def send(self, message: Any) -> None:
        """Pass on what the API sends; with a refusal the handshake is complete, or uvicorn logs an error."""
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True

    def handle_ping(self) -> None:
        """Answer, unless the client does not read the answers."""
        if self.transport.get_write_buffer_size() > _MAX_PONG_BYTES:
            self.transport.abort()
        else:
            super().handle_ping()

    def handle_cont(self, event: Frame) -> None:
        """A further piece of a message."""
        if len(self.frames) >= _MAX_FRAGMENTS:
            self.transport.abort()
        else:
            super().handle_cont(event)

    def send_keepalive_ping(self) -> None:
        """Ask whether the client is there."""
        self._was_heard = False
        super().send_keepalive_ping()

    def keepalive_timeout(self) -> None:
        """No answer yet: it waits behind the client's unprocessed messages."""
        if (self.read_paused or self._is_held or self._was_heard) and not self.transport.is_closing():
            self._was_heard = False
            assert self.ping_timeout is not None
            self.pong_timer = self.loop.call_later(self.ping_timeout, self.keepalive_timeout)
            return
        super().keepalive_timeout()
        # What waits to be written would hold the connection open.
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        super().connection_lost(exc)

    async def run_asgi(self) -> None:
        """Run the API; a client that does not take its goodbye is dropped."""
        try:
            await super().run_asgi()
        finally:
            if not self.disconnected:
                self._linger_timer = self.loop.call_later(_LINGER_S, cast("Any", self.transport).abort)
