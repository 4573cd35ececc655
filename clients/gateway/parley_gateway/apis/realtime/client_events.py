"""The client's events, checked as they are read."""

from __future__ import annotations

import re
from typing import Any, Literal, TypeAlias

import msgspec

from parley_gateway.apis.realtime.server_events import ClientEventError

_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(?P<name>[^`]*)`(?: - at `\$\.?(?P<at>[^`]*)`)?")
_MISSING_FIELD = re.compile(r"Object missing required field `(?P<name>[^`]*)`(?: - at `\$\.?(?P<at>[^`]*)`)?")
_AT = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<at>[^`]*)`)?$", re.DOTALL)


class _Event(msgspec.Struct, frozen=True, tag_field="type", forbid_unknown_fields=True, kw_only=True):
    event_id: str | None = None


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a message."""

    type: str = ""
    text: str | None = None
    transcript: str | None = None


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


class ResponseAudio(msgspec.Struct, frozen=True):
    """The audio of one response."""

    output: dict[str, Any] | None = None


class ResponseOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client wants of one response."""

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


class SessionUpdate(_Event, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="session.update"):
    """Change the session."""

    session: dict[str, Any]


class AudioAppend(
    _Event, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="input_audio_buffer.append"
):
    """A piece of the user's audio."""

    audio: str


class AudioCommit(
    _Event, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="input_audio_buffer.commit"
):
    """The user's turn is over."""


class AudioClear(
    _Event, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="input_audio_buffer.clear"
):
    """Forget what the user has said."""


class OutputClear(
    _Event, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="output_audio_buffer.clear"
):
    """WebRTC: play nothing more of the answer."""


class ItemCreate(
    _Event, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="conversation.item.create"
):
    """Add to the conversation."""

    item: Item
    previous_item_id: str | None = None


class ItemRetrieve(
    _Event, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="conversation.item.retrieve"
):
    """Show an item."""

    item_id: str


class ItemDelete(
    _Event, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="conversation.item.delete"
):
    """Forget an item."""

    item_id: str


class ItemTruncate(
    _Event, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="conversation.item.truncate"
):
    """Only so much of an answer was heard."""

    item_id: str
    content_index: int
    audio_end_ms: int


class ResponseCreate(_Event, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="response.create"):
    """Answer."""

    response: ResponseOptions | None = None


class ResponseCancel(_Event, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="response.cancel"):
    """Stop answering."""

    response_id: str | None = None


ClientEvent: TypeAlias = (
    SessionUpdate
    | AudioAppend
    | AudioCommit
    | AudioClear
    | OutputClear
    | ItemCreate
    | ItemRetrieve
    | ItemDelete
    | ItemTruncate
    | ResponseCreate
    | ResponseCancel
)
_events: msgspec.json.Decoder[ClientEvent] = msgspec.json.Decoder(ClientEvent)


class _Loose(msgspec.Struct):
    type: Any = None
    event_id: Any = None


_loose = msgspec.json.Decoder(_Loose)


def read_event(raw: str | bytes) -> ClientEvent:
    """Read a client's event.

    Raises:
        Refusal: it is none.
    """
    try:
        event = _events.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise refusal_of_field(error) from error
    if isinstance(event, SessionUpdate):
        check_nesting(event.session, "session")
    elif isinstance(event, ResponseCreate) and event.response is not None:
        check_nesting(msgspec.structs.asdict(event.response), "response")
    return event


def check_nesting(value: Any, path: str) -> None:
    """Refuse what is nested too deep.

    Args:
        value: As it was read from JSON.
        path: Of the field.

    Raises:
        Refusal: it is.
    """
    if is_too_deep(value):
        raise ClientEventError(f"Invalid value for '{path}': it is nested too deep.", param=path)


def event_id_of(raw: str | bytes) -> str | None:
    """The id of an event that may be unreadable otherwise."""
    try:
        event_id = _loose.decode(raw).event_id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return event_id if isinstance(event_id, str) else None


def refusal_of_field(error: Exception, root: str = "") -> ClientEventError:
    """Which field is wrong, and how.

    Args:
        error: What msgspec says.
        root: Path of the object that was read; empty: the event itself.
    """
    text = str(error)
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


_DEEPEST = 64


def is_too_deep(value: Any) -> bool:
    """Whether lists and objects are nested more than 64 levels deep.

    Args:
        value: As it was read from JSON.
    """
    level = [value]
    for _ in range(_DEEPEST + 1):
        level = [one for outer in level for one in _inside(outer)]
        if not level:
            return False
    return True


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
