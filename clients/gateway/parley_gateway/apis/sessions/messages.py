"""What clients and the gateway say to each other in a session.

REST and the stream carry the words of :mod:`parley.protocol`; only what differs is here.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any, Literal, get_args

import msgspec

from parley import protocol
from parley.errors import InvalidMessageError
from parley_gateway.apis.sessions.wire import G711_RATE
from parley_gateway.audio.codecs import Encoding

SUBPROTOCOL = "parley.v1"

# --- REST -------------------------------------------------------------------------------------

# What the gateway decides itself: it only takes 16 kHz, and `/v1/agent` describes the agent.
_FIXED = frozenset(("input_sample_rate", "describe"))

SessionOptions = msgspec.defstruct(
    "SessionOptions",
    [
        (field.name, field.type, field.default)
        if field.default is not msgspec.NODEFAULT
        else (field.name, field.type, msgspec.field(default_factory=field.default_factory))
        for field in msgspec.structs.fields(protocol.Start)
        if field.name not in _FIXED
    ]
    # Of binary messages, both ways. G.711 has 8 kHz, whatever `output_sample_rate` says.
    + [("encoding", Encoding, "pcm16")],
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    namespace={"__doc__": "How the session is held; what is left out is the server's choice."},
)


def start_of(options: msgspec.Struct) -> protocol.Start:
    """How the agent is told."""
    given = msgspec.structs.asdict(options)
    if given.pop("encoding") != "pcm16":
        given["output_sample_rate"] = G711_RATE
    return protocol.Start(**given)


class SessionCreated(msgspec.Struct, frozen=True, kw_only=True):
    """A session that waits for its stream."""

    session_id: str
    stream_url: str
    """Where to connect, as WebSocket with the subprotocol `parley.v1`."""
    token: str | None
    """Lets a browser connect, and nothing else: as the subprotocols `bearer, <token>, parley.v1`. None:
    whoever asked has only a token, which is good for the stream too."""
    expires_at: str
    """Until when the stream has to be connected (ISO 8601, UTC)."""
    expires_in_s: float
    """The same, from now (seconds)."""


class PendingTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool request that nobody has answered yet."""

    call_id: str
    name: str
    arguments: dict[str, Any]


class SessionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a session is doing."""

    session_id: str
    state: Literal["waiting", "connecting", "open", "over"]
    """``waiting``: for its stream. ``over``: remembered for a while."""
    created_at: str
    """ISO 8601, UTC."""
    expires_in_s: float | None = None
    """While it waits: how long it still does (seconds)."""
    agent_state: Literal["listening", "processing", "speaking"] | None = None
    """While it is open: what the agent does."""
    turns: int = 0
    """Turns that the agent has answered."""
    pending_tools: list[PendingTool] = []
    """Tool requests that wait for an answer."""
    reason: str = ""
    """Why it is over, or why the last attempt to connect failed."""
    message: str = ""
    """The same for people, where a failure has a message."""


class ToolAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a tool returned."""

    call_id: str
    output: Any = None
    """Any JSON value."""
    is_error: bool = False


class ToolsRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Answers of tools, new tools, or both."""

    responses: list[ToolAnswer] = []
    """In answer to pending tool requests."""
    tools: list[protocol.Tool] | None = None
    """These replace the session's tools. None: they stay as they are."""


class ToolsAccepted(msgspec.Struct, frozen=True, kw_only=True):
    """What was done."""

    responses: int
    """Answers that were passed on."""
    tools: int | None
    """Tools that the session has now; None: as before."""


# --- the stream -------------------------------------------------------------------------------


class Connected(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="connected"):
    """The first message: audio may be sent."""

    session_id: str
    protocol_version: int
    encoding: Encoding
    """Of binary messages, both ways: mono PCM16, little endian, or G.711."""
    input_sample_rate: int
    """Of those to the gateway (Hz)."""
    output_sample_rate: int
    """Of those from it (Hz)."""
    max_message_bytes: int
    """No message may be longer."""


class State(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="state"):
    """What the agent is doing now."""

    state: Literal["listening", "processing", "speaking"]


_REPLACED: tuple[type, ...] = (protocol.Connected, protocol.AgentState)

FROM_CLIENT: tuple[type, ...] = tuple(
    kind for kind in get_args(protocol.ClientMessage) if kind is not protocol.Start
)
"""JSON messages to the gateway; binary ones are the user's audio."""
FROM_GATEWAY: tuple[type, ...] = (
    Connected,
    State,
    *(kind for kind in get_args(protocol.ServerEvent) if kind not in _REPLACED),
)
"""JSON messages from the gateway. An ``audio`` message with ``samples`` above 0 is followed at once by one
binary message: the samples that it speaks of."""

_stream_messages: msgspec.json.Decoder[protocol.ClientMessage] = msgspec.json.Decoder(
    reduce(or_, FROM_CLIENT)
)


def read_message(text: str) -> protocol.ClientMessage:
    """Read a JSON message of the stream.

    Raises:
        InvalidMessageError: not JSON, an unknown type or field, or a wrong value.
    """
    try:
        return _stream_messages.decode(text)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise InvalidMessageError(f"message cannot be read: {error}") from error
