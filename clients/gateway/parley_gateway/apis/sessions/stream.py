"""A session's stream: audio and messages in both directions, over one WebSocket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.websockets import WebSocket

from parley import protocol
from parley.errors import InvalidInputError, OverloadedError, ParleyError
from parley_client.call import Call
from parley_client.errors import CallLostError
from parley_client.events import CallEvent
from parley_gateway.apis.sessions import design
from parley_gateway.apis.sessions.kept import KeptSession
from parley_gateway.apis.sessions.messages import SUBPROTOCOL, SessionConnected, SessionWire
from parley_gateway.apis.sessions.registry import RegisteredSession, SessionRegistry
from parley_gateway.gateway import Gateway
from parley_gateway.security.principal import Principal
from parley_gateway.websocket import (
    GOING_AWAY,
    HANGUP,
    REGULAR_REASONS,
    SLOW_READER,
    Close,
    WebSocketSession,
    accept,
    refuse,
)

_log = logging.getLogger("parley.gateway")
# What clients that stay until the end of the drain get to go on elsewhere (seconds).
_MOVE_S = 3.0
# Reported to the client; the session continues.
_REPORTED = (InvalidInputError, OverloadedError)


async def serve_stream(
    websocket: WebSocket, session_id: str, gateway: Gateway, registry: SessionRegistry
) -> None:
    """Serve one session over one WebSocket, from its request to its close."""
    try:
        principal = await gateway.guard.admit(websocket, "agent", session_id=session_id)
        is_design = design.is_chosen(websocket)
        session = registry.claim(session_id, principal)
    except ParleyError as error:
        await refuse(websocket, error, gateway)
        return
    stream = None
    is_released = False
    try:
        start = design.prepare(session.start, session.encoding) if is_design else session.start
        async with gateway.calls.open(
            start,
            principal=principal,
            api="sessions",
            shows_checkpoints=start.checkpoints,
        ) as call:
            registry.open(session, call)
            # Clients know the one, traces and the server's log the other.
            _log.info("session %s has call %s", session.id, call.id)
            await accept(websocket, design.SUBPROTOCOL if is_design else SUBPROTOCOL)
            stream = _SessionStream(websocket, session, call, gateway, principal, is_design=is_design)
            registry.end(session, await stream.end_reason())
    except ParleyError as error:
        if stream is not None:
            raise
        is_released = registry.release(session, error)
        await refuse(websocket, error, gateway)
    finally:
        # A released session may already belong to another connection.
        if not is_released:
            registry.end(session, ParleyError.code)


class _SessionStream(WebSocketSession):
    """Forwards messages and audio in both directions."""

    def __init__(
        self,
        websocket: WebSocket,
        session: RegisteredSession,
        call: Call,
        gateway: Gateway,
        principal: Principal,
        *,
        is_design: bool,
    ) -> None:
        super().__init__(websocket, gateway, drains=True)
        self._session = session
        self._call = call
        self._wire = SessionWire(session.encoding)
        if is_design:
            self._wire = design.DesignWire(session.check_tool_call, self.writer.send_json)
        self._has_hung_up = False
        self._claim = session.claim
        self._kept: KeptSession | None = None
        if session.start.checkpoints:
            self._kept = gateway.kept.keep(
                call,
                self.writer.send_json,
                session_id=session.id,
                owner=principal,
                encoding=session.encoding,
                claim=session.claim,
            )

    async def end_reason(self) -> str:
        """Run; returns the reason of the session's end."""
        close = await self.run()
        if self._kept is not None:
            await self._kept.finish(is_over=self._is_over(close))
        return "disconnected" if self.writer.is_gone and close == HANGUP else close.reason

    def _is_over(self, close: Close) -> bool:
        """Whether the conversation is over, and not only this connection."""
        closed = self._call.closed
        if self._has_hung_up:
            return True
        if closed is not None:
            # A process that ends has ended its calls.
            return closed.reason in REGULAR_REASONS and not self.gateway.calls.going_away.is_set()
        return close not in (HANGUP, GOING_AWAY, SLOW_READER) and close.reason != CallLostError.code

    def beside(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """See :class:`WebSocketSession`."""
        return () if self._kept is None else (self._kept.run(), self._announce_end())

    async def _announce_end(self) -> None:
        """Ask the client to go on elsewhere when this process is going to end."""
        calls = self.gateway.calls
        await calls.drain_began.wait()
        left_s = max(0.0, calls.drain_left_s - _MOVE_S)
        self.writer.send_json(protocol.GoAway(time_left_ms=round(1000 * left_s)))
        await asyncio.get_running_loop().create_future()

    def on_failed(self, error: ParleyError) -> None:
        """See :class:`WebSocketSession`."""
        self._send(protocol.ErrorEvent.of(error))

    async def on_message(self, message: str | bytes) -> None:
        """See :class:`WebSocketSession`."""
        content = None
        try:
            if isinstance(message, bytes):
                for piece in self._wire.read(message):
                    await self._call.send_audio(piece)
                if self._kept is not None:
                    self._kept.on_client()
                return
            content = self._wire.read_message(message)
            if isinstance(content, protocol.Control) and content.action == "hangup":
                self._has_hung_up = True
                await self._call.hang_up()
                return
            before = self._call.messages
            forward(self._call, content)
            if self._kept is not None and self._call.messages > before:
                self._kept.on_message()
            if isinstance(content, protocol.ToolResponse) and content.final:
                self._session.on_tool_answered(content.call_id)
        except _REPORTED as error:
            is_counted = isinstance(message, str) and not isinstance(content, protocol.Playback)
            if self._kept is not None and is_counted:
                self._kept.on_refused()
            self.on_failed(error)

    async def send_events(self) -> None:
        """Send the agent's events until the call is over."""
        if self._claim is not None:
            self.writer.send_json(self._claim.checkpoint())
        async for event in self._call:
            if isinstance(event, protocol.Checkpoint):
                if self._kept is not None:
                    await self._kept.on_checkpoint()
                continue
            if self._kept is not None and self._ends_with_process(event):
                break
            self._session.record(event)
            if self._kept is not None and isinstance(event, protocol.ResponseDone):
                self._kept.on_done()
            self._send(self._connected(event) if isinstance(event, protocol.Connected) else event)
        self.close_after(self._call.closed)

    def _send(self, event: CallEvent | SessionConnected) -> None:
        for message in self._wire.write(event):
            if isinstance(message, bytes):
                self.writer.send_bytes(message)
            else:
                self.writer.send_json(message)

    def _ends_with_process(self, event: CallEvent) -> bool:
        """Whether the call was hung up because the process ends: the session goes on elsewhere."""
        going_away = self.gateway.calls.going_away.is_set()
        return going_away and isinstance(event, protocol.Closed) and not self._has_hung_up

    def _connected(self, event: protocol.Connected) -> SessionConnected:
        return SessionConnected(
            session_id=self._session.id,
            protocol_version=event.protocol_version,
            encoding=self._wire.encoding,
            input_sample_rate=self._wire.input_sample_rate,
            output_sample_rate=event.output_sample_rate,
            max_message_bytes=self.gateway.settings.limits.frame_bytes,
            resumed=event.resumed,
            resumption_token=None if self._kept is None else self._kept.token,
        )


_SEND: dict[type, Callable[[Call, Any], None]] = {
    protocol.ToolResponse: Call.respond,
    protocol.Control: lambda call, control: call.mute() if control.action == "mute" else call.unmute(),
    protocol.Playback: lambda call, mark: call.report_playback(mark.response_id, mark.played_ms),
    protocol.Text: lambda call, typed: call.send_text(typed.text),
    protocol.Dtmf: lambda call, keys: call.send_dtmf(keys.digits),
    protocol.Say: lambda call, say: call.say(
        say.text, interruptible=say.interruptible, remember=say.remember
    ),
    protocol.Update: lambda call, update: call.update(update),
    protocol.Commit: lambda call, _: call.commit(),
    protocol.Discard: lambda call, _: call.discard(),
    protocol.Respond: lambda call, request: call.ask_response(
        system_prompt=request.system_prompt, use_tools=request.use_tools, must_call=request.must_call
    ),
    protocol.Remember: lambda call, memory: call.remember(memory.role, memory.text),
    protocol.Interrupt: lambda call, request: call.interrupt(request.response_id),
    protocol.Truncate: lambda call, request: call.truncate(request.response_id, request.played_ms),
}


def forward(call: Call, message: protocol.ClientMessage) -> None:
    """Send a message, except hanging up, to the call.

    Raises:
        InvalidMessageError: the message can never be accepted.
        OverloadedError: too many messages wait to be sent.
        CallEndedError, CallLostError: the call has ended, or was lost.
    """
    _SEND[type(message)](call, message)
