"""Messages of Twilio's Media Streams.

The protocol is Twilio's "Media Streams - WebSocket Messages", bidirectional (``<Connect><Stream>``): JSON
text, 8 kHz µ-law as base64. Names are Twilio's; fields that the gateway does not need are not read.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from parley.errors import InvalidMessageError, UnsupportedSampleRateError

SAMPLE_RATE = 8_000
MAX_PAYLOAD_BYTES = SAMPLE_RATE
"""Payload of one message: a second; Twilio sends 20 ms."""
_ENCODING = "audio/x-mulaw"

# --- from Twilio ------------------------------------------------------------------------------


class _Message(msgspec.Struct, frozen=True, tag_field="event", rename="camel"):
    """Unknown fields are ignored: Twilio adds new ones."""


class MediaFormat(msgspec.Struct, frozen=True, rename="camel"):
    """The format of the audio."""

    encoding: str = _ENCODING
    sample_rate: int = SAMPLE_RATE
    channels: int = 1


class StreamInfo(msgspec.Struct, frozen=True, rename="camel"):
    """The account, the call and the format."""

    account_sid: str = ""
    call_sid: str = ""
    custom_parameters: dict[str, str] = {}
    """The ``<Parameter>`` elements of the TwiML."""
    media_format: MediaFormat = MediaFormat()


class Media(msgspec.Struct, frozen=True):
    """A piece of audio."""

    payload: bytes
    track: str = "inbound"


class Key(msgspec.Struct, frozen=True):
    """A key of the caller's telephone."""

    digit: str


class MarkName(msgspec.Struct, frozen=True):
    """The name of a mark."""

    name: str


class ConnectedMessage(_Message, frozen=True, tag="connected"):
    """The first message."""


class StartMessage(_Message, frozen=True, tag="start"):
    """The second message."""

    stream_sid: str
    start: StreamInfo


class MediaMessage(_Message, frozen=True, tag="media"):
    """Audio of the caller."""

    media: Media


class DtmfMessage(_Message, frozen=True, tag="dtmf"):
    """A key of the caller."""

    dtmf: Key


class MarkMessage(_Message, frozen=True, tag="mark"):
    """The audio up to a mark was played or cleared."""

    mark: MarkName


class StopMessage(_Message, frozen=True, tag="stop"):
    """The end of the call."""


FromTwilio: TypeAlias = (
    ConnectedMessage | StartMessage | MediaMessage | DtmfMessage | MarkMessage | StopMessage
)


class _Any(msgspec.Struct, frozen=True):
    event: str


_KNOWN = frozenset(("connected", "start", "media", "dtmf", "mark", "stop"))
_messages: msgspec.json.Decoder[FromTwilio] = msgspec.json.Decoder(FromTwilio)
_any = msgspec.json.Decoder(_Any)


def read_message(raw: str | bytes) -> FromTwilio | None:
    """Read a message, or raise InvalidMessageError; None: a message of a new type of Twilio."""
    try:
        return _messages.decode(raw)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        if _is_new(raw):
            return None
        raise InvalidMessageError(f"message cannot be read: {error}") from error


def check_format(form: MediaFormat) -> None:
    """Raise UnsupportedSampleRateError for another format than that of Media Streams."""
    if (form.encoding, form.sample_rate, form.channels) != (_ENCODING, SAMPLE_RATE, 1):
        raise UnsupportedSampleRateError(
            f"{form.encoding[:40]} of {form.sample_rate} Hz and {form.channels} channels; "
            f"only {_ENCODING} of {SAMPLE_RATE} Hz and one channel is supported"
        )


def _is_new(raw: str | bytes) -> bool:
    try:
        return _any.decode(raw).event not in _KNOWN
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return False


# --- to Twilio --------------------------------------------------------------------------------


def media(stream_sid: str, payload: str) -> dict[str, Any]:
    """Audio (base64) that is appended to the playback."""
    return {"event": "media", "streamSid": stream_sid, "media": {"payload": payload}}


def mark(stream_sid: str, name: str) -> dict[str, Any]:
    """A mark that returns when all audio before it was played, or cleared."""
    return {"event": "mark", "streamSid": stream_sid, "mark": {"name": name}}


def clear(stream_sid: str) -> dict[str, Any]:
    """Discards what was not played; its marks return at once."""
    return {"event": "clear", "streamSid": stream_sid}
