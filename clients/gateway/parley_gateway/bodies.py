"""Bodies of requests: limits of size and time, and forms with a file."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

import msgspec
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parley.errors import InvalidMessageError, ParleyError
from parley.field_errors import describe_field_error
from parley.timeouts import loop_time
from parley_gateway.errors import BodyTooSlowError, MessageTooLargeError
from parley_gateway.failures import answer
from parley_gateway.settings_sections import LimitSettings
from parley_gateway.spool import SpooledFile

VOICES = "/v1/voices"
_UPLOADS = ("/v1/audio/", "/v1/listen", VOICES)
_VOICE_BYTES = (16 << 20) + (128 << 10)
"""Of a form with a recording of which a voice is made: what the model reads, and the fields."""
_SMALL = (
    "/v1/tokens",
    "/v1/twilio/voice",
    "/v1/twilio/ended",
    "/v1/twilio/whisper",
    "/v1/twilio/dialled",
)
MAX_SMALL_BODY = 4_096
"""Bytes of a request whose sender may be known only when it is read."""

JSON_ERRORS = (msgspec.MsgspecError, RecursionError, ValueError)
"""What msgspec raises for JSON that it cannot read."""


def read_json(raw: bytes | str, kind: Any, what: str = "the body") -> Any:
    """Read JSON as a value of ``kind``; ``what`` names it in the error.

    Raises:
        InvalidMessageError: it cannot be read; the message names the field.
    """
    try:
        return _decoder(kind).decode(raw)
    except JSON_ERRORS as error:
        raise InvalidMessageError(f"{what} cannot be read: {describe_field_error(error, kind)}") from error


OptionsT = TypeVar("OptionsT", bound=msgspec.Struct)


def read_options(given: Mapping[str, Any], kind: type[OptionsT]) -> OptionsT:
    """The options in a URL; raises InvalidMessageError for an invalid one. Unknown ones are ignored."""
    try:
        return msgspec.convert(dict(given), kind, strict=False)
    except msgspec.ValidationError as error:
        what = describe_field_error(error, kind)
        raise InvalidMessageError(f"the options cannot be used: {what}") from error


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def json_answer(content: Any, status: int = 200) -> Response:
    """A response with the JSON of a value that msgspec encodes."""
    return Response(msgspec.json.encode(content), status, media_type="application/json")


class BodyLimits:
    """ASGI middleware: answers 413 to bodies that are too large and 408 to those that do not come.

    A request whose length is given in two ways is refused, and its connection closed.
    """

    def __init__(self, app: ASGIApp, limits: LimitSettings) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _Body(receive, self._limits, scope["path"])
        headers = Headers(scope=scope)
        length = headers.get("content-length", "")
        try:
            if length and "transfer-encoding" in headers:
                # A proxy that goes by the length sees other requests than are served here (RFC 9112, 6.1).
                raise InvalidMessageError("a body has either Transfer-Encoding or Content-Length")
            body.check_announced(length)
        except ParleyError as error:
            refusal = answer(error)
            refusal.headers["Connection"] = "close"
            await refusal(scope, receive, send)
            return
        await self._app(scope, body.receive, send)


class _Body:
    """One request's body as it comes."""

    def __init__(self, receive: Receive, limits: LimitSettings, path: str) -> None:
        self._receive = receive
        self._limit = limits.upload_bytes if path.startswith(_UPLOADS) else limits.body_bytes
        if path.startswith(VOICES):
            self._limit = min(self._limit, _VOICE_BYTES)
        elif path in _SMALL:
            self._limit = min(self._limit, MAX_SMALL_BODY)
        self._seconds = limits.body_s
        self._stall_s = limits.body_stall_s
        self._size = 0
        self._deadline_s = loop_time() + limits.body_s
        self._is_complete = False

    def check_announced(self, length: str) -> None:
        if length.isdecimal() and int(length) > self._limit:
            raise self._too_large

    async def receive(self) -> Message:
        """What the app reads; after the body it only waits for the client to leave."""
        if self._is_complete:
            return await self._receive()
        stalled_s = loop_time() + self._stall_s
        try:
            async with asyncio.timeout_at(min(self._deadline_s, stalled_s)):
                message = await self._receive()
        except TimeoutError as error:
            why = f"nothing of it came for {self._stall_s:g} s"
            if self._deadline_s <= stalled_s:
                why = f"it did not come within {self._seconds:g} s"
            raise BodyTooSlowError(f"the body is too slow: {why}") from error
        self._size += len(message.get("body", b""))
        if self._size > self._limit:
            raise self._too_large
        self._is_complete = not message.get("more_body", False)
        return message

    @property
    def _too_large(self) -> MessageTooLargeError:
        return MessageTooLargeError(f"the body has more than {self._limit} bytes")


_PARSED_BYTES = 4_096
"""Of a form, in one turn of the event loop."""
MAX_FIELDS = 256
"""Fields of one form."""
MAX_FIELD_BYTES = 65_536
"""Size of the values of all fields together."""


class InvalidFormError(InvalidMessageError):
    """The form is damaged, cut, or has too much in it."""


async def read_form(
    request: Request, file: SpooledFile | None = None, *, field_bytes: int = MAX_FIELD_BYTES
) -> tuple[list[tuple[str, str]], str | None]:
    """Read a form with at most one file, which is spooled while it arrives.

    Why not Starlette's: it allows a megabyte for each field, has no budget over all requests, and decodes
    fields by any codec that the client names; some of Python's codecs take quadratic time. The syntax is
    read by the same library, python-multipart, whose limits for boundaries and headers hold here too.

    Args:
        request: nothing of its body was read.
        file: gets the file's bytes; not finished if there is none. None: parts with a file name are fields.
        field_bytes: the largest size of the names and values of all fields together; they are UTF-8.

    Returns:
        Names and values of the fields, in order, and the name of the file's field; None: there is no file.

    Raises:
        InvalidFormError: it cannot be read.
        UploadsFullError: there is no room for the file.
        ClientDisconnect: the client has left.
    """
    kind, parameters = parse_options_header(request.headers.get("content-type", ""))
    boundary = parameters.get(b"boundary")
    if kind != b"multipart/form-data":  # nothing else can hold a file
        return [], None
    if not boundary:
        raise InvalidFormError("it has no boundary")
    form = _Form(field_bytes, has_file=file is not None)
    try:
        parser = MultipartParser(
            boundary,
            {
                "on_part_begin": form.on_part_begin,
                "on_header_field": form.on_header_field,
                "on_header_value": form.on_header_value,
                "on_header_end": form.on_header_end,
                "on_headers_finished": form.on_headers_finished,
                "on_part_data": form.on_part_data,
                "on_part_end": form.on_part_end,
                "on_end": form.on_end,
            },
        )
        async for chunk in request.stream():
            for at in range(0, len(chunk), _PARSED_BYTES):
                parser.write(chunk[at : at + _PARSED_BYTES])
                # The parser goes from byte to byte where it expects a boundary or a header.
                await asyncio.sleep(0)
            if file is not None:
                for piece in form.take():
                    await file.append(piece)
    except FormParserError as error:
        raise InvalidFormError(str(error)) from error
    if not form.complete:
        raise InvalidFormError("it ends before its last boundary")
    if file is not None and form.file is not None:
        await file.finish()
    return form.fields, form.file


def fields_of(form: Sequence[tuple[str, str]], lists: Collection[str]) -> dict[str, Any]:
    """The fields of a form by name; those of ``lists`` may be repeated, with or without brackets."""
    found: dict[str, Any] = {}
    for key, value in form:
        name = key.partition("[")[0]
        if name in lists:
            found.setdefault(name, []).append(value)
        else:
            found[name] = value
    return found


class _Form:
    """What the parser has found so far; the bytes of the file only until they are taken."""

    def __init__(self, field_bytes: int, *, has_file: bool) -> None:
        self.fields: list[tuple[str, str]] = []
        self.file: str | None = None
        self.complete = False
        self._pieces: list[bytes] = []
        self._header = b""
        self._value = b""
        self._disposition = b""
        self._name = ""
        self._text = bytearray()
        self._is_file = False
        self._has_file = has_file
        self._field_bytes = 0
        self._most_field_bytes = field_bytes

    def take(self) -> list[bytes]:
        """The next bytes of the file."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def on_part_begin(self) -> None:
        self._disposition = b""
        self._text = bytearray()

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def on_header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        self._header = self._value = b""

    def on_headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        if b"name" not in options:
            raise InvalidFormError("a part has no name")
        self._name = _text(options[b"name"])
        self._is_file = self._has_file and b"filename" in options
        if self._is_file:
            if self.file is not None:
                raise InvalidFormError("it has more than one file")
            self.file = self._name
        else:
            self._count(len(self._name))
            if len(self.fields) >= MAX_FIELDS:
                raise InvalidFormError(f"it has more than {MAX_FIELDS} fields")

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self._pieces.append(data[start:end])
        else:
            self._count(end - start)
            self._text += data[start:end]

    def on_part_end(self) -> None:
        if not self._is_file:
            self.fields.append((self._name, _text(bytes(self._text))))

    def on_end(self) -> None:
        self.complete = True

    def _count(self, size: int) -> None:
        self._field_bytes += size
        if self._field_bytes > self._most_field_bytes:
            raise InvalidFormError(f"its fields have more than {self._most_field_bytes} bytes")


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")
