"""uvicorn's protocols, with bounds where it has none."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

# A connection that has asked for nothing by then is closed (seconds).
_HEAD_S = 15.0
# After its door has left, a connection that cannot be closed properly is dropped (seconds).
_LINGER_S = 10.0
# Pongs that a client does not read.
_MAX_PONG_BYTES = 65_536
# Pieces of one message; without a limit, empty ones would fill the memory below every size.
_MAX_FRAGMENTS = 1_024


class HttpProtocol(H11Protocol):
    """Closes connections on which requests do not come whole; h11 as it bounds the size of their heads."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request, but not for ever."""
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """A request, or a part of it."""
        super().data_received(data)
        # uvicorn's own timer ends at the first byte that follows an answer.
        if not self._is_answering and self.transport.get_protocol() is self:
            self._wait_for_head()

    def handle_events(self) -> None:
        """Requests that may have come whole, also while an earlier one was answered."""
        super().handle_events()
        if self._is_answering:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing comes any more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self, event: Any) -> None:
        """Somebody else has the connection from now on."""
        self._stop_waiting()
        super().handle_websocket_upgrade(event)

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


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """Gives up clients that are gone or flood it with what no door sees: pings and empty fragments."""

    _linger_timer: asyncio.TimerHandle | None = None
    _was_heard = False

    def data_received(self, data: bytes) -> None:
        """Something of the client."""
        self._was_heard = True
        super().data_received(data)

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
        """No answer yet: of a client that sends more than is heard it waits behind the rest."""
        if (self.read_paused or self._was_heard) and not self.transport.is_closing():
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
        """Run the door; a client that does not take its goodbye is dropped."""
        try:
            await super().run_asgi()
        finally:
            if not self.disconnected:
                self._linger_timer = self.loop.call_later(_LINGER_S, cast("Any", self.transport).abort)
