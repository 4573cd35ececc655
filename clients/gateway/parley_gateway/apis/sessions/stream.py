"""A session's stream: audio and messages both ways, over one WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.websockets import WebSocket

from parley import protocol
from parley.errors import InvalidInputError, OverloadedError, ParleyError
from parley_client.call import Call
from parley_client.errors import CallEndedError, CallLostError
from parley_client.events import AgentAudio, CallEvent
from parley_gateway.apis.sessions.messages import SUBPROTOCOL, Connected, State, read_message
from parley_gateway.apis.sessions.registry import Session, SessionRegistry
from parley_gateway.apis.sessions.wire import SessionWire
from parley_gateway.closing import HANGUP, close_of_call
from parley_gateway.gateway import Gateway
from parley_gateway.security.meter import Meter
from parley_gateway.sockets import accept, messages, refuse, run_socket
from parley_gateway.writer import SocketWriter

# After these the session goes on: the client is told, and may do better.
_FORGIVEN = (InvalidInputError, OverloadedError)


async def serve_stream(
    websocket: WebSocket, session_id: str, gateway: Gateway, book: SessionRegistry
) -> None:
    """Carry one session over one WebSocket, from the request to the goodbye."""
    try:
        principal = await gateway.guard.admit(websocket, "agent", session_id=session_id)
        session = book.claim(session_id, principal)
    except ParleyError as error:
        await refuse(websocket, error, gateway)
        return
    stream = None
    is_given_back = False
    try:
        async with gateway.calls.open(session.start, principal=principal, api="sessions") as call:
            book.open(session, call)
            await accept(websocket, SUBPROTOCOL)
            stream = _Stream(websocket, session, call, gateway, gateway.guard.meter(principal))
            book.end(session, await stream.run())
    except ParleyError as error:
        if stream is not None:
            raise
        is_given_back = book.give_back(session, error)
        await refuse(websocket, error, gateway)
    finally:
        # What was given back may be another connection's by now.
        if not is_given_back:
            book.end(session, ParleyError.code)


class _Stream:
    """The two directions of one open session."""

    def __init__(
        self, websocket: WebSocket, session: Session, call: Call, gateway: Gateway, meter: Meter
    ) -> None:
        self._websocket = websocket
        self._session = session
        self._call = call
        self._gateway = gateway
        self._meter = meter
        self._wire = SessionWire(session.encoding)
        self._writer = SocketWriter(websocket, gateway.settings.writer, gateway.metrics)

    async def run(self) -> str:
        """Until one side ends it; returns why."""
        close = await run_socket(
            self._writer, self._gateway, self._hear(), self._speak(), on_error=self._tell_error
        )
        return "disconnected" if self._writer.is_gone and close == HANGUP else close.reason

    def _tell_error(self, error: ParleyError) -> None:
        self._writer.send_json(protocol.ErrorEvent.of(error))

    async def _hear(self) -> None:
        """From the client to the agent, until the client has gone."""
        try:
            async for message in messages(self._websocket, self._meter, self._gateway):
                await self._take(message)
        except (CallEndedError, CallLostError):
            # The other direction tells how the call ended, and is waited for.
            await asyncio.get_running_loop().create_future()

    async def _take(self, message: str | bytes) -> None:
        try:
            if isinstance(message, bytes):
                for piece in self._wire.read(message):
                    await self._call.send_audio(piece)
                return
            content = read_message(message)
            if isinstance(content, protocol.Control) and content.action == "hangup":
                await self._call.hang_up()
                return
            if isinstance(content, protocol.ToolResponse):
                self._session.check_tool_call(content.call_id)
            forward(self._call, content)
            if isinstance(content, protocol.ToolResponse):
                self._session.take_tool_call(content.call_id)
        except _FORGIVEN as error:
            self._tell_error(error)

    async def _speak(self) -> None:
        """From the agent to the client, until the call is over."""
        limit = self._gateway.settings.limits.frame_bytes
        async for event in self._call:
            self._session.note(event)
            tell(self._writer, event, self._wire, session_id=self._session.id, max_message_bytes=limit)
        closed = self._call.closed
        if closed is not None and not self._gateway.calls.going_away.is_set():
            self._writer.close(*close_of_call(closed.reason))


_SEND: dict[type, Callable[[Call, Any], None]] = {
    protocol.ToolResponse: Call.respond,
    protocol.Control: lambda call, control: call.mute() if control.action == "mute" else call.unmute(),
    protocol.Playback: lambda call, mark: call.report_playback(mark.response_id, mark.played_ms),
    protocol.Text: lambda call, typed: call.send_text(typed.text),
    protocol.Dtmf: lambda call, keys: call.send_dtmf(keys.digits),
    protocol.Say: lambda call, say: call.say(
        say.text, interruptible=say.interruptible, remember=say.remember
    ),
    protocol.Update: Call.update,
    protocol.Commit: lambda call, _: call.commit(),
    protocol.Discard: lambda call, _: call.discard(),
    protocol.Respond: lambda call, wish: call.ask_response(
        system_prompt=wish.system_prompt, use_tools=wish.use_tools
    ),
    protocol.Remember: lambda call, memory: call.remember(memory.role, memory.text),
    protocol.Interrupt: lambda call, wish: call.interrupt(wish.response_id),
    protocol.Truncate: lambda call, wish: call.truncate(wish.response_id, wish.played_ms),
}


def forward(call: Call, message: protocol.ClientMessage) -> None:
    """Pass a message on; hanging up is the stream's own business.

    Raises:
        InvalidMessageError: it can never be accepted.
        OverloadedError: too many messages wait to be sent.
        CallEndedError: the call has ended.
        CallLostError: the call was lost.
    """
    _SEND[type(message)](call, message)


def tell(
    writer: SocketWriter, event: CallEvent, wire: SessionWire, *, session_id: str, max_message_bytes: int
) -> None:
    """Pass an event on. Audio is a message with its place and words, and its samples right behind."""
    match event:
        case AgentAudio():
            writer.send_json(
                protocol.Audio(
                    turn=event.turn,
                    response_id=event.response_id,
                    offset_ms=event.offset_ms,
                    sample_rate=event.sample_rate,
                    samples=len(event.samples),
                    text=event.text,
                )
            )
            if len(event.samples):
                writer.send_bytes(wire.write(event.samples))
        case protocol.Connected():
            writer.send_json(
                Connected(
                    session_id=session_id,
                    protocol_version=event.protocol_version,
                    encoding=wire.encoding,
                    input_sample_rate=wire.input_sample_rate,
                    output_sample_rate=event.output_sample_rate,
                    max_message_bytes=max_message_bytes,
                )
            )
        case protocol.AgentState():
            writer.send_json(State(state=event.state))
        case _:
            writer.send_json(event)
