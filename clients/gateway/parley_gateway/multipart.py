"""Forms with a file, which goes to the spool as it comes.

Why not Starlette's: it allows a megabyte for each field, has no budget over all requests, and decodes fields
by any codec that the client names. The syntax is read by the same library, python-multipart, whose limits for
boundaries and headers hold here too.
"""

from __future__ import annotations

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from parley.errors import InvalidMessageError
from parley_gateway.spool import SpooledFile

MAX_FIELDS = 256
"""Fields of one form."""
MAX_FIELD_BYTES = 65_536
"""Of the values of all fields together."""


class InvalidFormError(InvalidMessageError):
    """The form is damaged, cut, or has too much in it."""


async def read_form(request: Request, file: SpooledFile) -> tuple[list[tuple[str, str]], str | None]:
    """Read a form with at most one file.

    Args:
        request: nothing of its body was read.
        file: gets the file's bytes; not finished if there is none.

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
    form = _Form()
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
            parser.write(chunk)
            for piece in form.take():
                await file.append(piece)
    except FormParserError as error:
        raise InvalidFormError(str(error)) from error
    if not form.complete:
        raise InvalidFormError("it ends before its last boundary")
    if form.file is not None:
        await file.finish()
    return form.fields, form.file


class _Form:
    """What the parser has found so far; the bytes of the file only until they are taken."""

    def __init__(self) -> None:
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
        self._field_bytes = 0

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
        self._is_file = b"filename" in options
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
        if self._field_bytes > MAX_FIELD_BYTES:
            raise InvalidFormError(f"its fields have more than {MAX_FIELD_BYTES} bytes")


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")
