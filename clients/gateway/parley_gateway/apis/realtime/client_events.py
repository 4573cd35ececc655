"""The client's events, checked as they are read."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal, TypeAlias

import msgspec

from parley.errors import ParleyError
from parley.field_errors import describe_field_error
from parley.protocol import MAX_MESSAGE_BYTES
from parley_gateway.apis.realtime.server_events import ClientEventError, Emit, client_event_error

_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(?P<name>[^`]*)`(?: - at `\$\.?(?P<at>[^`]*)`)?")
_MISSING_FIELD = re.compile(r"Object missing required field `(?P<name>[^`]*)`(?: - at `\$\.?(?P<at>[^`]*)`)?")
_MAX_DEPTH = 64
_MAX_VALUES = 8_192
"""Values of the objects and lists of one event: the settings of 128 tools with 64 values each."""
_AT = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<at>[^`]*)`)?$", re.DOTALL)


class _Event(msgspec.Struct, frozen=True, tag_field="type", forbid_unknown_fields=True, kw_only=True):
    # The classes of events inherit these options.
    event_id: str | None = None


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a message."""

    type: str = ""
    text: str | None = None
    transcript: str | None = None
    audio: str | None = None


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """An item that the client adds to the conversation."""

    type: str
    id: str | None = None
    role: str | None = None
    content: list[Content] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | None = None
    approval_request_id: str | None = None
    approve: bool | None = None
    reason: str | None = None


class ResponseAudio(msgspec.Struct, frozen=True):
    """The audio of one response."""

    output: dict[str, Any] | None = None


class ResponseOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of one response."""

    audio: ResponseAudio | None = None
    conversation: str | None = None
    input: list[Any] | None = None
    instructions: str | None = None
    max_output_tokens: int | str | None = None
    metadata: dict[str, str] | None = None
    output_modalities: list[Literal["text", "audio"]] | None = None
    parallel_tool_calls: bool | None = None
    prompt: Any = None
    reasoning: Any = None
    tool_choice: Any = None
    tools: list[Any] | None = None


class SessionUpdate(_Event, frozen=True, tag="session.update"):
    """Changes the session."""

    session: dict[str, Any]


class AudioAppend(_Event, frozen=True, tag="input_audio_buffer.append"):
    """A piece of the user's audio."""

    audio: str


class AudioCommit(_Event, frozen=True, tag="input_audio_buffer.commit"):
    """Ends the user's turn."""


class AudioClear(_Event, frozen=True, tag="input_audio_buffer.clear"):
    """Discards the audio that is not committed."""


class OutputClear(_Event, frozen=True, tag="output_audio_buffer.clear"):
    """Stops the playback of the response; WebRTC only."""


class ItemCreate(_Event, frozen=True, tag="conversation.item.create"):
    """Adds an item to the conversation."""

    item: Item
    previous_item_id: str | None = None


class ItemRetrieve(_Event, frozen=True, tag="conversation.item.retrieve"):
    """Requests an item."""

    item_id: str


class ItemDelete(_Event, frozen=True, tag="conversation.item.delete"):
    """Deletes an item."""

    item_id: str


class ItemTruncate(_Event, frozen=True, tag="conversation.item.truncate"):
    """Removes from a response what was not played."""

    item_id: str
    content_index: int
    audio_end_ms: int


class ResponseCreate(_Event, frozen=True, tag="response.create"):
    """Requests a response."""

    response: ResponseOptions | None = None


class ResponseCancel(_Event, frozen=True, tag="response.cancel"):
    """Cancels a response."""

    response_id: str | None = None


ItemEvent: TypeAlias = ItemCreate | ItemRetrieve | ItemDelete | ItemTruncate
ClientEvent: TypeAlias = (
    SessionUpdate
    | AudioAppend
    | AudioCommit
    | AudioClear
    | OutputClear
    | ResponseCreate
    | ResponseCancel
    | ItemEvent
)
_events: msgspec.json.Decoder[ClientEvent] = msgspec.json.Decoder(ClientEvent)


class _Loose(msgspec.Struct):
    type: Any = None
    event_id: Any = None


_loose = msgspec.json.Decoder(_Loose)


def read_event(raw: str | bytes) -> ClientEvent:
    """Read a client's event; raises ClientEventError for one that does not follow the protocol."""
    _check_event_size(raw)
    try:
        event = _events.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise refusal_of_field(error, ClientEvent) from error
    if isinstance(event, SessionUpdate):
        check_shape(event.session, "session")
    elif isinstance(event, ResponseCreate) and event.response is not None:
        check_shape(msgspec.structs.asdict(event.response), "response")
    return event


async def handle_event(
    raw: str | bytes, handle: Callable[[ClientEvent], Awaitable[None]], emit: Emit
) -> None:
    """Read a client's event and pass it to ``handle``; send an ``error`` event if either refuses it."""
    event_id: str | None = None
    try:
        event = read_event(raw)
        event_id = event.event_id
        await handle(event)
    except ClientEventError as refusal:
        given_id = event_id or _read_loosely(raw).event_id
        emit("error", error=refusal.body(given_id if isinstance(given_id, str) else None))
    except ParleyError as error:
        emit("error", error=client_event_error(error).body(event_id))


def check_shape(value: Any, path: str) -> None:
    """Raise ClientEventError if the field at ``path`` has more than 64 levels, or too many values."""
    if is_too_deep(value):
        message = f"Invalid value for '{path}': it has more than {_MAX_DEPTH} levels or {_MAX_VALUES} values."
        raise ClientEventError(message, param=path)


def check_size(raw: str | bytes, path: str) -> None:
    """Raise ClientEventError for JSON that takes long to read; ``path``: what it is.

    Lists and objects are counted in the text: to make tens of thousands of them takes longer than to read
    megabytes of audio.
    """
    size = len(raw)
    if size > MAX_MESSAGE_BYTES:
        message = f"Invalid value for '{path}': it has {size} bytes; at most {MAX_MESSAGE_BYTES} are allowed."
        raise ClientEventError(message, param=path)
    if _count_opened(raw) > _MAX_VALUES:
        message = f"Invalid value for '{path}': it has more than {_MAX_VALUES} lists and objects."
        raise ClientEventError(message, param=path)


def _check_event_size(raw: str | bytes) -> None:
    is_large = len(raw) > MAX_MESSAGE_BYTES
    if not is_large and _count_opened(raw) <= _MAX_VALUES:
        return
    match _read_loosely(raw).type:
        case AudioAppend.__struct_config__.tag:
            return
        case ItemCreate.__struct_config__.tag:  # it may have audio; its texts are checked as they are added
            if is_large and _count_opened(raw) > _MAX_VALUES:
                message = f"Error adding item: at most {_MAX_VALUES} lists and objects are allowed."
                raise ClientEventError(message, code="item_create_too_large", param="item")
        case _:
            most = f"{MAX_MESSAGE_BYTES} bytes and {_MAX_VALUES} lists and objects"
            message = f"The event is too large: without audio at most {most} are allowed."
            raise ClientEventError(message, code="event_too_large")


def _count_opened(raw: str | bytes) -> int:
    """How many lists and objects there are at most: those in texts are counted too."""
    if isinstance(raw, str):
        return raw.count("[") + raw.count("{")
    return raw.count(b"[") + raw.count(b"{")


def _read_loosely(raw: str | bytes) -> _Loose:
    """The type and the id of an event whose other fields may be invalid; None: it has none."""
    try:
        return _loose.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _Loose()


def refusal_of_field(error: Exception, kind: Any, root: str = "") -> ClientEventError:
    """The refusal for an error of msgspec; ``root`` is the path of the object that was read as ``kind``."""
    text = describe_field_error(error, kind)
    if match := _UNKNOWN_FIELD.match(text):
        path = _join(root, match["at"], match["name"])
        return ClientEventError(f"Unknown parameter: '{path}'.", code="unknown_parameter", param=path)
    if match := _MISSING_FIELD.match(text):
        path = _join(root, match["at"], match["name"])
        message = f"Missing required parameter: '{path}'."
        return ClientEventError(message, code="missing_required_parameter", param=path)
    match = _AT.match(text)
    what, at = (match["what"], match["at"]) if match else (text, "")
    path = _join(root, at)
    if not isinstance(error, msgspec.ValidationError):
        return ClientEventError(f"The event cannot be read: {what}.", code="invalid_json")
    named = f" for '{path}'" if path else ""
    return ClientEventError(f"Invalid value{named}: {what}.", code="invalid_value", param=path or None)


def _join(*parts: str | None) -> str:
    return ".".join(part for part in parts if part)


def is_too_deep(value: Any) -> bool:
    """Whether lists and objects of JSON are nested more than 64 levels deep, or have too many values."""
    level = [value] if isinstance(value, dict | list) else []
    values = 0
    for _ in range(_MAX_DEPTH + 1):
        if not level:
            return False
        values += sum(map(len, level))
        if values > _MAX_VALUES:
            return True
        level = [one for outer in level for one in _inside(outer) if isinstance(one, dict | list)]
    return True


def _inside(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value
