"""The message set ``design`` of a session's stream: its messages, and how they are made of Parley's.

Audio is mono PCM16, little endian: 16 kHz to the gateway, 22.05 kHz from it. The messages of sessions with
checkpoints about the connection (``connected``, ``checkpoint``, ``go_away``) are those of ``parley.v1``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeAlias

import msgspec
from starlette.requests import HTTPConnection

from parley import protocol
from parley.errors import InvalidAudioError, InvalidMessageError
from parley_client.events import AgentAudio, CallEvent
from parley_gateway.apis.sessions.messages import SessionConnected, SessionWire
from parley_gateway.audio.codecs import Encoding
from parley_gateway.bodies import read_json, read_options

SUBPROTOCOL = "parley.design"
MAX_CHUNK_BYTES = 32_768
"""Of a binary message, in both directions."""
VadState: TypeAlias = Literal["idle", "speaking", "ended"]
_OUTPUT_SAMPLE_RATE = 22_050
_IDLE_MS = 1_000
_BYTES_PER_MS = 2 * protocol.INPUT_SAMPLE_RATE // 1_000


class StreamQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which messages a session's stream has."""

    protocol: Literal["", "design"] = ""
    """``design``: those of the channel `design` in `/asyncapi.json`. Empty: Parley's own."""


class DesignToolResponse(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="type",
    tag="tool_response",
    forbid_unknown_fields=True,
):
    """The result of a tool request."""

    request_id: str
    result: Any
    """Any JSON value."""


class DesignAgentState(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="agent_state"):
    """The agent's state has changed; in the beginning both are false."""

    speaking: bool
    """Whether its speech is being played. False while ``vad_state`` is not ``idle``: it was interrupted, and
    audio that is not played is to be dropped."""
    processing: bool
    """Whether a turn is being answered: more text or audio may follow."""


class DesignToolRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_request"):
    """Asks the client to run a tool; several may wait for their responses."""

    request_id: str
    tool_name: str
    parameters: dict[str, Any]


class DesignTranscript(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="transcript"):
    """What the user said. Partial transcripts of an utterance replace each other."""

    text: str
    is_final: bool
    confidence: float
    """0-1."""


class DesignVadState(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="vad_state"):
    """The state of voice activity detection has changed; it begins as ``idle``."""

    state: VadState
    """``ended``: the silence has lasted for ``vad.silence_ms``. ``idle``: for 1,000 ms."""


class DesignError(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="error"):
    """A failure. The session goes on unless the WebSocket is closed."""

    code: str
    message: str
    retryable: bool


FROM_CLIENT: tuple[type, ...] = (DesignToolResponse,)
FROM_GATEWAY: tuple[type, ...] = (
    DesignAgentState,
    DesignToolRequest,
    DesignTranscript,
    DesignVadState,
    DesignError,
)


def is_chosen(connection: HTTPConnection) -> bool:
    """Whether a request asks for this message set, by its query or as a subprotocol.

    Raises:
        InvalidMessageError: the query names a message set that does not exist.
    """
    asked = read_options(connection.query_params, StreamQuery).protocol
    return asked == "design" or SUBPROTOCOL in connection.scope.get("subprotocols", ())


def prepare(start: protocol.Start, encoding: Encoding) -> protocol.Start:
    """The agent's options for a client that cannot be asked to pause what it plays.

    Raises:
        InvalidMessageError: the session is not one of audio in this form.
    """
    if (encoding, start.output, start.output_sample_rate) != ("pcm16", "audio", _OUTPUT_SAMPLE_RATE):
        raise InvalidMessageError(f"protocol design has pcm16 audio of {_OUTPUT_SAMPLE_RATE} Hz only")
    return msgspec.structs.replace(
        start, barge_in=msgspec.structs.replace(start.barge_in, pause_playback=False)
    )


class DesignWire(SessionWire):
    """Reads and writes the messages of one stream.

    Args:
        check_tool_call: Raises UnknownToolCallError if no tool request with this id waits for an answer.
        send: Sends a message that answers no event.
    """

    def __init__(
        self, check_tool_call: Callable[[str], None], send: Callable[[msgspec.Struct], None]
    ) -> None:
        super().__init__("pcm16")
        self._check_tool_call = check_tool_call
        self._send = send
        self._is_speaking = self._is_processing = False
        self._vad: VadState = "idle"
        self._shown = self._states
        self._idle_bytes = 0

    def read(self, message: bytes) -> list[bytes]:
        """The user's audio; raises InvalidAudioError if it is too long, or not of whole samples."""
        size = len(message)
        if size > MAX_CHUNK_BYTES or size % 2:
            raise InvalidAudioError(
                f"audio of {size} bytes; an even number, at most {MAX_CHUNK_BYTES}, is allowed"
            )
        # In the time of the audio: how fast it comes does not matter.
        self._idle_bytes -= size
        if self._vad == "ended" and self._idle_bytes <= 0:
            self._vad = "idle"
            for state in self._changed():
                self._send(state)
        return [message]

    def read_message(self, text: str) -> protocol.ClientMessage:
        """Read a JSON message.

        Raises:
            InvalidMessageError: it cannot be read.
            UnknownToolCallError: it answers no tool request that waits.
        """
        response: DesignToolResponse = read_json(text, DesignToolResponse, "message")
        self._check_tool_call(response.request_id)
        return protocol.ToolResponse(call_id=response.request_id, output=response.result)

    def write(self, event: CallEvent | SessionConnected) -> Iterator[msgspec.Struct | bytes]:
        """The messages for an event."""
        match event:
            case AgentAudio():
                audio = self._encode(event.samples)
                for at in range(0, len(audio), MAX_CHUNK_BYTES):
                    yield audio[at : at + MAX_CHUNK_BYTES]
            case protocol.Transcript():
                yield DesignTranscript(text=event.text, is_final=event.is_final, confidence=event.confidence)
            case protocol.ToolRequest():
                yield DesignToolRequest(
                    request_id=event.call_id, tool_name=event.name, parameters=event.arguments
                )
            case protocol.ErrorEvent():
                yield DesignError(code=event.code, message=event.message, retryable=event.retryable)
            case SessionConnected(resumption_token=str()):
                yield event
            case _:
                self._follow(event)
                yield from self._changed()

    def _follow(self, event: object) -> None:
        match event:
            case protocol.AgentState(state=state):
                self._is_speaking = state == "speaking"
                self._is_processing = state == "processing" or (self._is_speaking and self._is_processing)
            case protocol.ResponseDone():
                self._is_processing = False
            case protocol.Interrupted():
                self._is_speaking = self._is_processing = False
            case protocol.SpeechStarted():
                self._vad = "speaking"
            case protocol.SpeechStopped():
                self._vad = "ended"
                silence_ms = event.detected_at_ms - event.at_ms
                self._idle_bytes = (_IDLE_MS - silence_ms) * _BYTES_PER_MS

    @property
    def _states(self) -> tuple[DesignAgentState, DesignVadState]:
        agent = DesignAgentState(speaking=self._is_speaking, processing=self._is_processing)
        return agent, DesignVadState(state=self._vad)

    def _changed(self) -> list[DesignAgentState | DesignVadState]:
        """The states that the client does not know yet."""
        changed = [state for state in self._states if state not in self._shown]
        self._shown = self._states
        return changed
