"""Other connections of a WebRTC call, by WebSocket: its client's own server runs tools, or listens."""

from __future__ import annotations

from starlette.websockets import WebSocket

from parley.errors import ParleyError
from parley_gateway.apis.realtime.server_events import client_event_error, emitter
from parley_gateway.apis.realtime.webrtc.calls import Peer
from parley_gateway.gateway import Gateway
from parley_gateway.websocket import WebSocketSession


class Sideband(WebSocketSession):
    """Gets the events of a call and sends it those of its client; ends with the call, which outlives it."""

    def __init__(self, websocket: WebSocket, gateway: Gateway, peer: Peer) -> None:
        super().__init__(websocket, gateway)
        self._peer = peer
        self._emit = emitter(self.writer.send_json)

    def on_failed(self, error: ParleyError) -> None:
        """See :class:`WebSocketSession`."""
        self._emit("error", error=client_event_error(error).body())

    async def on_message(self, message: str | bytes) -> None:
        """See :class:`WebSocketSession`."""
        await self._peer.on_side_event(message, self._emit)

    async def send_events(self) -> None:
        """Send the call's events until it is over."""
        with self._peer.joined_by(self.writer.send_json):
            self._emit("session.created", session=self._peer.session_body)
            await self._peer.ended.wait()
