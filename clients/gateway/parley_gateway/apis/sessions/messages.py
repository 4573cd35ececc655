"""Messages of sessions by REST and WebSocket, where they differ from :mod:`parley.protocol`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal, get_args

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from parley import protocol
from parley.chat import ChatMessage
from parley.checkpoint import ResponseProgress
from parley.errors import InvalidMessageError
from parley_client.events import AgentAudio, CallEvent, Reconnected, Reconnecting
from parley_gateway.audio.codecs import AudioFormat, AudioStreamDecoder, Encoder, Encoding
from parley_gateway.bodies import read_json

SUBPROTOCOL = "parley.v1"
# Options of the gateway: it takes 16 kHz only, `/v1/agent` describes the agent, the state of a session that
# goes on comes from another gateway, the credentials say whose call it is, and none escapes its recording.
_FIXED = frozenset(("input_sample_rate", "describe", "resume", "owner", "test"))
G711_RATE = 8_000
"""Sample rate of µ-law and A-law in both directions (Hz)."""


class SessionWire:
    """Reads and writes a stream's messages; binary ones are PCM16, as the call has it, or G.711."""

    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding
        self.input_sample_rate = protocol.INPUT_SAMPLE_RATE if encoding == "pcm16" else G711_RATE
        """Sample rate of messages to the gateway (Hz)."""
        form = AudioFormat(encoding, self.input_sample_rate)
        self._decoder = None if encoding == "pcm16" else AudioStreamDecoder(form)
        self._encoder = None if encoding == "pcm16" else Encoder(form, G711_RATE)

    def read(self, message: bytes) -> Iterable[bytes | NDArray[np.int16]]:
        """Decode a message to audio for the call, in pieces."""
        return [message] if self._decoder is None else self._decoder.pieces(message)

    def read_message(self, text: str) -> protocol.ClientMessage:
        """Read a JSON message, or raise InvalidMessageError."""
        message: protocol.ClientMessage = read_json(text, _StreamMessage, "message")
        return message

    def write(self, event: CallEvent | SessionConnected) -> Iterator[msgspec.Struct | bytes]:
        """The messages for an event. Audio is a JSON message, followed at once by its samples."""
        match event:
            case AgentAudio():
                yield protocol.Audio(
                    turn=event.turn,
                    response_id=event.response_id,
                    offset_ms=event.offset_ms,
                    sample_rate=event.sample_rate,
                    samples=len(event.samples),
                    text=event.text,
                )
                if len(event.samples):
                    yield self._encode(event.samples)
            case protocol.AgentState():
                yield State(state=event.state)
            case Reconnecting() | Reconnected():
                pass  # the session goes on, and the client has nothing to do
            case _:
                yield event

    def _encode(self, samples: NDArray[np.int16]) -> bytes:
        """The agent's audio, which is of 8 kHz for G.711."""
        if self._encoder is None:
            return samples.astype("<i2", copy=False).tobytes()
        return self._encoder.encode(samples)


class SessionResume(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A session that goes on at this gateway, and what its client has of it."""

    token: Annotated[str, Meta(max_length=256)]
    """`resumption_token` of the last `connected`."""
    audio_ms: Annotated[int, Meta(ge=0)] = 0
    """Where in the session's audio the client can begin to send again."""
    progress: ResponseProgress | None = None
    """Of the response that was under way."""


_DESIGN_VAD = protocol.VadOptions(silence_ms=300)


def _field_of(field: msgspec.structs.FieldInfo) -> tuple[str, Any, Any]:
    # `design`: 300 ms of silence end an utterance and the turn, and no pause is scored.
    kind = protocol.VadOptions | Literal["design"] if field.name == "vad" else field.type
    default = field.default
    if default is msgspec.NODEFAULT:
        default = msgspec.field(default_factory=field.default_factory)
    return field.name, kind, default


SessionOptions = msgspec.defstruct(
    "SessionOptions",
    [_field_of(field) for field in msgspec.structs.fields(protocol.Start) if field.name not in _FIXED]
    # Of binary messages in both directions. G.711 has 8 kHz, whatever `output_sample_rate` says.
    + [("encoding", Encoding, "pcm16"), ("resume", SessionResume | None, None)],
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    namespace={"__doc__": "How the session is held; what is left out is the server's choice."},
)


def start_of(options: msgspec.Struct) -> protocol.Start:
    """The agent's options for those of a session.

    Raises:
        InvalidMessageError: ``vad`` and ``turn`` exclude each other.
    """
    given = msgspec.structs.asdict(options)
    del given["resume"]
    if given["vad"] == "design":
        if given["turn"].eagerness not in (None, "off"):
            raise InvalidMessageError("turn.eagerness means nothing when vad is design")
        given["vad"] = _DESIGN_VAD
        given["turn"] = msgspec.structs.replace(given["turn"], eagerness="off")
    if given.pop("encoding") != "pcm16":
        given["output_sample_rate"] = G711_RATE
    return protocol.Start(**given)


class SessionCreated(msgspec.Struct, frozen=True, kw_only=True):
    """A session that waits for its stream."""

    session_id: str
    stream_url: str
    """Where to connect, as WebSocket with the subprotocol `parley.v1`."""
    token: str | None
    """Permits only this connection, for browsers: as the subprotocols `bearer, <token>, parley.v1`. None:
    the client has only a token, which is valid for the stream too."""
    expires_at: str
    """The stream must be connected before (ISO 8601, UTC)."""
    expires_in_s: float
    """The same, from now (seconds)."""


class PendingTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool request without a response."""

    call_id: str
    name: str
    arguments: dict[str, Any]


class SessionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a session."""

    session_id: str
    state: Literal["waiting", "connecting", "open", "over"]
    """``waiting``: for its stream. ``over``: ended, with its status still available."""
    created_at: str
    """ISO 8601, UTC."""
    expires_in_s: float | None = None
    """While it waits: the remaining time (seconds)."""
    agent_state: Literal["listening", "processing", "speaking"] | None = None
    """While it is open: the state of the agent."""
    turns: int = 0
    """Turns that the agent has answered."""
    pending_tools: list[PendingTool] = []
    """Tool requests that wait for an answer."""
    reason: str = ""
    """The reason of its end, or of the failure of the last attempt to connect."""
    message: str = ""
    """A message about a failure."""


class SessionHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The conversation of a session, as the language model gets it."""

    session_id: str
    messages: list[ChatMessage]
    """What was said, and played, in this order. Without the system prompt."""
    summary: str
    """Of what came before them; empty: nothing did."""


class ToolAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of a tool."""

    call_id: str
    output: Any = None
    """Any JSON value."""
    is_error: bool = False


class ToolsRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Answers of tools, new tools, or both."""

    responses: Annotated[list[ToolAnswer], Meta(max_length=1_024)] = []
    """In answer to pending tool requests."""
    tools: list[protocol.Tool] | None = None
    """These replace the session's tools. None: they stay as they are."""


class ToolsAccepted(msgspec.Struct, frozen=True, kw_only=True):
    """The accepted changes."""

    responses: int
    """Number of answers that were sent to the agent."""
    tools: int | None
    """Number of the session's tools; None: unchanged."""


class SessionConnected(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="connected"):
    """The first message: audio may be sent."""

    session_id: str
    protocol_version: int
    encoding: Encoding
    """Encoding of binary messages in both directions: mono PCM16, little endian, or G.711."""
    input_sample_rate: int
    """Sample rate of messages to the gateway (Hz)."""
    output_sample_rate: int
    """Sample rate of messages from the gateway (Hz)."""
    max_message_bytes: int
    """Limit of each message."""
    resumed: bool = False
    """Whether the session goes on where another connection has ended."""
    resumption_token: str | None = None
    """With which another gateway takes the session over, once there was a `checkpoint`. None: none can."""


class State(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="state"):
    """The state of the agent."""

    state: Literal["listening", "processing", "speaking"]


_OWN: tuple[type, ...] = (protocol.Connected, protocol.AgentState)
"""Events that the gateway sends in another form."""

FROM_CLIENT: tuple[type, ...] = tuple(
    kind for kind in get_args(protocol.ClientMessage) if kind is not protocol.Start
)
"""JSON messages to the gateway; binary ones are the user's audio."""
FROM_GATEWAY: tuple[type, ...] = (
    SessionConnected,
    State,
    *(kind for kind in get_args(protocol.ServerEvent) if kind not in _OWN),
)
"""JSON messages from the gateway. An ``audio`` message with ``samples`` above 0 is followed at once by one
binary message with these samples."""

_StreamMessage = reduce(or_, FROM_CLIENT)
