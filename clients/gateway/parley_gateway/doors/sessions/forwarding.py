"""From the stream's messages to the call, and from the call's events to the stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parley import protocol
from parley_client.call import Call
from parley_client.events import AgentAudio, CallEvent
from parley_gateway.doors.sessions.messages import Connected, State
from parley_gateway.doors.sessions.wire import Wire
from parley_gateway.writer import SocketWriter

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
    writer: SocketWriter, event: CallEvent, wire: Wire, *, session_id: str, max_message_bytes: int
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
