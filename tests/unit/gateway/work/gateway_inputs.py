"""The largest inputs of every route and message of a gateway, made of the types that it reads them with."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import get_args

import msgspec
from fuzz_messages import AUDIO, CALL, SDP, STREAM
from largest_inputs import TEXTS, large_json, large_texts, large_values, text
from msgspec import Struct
from starlette.routing import Route, WebSocketRoute
from twilio_line import PUBLIC_URL, sign, voice_request

from parley import protocol
from parley_gateway.apis.deepgram import messages as deepgram
from parley_gateway.apis.deepgram.converse_messages import ConverseMessage, ConverseSettings
from parley_gateway.apis.deepgram.speak import SpeakBody
from parley_gateway.apis.openai.chat import ChatRequest
from parley_gateway.apis.openai.embeddings import EmbeddingRequest
from parley_gateway.apis.openai.responses import ResponsesRequest
from parley_gateway.apis.openai.speech import SpeechRequest
from parley_gateway.apis.openai.transcriptions import TranscriptionFields
from parley_gateway.apis.realtime import client_events
from parley_gateway.apis.realtime.session_config import (
    FunctionTool,
    SessionFields,
    TranscriptionSessionFields,
)
from parley_gateway.apis.sessions import design
from parley_gateway.apis.sessions.messages import SessionOptions, ToolsRequest
from parley_gateway.apis.tokens import TokenRequest
from parley_gateway.apis.twilio import messages as twilio
from parley_gateway.apis.voices import VoiceFields
from parley_gateway.bodies import MAX_FIELD_BYTES, MAX_SMALL_BODY

BODY_BYTES = 1_048_576
"""Defaults of ``limits.body_bytes`` and ``limits.frame_bytes``."""
SIZES = (BODY_BYTES, protocol.MAX_MESSAGE_BYTES, 32_768, 4_096)
"""The largest that each of the bounds lets through: of bodies and frames, of messages to the agent, of the
values of an event, of texts to be spoken."""
TWILIO_WEBHOOKS = ("/v1/twilio/voice", "/v1/twilio/ended", "/v1/twilio/whisper", "/v1/twilio/dialled")
UPLOADS = 4
"""Recordings are larger by this factor; that the work of one turn does not grow with them is to be seen."""
HEAD_BYTES = 14_000
"""Of the 16 KiB of ``limits.header_bytes``."""
CHARSETS = ("punycode", "utf-7", "idna", "unicode_escape", "utf-16", "hz", "iso2022_jp")
"""Some of their decoders take the square of a text's length."""
JSON = "application/json"
FORM = "multipart/form-data; boundary=x"
_ROOM = 1_024
"""What is around a value."""


def half_of(size):
    """The size with which values are half as large."""
    return (size + _ROOM) // 2


@dataclass(frozen=True)
class Sent:
    """One request."""

    where: str
    body: bytes
    content_type: str = JSON
    headers: dict[str, str] = field(default_factory=dict)


class _Tools(Struct):
    type: str
    tools: list[FunctionTool]


SESSIONS = (SessionFields, TranscriptionSessionFields, _Tools)


def _json(kind, most=BODY_BYTES):
    def make(size):
        size = min(size, most) - _ROOM
        for where, value in large_values(kind, size):
            yield Sent(f"{kind.__name__}.{where}", msgspec.json.encode(value))
        for where, value in large_json(size):
            yield Sent(where, msgspec.json.encode(value))

    return make


def _secret(size):
    for kind in SESSIONS:
        for where, value in large_values(kind, size - _ROOM):
            yield Sent(f"{kind.__name__}.{where}", msgspec.json.encode({"session": value}))
    for where, value in large_json(size - _ROOM):
        yield Sent(f"session, {where}", msgspec.json.encode({"session": {"tracing": value}}))


def _part(disposition, content, more=b""):
    return (
        b"--x\r\nContent-Disposition: form-data; "
        + disposition
        + b"\r\n"
        + more
        + b"\r\n"
        + content
        + b"\r\n"
    )


def _forms(most, name):
    """Forms: large in each place, and of charsets whose decoders are slow."""
    named = b'name="%s"' % name
    for where, value in large_texts(most):
        yield where, _part(named, value.encode())
    for where, value in large_texts(most):
        yield f"name, {where}", _part(b'name="' + value.encode() + b'"', b"a")
    for charset in map(str.encode, CHARSETS):
        content_type = b"Content-Type: text/plain; charset=" + charset + b"\r\n"
        yield f"charset {charset.decode()}", _part(named, b"ab-cd9" * (most // 6), content_type)
        declared = _part(b'name="_charset_"', charset)
        yield f"_charset_ {charset.decode()}", declared + _part(named, b"abc" * (most // 3))
    yield "many fields", _part(named, b"a") * (most // 60)
    yield "many headers", _part(named, b"a", b"A: b\r\n" * (most // 6))
    yield "many parameters", _part(named + b'; a="b"' * (most // 7), b"a")
    yield "beginnings of boundaries", _part(named, b"\r\n--" * (most // 4))
    yield "line ends", _part(named, b"\r" * most)
    yield "empty lines", _part(named, b"\r\n" * (most // 2))
    yield "hyphens", _part(named, b"-" * most)
    yield "ends of parts", _part(named, b"\r\n--x-" * (most // 6))


def _form(name, most):
    def make(size):
        for where, body in _forms(min(size, most) - _ROOM, name):
            yield Sent(f"form, {where}", body + b"--x--\r\n", FORM)
        for charset in CHARSETS:
            body = _part(b'name="%s"' % name, b"-" + b"b" * (min(size, most) - _ROOM))
            yield Sent(f"form in {charset}", body + b"--x--\r\n", f"{FORM}; charset={charset}")

    return make


def _offers(size):
    yield from _form(b"sdp", BODY_BYTES)(size)
    size -= _ROOM
    for kind in SESSIONS:
        for where, value in large_values(kind, size):
            body = _part(b'name="sdp"', SDP.encode()) + _part(b'name="session"', msgspec.json.encode(value))
            yield Sent(f"session, {kind.__name__}.{where}", body + b"--x--\r\n", FORM)
    for line in (
        "a=x\r\n",
        "m=audio 9 RTP/AVP 0\r\n",
        "a=candidate:1 1 UDP 1 10.0.0.1 9 typ host\r\n",
        "a=fmtp:111 a=b\r\n",
    ):
        yield Sent(f"lines {line.strip()}", (SDP + line * (size // len(line))).encode(), "application/sdp")
    for where, value in large_texts(size):
        yield Sent(f"attribute, {where}", f"{SDP}a={value}\r\n".encode(), "application/sdp")


def _transcription(size):
    yield from _form(b"prompt", MAX_FIELD_BYTES)(size)
    audio = _part(b'name="file"; filename="a.wav"', bytes(UPLOADS * size))
    yield Sent("file", _part(b'name="model"', b"whisper-1") + audio + b"--x--\r\n", FORM)
    for name in TranscriptionFields.__struct_encode_fields__:
        value = text("short sentences", min(size, MAX_FIELD_BYTES) - _ROOM).encode()
        body = _part(b'name="%s"' % name.encode(), value) + _part(b'name="file"; filename="a"', b"RIFF")
        yield Sent(f"field {name}", body + b"--x--\r\n", FORM)


def _voice(size):
    for name in VoiceFields.__struct_encode_fields__:
        yield from _form(name.encode(), MAX_FIELD_BYTES)(size)
    yield Sent("file", _part(b'name="file"; filename="a.wav"', bytes(UPLOADS * size)) + b"--x--\r\n", FORM)


def _recording(size):
    for content_type in ("audio/wav", "audio/l16; rate=16000", "application/octet-stream"):
        yield Sent(content_type, bytes(UPLOADS * size), content_type)
    for where, value in large_json(size - _ROOM):
        yield Sent(f"url, {where}", msgspec.json.encode({"url": value}))


def _webhook(path):
    def make(size):
        size = min(size, MAX_SMALL_BODY) - 512
        for where, value in large_texts(size // 6):
            signed = voice_request({"CallSid": value}, path=path)
            headers = signed["headers"]
            yield Sent(f"form, {where}", signed["content"].encode(), headers.pop("Content-Type"), headers)
        for where, pump in (("many fields", "a=b&"), ("escapes", "a=%00&"), ("separators", "&;=")):
            body = (pump * (size // len(pump))).encode()
            yield Sent(where, body, "application/x-www-form-urlencoded", {"X-Twilio-Signature": sign("x")})

    return make


def unread_bodies(size):
    """Bodies of requests to routes that read none."""
    for where, value in large_json(size - _ROOM):
        yield Sent(f"unexpected body, {where}", msgspec.json.encode(value))


HTTP: dict[tuple[str, str], Callable[[int], object]] = {
    ("POST", "/v1/sessions"): _json(SessionOptions),
    ("POST", "/v1/sessions/{session_id}/tools"): _json(ToolsRequest),
    ("POST", "/v1/realtime/client_secrets"): _secret,
    ("POST", "/v1/realtime/calls"): _offers,
    ("POST", "/v1/realtime/calls/{call_id}/hangup"): unread_bodies,
    ("POST", "/v1/audio/transcriptions"): _transcription,
    ("POST", "/v1/voices"): _voice,
    ("POST", "/v1/audio/speech"): _json(SpeechRequest),
    ("POST", "/v1/chat/completions"): _json(ChatRequest),
    ("POST", "/v1/responses"): _json(ResponsesRequest),
    ("POST", "/v1/embeddings"): _json(EmbeddingRequest),
    ("POST", "/v1/listen"): _recording,
    ("POST", "/v1/speak"): _json(SpeakBody),
    ("POST", "/v1/tokens"): _json(TokenRequest, MAX_SMALL_BODY),
    **{("POST", path): _webhook(path) for path in TWILIO_WEBHOOKS},
}
"""Makes the requests of a route, each of about a size (bytes). Other routes read no body."""


def heads(path):
    """Targets and headers that fill most of a request's head."""
    for where, value in large_texts(HEAD_BYTES):
        yield f"header, {where}", path, {"X-Odd": value.encode("ascii", "ignore").translate(None, b"\x01\n")}
    for where, pump in (
        ("empty parameters", "&"),
        ("one parameter many times", "keyterm=a&"),
        ("escapes", "%41"),
        ("many parameters", "a=b&"),
    ):
        yield f"target, {where}", f"{path}?model={pump * (HEAD_BYTES // len(pump))}", {}
    for name in (
        "Authorization",
        "Content-Type",
        "Cookie",
        "X-Forwarded-For",
        "Accept-Language",
        "Origin",
        "Host",
    ):
        for pump in (b"a, ", b"eyJa.", b"a=b; ", b'"', b"1.2.3.4, "):
            yield f"header {name}, {pump}", path, {name: pump * (HEAD_BYTES // len(pump))}


# --- WebSockets -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Socket:
    """One WebSocket: where it is, what is said first, and what a client may say."""

    target: str
    kinds: tuple[type, ...]
    subprotocols: tuple[str, ...] = ()
    headers: dict[str, str] = field(default_factory=dict)
    opening: tuple[str, ...] = ()
    more: Callable[[int], object] = lambda _: ()


def _updates(size):
    for kind in SESSIONS:
        for where, value in large_values(kind, size - _ROOM):
            yield f"session.update, {kind.__name__}.{where}", {"type": "session.update", "session": value}


SOCKETS = {
    "/v1/sessions/{session_id}/stream": (
        Socket("/v1/sessions/{session_id}/stream", get_args(protocol.ClientMessage), ("parley.v1",)),
        Socket("/v1/sessions/{session_id}/stream?protocol=design", design.FROM_CLIENT),
    ),
    "/v1/realtime": (
        Socket(
            "/v1/realtime?model=parley", get_args(client_events.ClientEvent), ("realtime",), more=_updates
        ),
        Socket("/v1/realtime?intent=transcription", get_args(client_events.ClientEvent), ("realtime",)),
    ),
    "/v1/listen": (
        Socket("/v1/listen?encoding=linear16&sample_rate=16000", get_args(deepgram.ListenMessage)),
        Socket("/v1/listen?encoding=mulaw&sample_rate=8000", get_args(deepgram.ListenMessage)),
    ),
    "/v2/listen": (
        Socket(
            "/v2/listen?model=flux-general-en&encoding=linear16&sample_rate=16000",
            get_args(deepgram.FluxMessage),
        ),
    ),
    "/v1/agent/converse": (
        Socket(
            "/v1/agent/converse",
            get_args(ConverseMessage),
            opening=(json.dumps({"type": "Settings"}),),
        ),
        Socket("/v1/agent/converse", (ConverseSettings,)),
    ),
    "/v1/speak": (Socket("/v1/speak?encoding=linear16&sample_rate=24000", get_args(deepgram.SpeakMessage)),),
    "/v1/twilio/stream": (
        Socket(
            "/v1/twilio/stream",
            get_args(twilio.FromTwilio),
            headers={"X-Twilio-Signature": sign(f"wss{PUBLIC_URL[5:]}/v1/twilio/stream")},
            opening=(
                json.dumps({"event": "connected"}),
                json.dumps({"event": "start", **STREAM, "start": CALL}),
            ),
        ),
    ),
}


def messages(socket, size):
    """What a client of a WebSocket may say at most."""
    for kind in socket.kinds:
        for where, value in large_values(kind, size - _ROOM):
            yield f"{kind.__name__}.{where}", msgspec.json.encode(value).decode()
    for where, value in socket.more(size):
        yield where, msgspec.json.encode(value).decode()
    for where, value in large_json(size - _ROOM):
        yield where, msgspec.json.encode(value).decode()
    for where in TEXTS:
        yield f"no JSON, {where}", text(where, size - _ROOM)
    yield "binary", bytes(size - _ROOM)
    yield (
        "base64",
        json.dumps({"type": "input_audio_buffer.append", "audio": AUDIO[:4] * ((size - _ROOM) // 4)}),
    )
    yield (
        "base64 of Twilio",
        json.dumps({"event": "media", **STREAM, "media": {"payload": "////" * ((size - _ROOM) // 4)}}),
    )


def routes_of(app):
    """Methods and paths of HTTP routes, and the paths of WebSockets."""
    requests = {
        (method, route.path)
        for route in app.routes
        if isinstance(route, Route)
        for method in route.methods
        if method != "HEAD"
    }
    return requests, {route.path for route in app.routes if isinstance(route, WebSocketRoute)}
