"""What Twilio and the gateway say to each other over a Media Stream.

The protocol is Twilio's "Media Streams - WebSocket Messages", bidirectional (``<Connect><Stream>``): JSON
text, 8 kHz µ-law as base64. Names are Twilio's; what the gateway has no use for is not read.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from parley.errors import InvalidMessageError, UnsupportedSampleRateError

SAMPLE_RATE = 8_000
MAX_PAYLOAD_BYTES = SAMPLE_RATE
"""Of one message: a second; Twilio sends 20 ms."""
_ENCODING = "audio/x-mulaw"

# --- from Twilio ------------------------------------------------------------------------------


class _Message(msgspec.Struct, frozen=True, tag_field="event", rename="camel"):
    """Unknown fields are ignored: Twilio adds some now and then."""


class MediaFormat(msgspec.Struct, frozen=True, rename="camel"):
    """How audio is written."""

    encoding: str = _ENCODING
    sample_rate: int = SAMPLE_RATE
    channels: int = 1


class StreamInfo(msgspec.Struct, frozen=True, rename="camel"):
    """Whose call it is."""

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
    """A place in the audio that was sent."""

    name: str


class ConnectedMessage(_Message, frozen=True, tag="connected"):
    """The first message."""


class StartMessage(_Message, frozen=True, tag="start"):
    """The second message."""

    stream_sid: str
    start: StreamInfo


class MediaMessage(_Message, frozen=True, tag="media"):
    """What the caller says."""

    media: Media


class DtmfMessage(_Message, frozen=True, tag="dtmf"):
    """What the caller presses."""

    dtmf: Key


class MarkMessage(_Message, frozen=True, tag="mark"):
    """The caller has heard everything up to a mark; or it was cleared."""

    mark: MarkName


class StopMessage(_Message, frozen=True, tag="stop"):
    """The caller has hung up."""


FromTwilio: TypeAlias = (
    ConnectedMessage | StartMessage | MediaMessage | DtmfMessage | MarkMessage | StopMessage
)


class _Any(msgspec.Struct, frozen=True):
    event: str


_KNOWN = frozenset(("connected", "start", "media", "dtmf", "mark", "stop"))
_messages: msgspec.json.Decoder[FromTwilio] = msgspec.json.Decoder(FromTwilio)
_any = msgspec.json.Decoder(_Any)


def read_message(raw: str | bytes) -> FromTwilio | None:
    """Read a message; None: one of a kind that Twilio has invented since.

    Raises:
        InvalidMessageError: it is not one of Twilio's.
    """
    try:
        return _messages.decode(raw)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        if _is_new(raw):
            return None
        raise InvalidMessageError(f"message cannot be read: {error}") from error


def check_format(form: MediaFormat) -> None:
    """Whether it is what Media Streams always have.

    Raises:
        UnsupportedSampleRateError: it is not.
    """
    if (form.encoding, form.sample_rate, form.channels) != (_ENCODING, SAMPLE_RATE, 1):
        raise UnsupportedSampleRateError(
            f"{form.encoding[:40]} of {form.sample_rate} Hz and {form.channels} channels; "
            f"only {_ENCODING} of {SAMPLE_RATE} Hz and one channel is known"
        )


def _is_new(raw: str | bytes) -> bool:
    try:
        return _any.decode(raw).event not in _KNOWN
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return False


# --- to Twilio --------------------------------------------------------------------------------


def media(stream_sid: str, payload: str) -> dict[str, Any]:
    """Audio to be played after what waits already; base64."""
    return {"event": "media", "streamSid": stream_sid, "media": {"payload": payload}}


def mark(stream_sid: str, name: str) -> dict[str, Any]:
    """A mark that comes back when everything sent before it was played, or cleared."""
    return {"event": "mark", "streamSid": stream_sid, "mark": {"name": name}}


def clear(stream_sid: str) -> dict[str, Any]:
    """Throw away what was not played yet; the marks in it come back at once."""
    return {"event": "clear", "streamSid": stream_sid}
