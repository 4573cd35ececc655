"""The form of a request for a transcript."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from fastapi import Request
from msgspec import Meta

from parley_gateway.apis.openai.bodies import refusal_of
from parley_gateway.apis.openai.errors import RefusedRequestError, unsupported
from parley_gateway.multipart import InvalidFormError, read_form
from parley_gateway.spool import SpooledFile

# They would add something to the answer, or change it, and cannot be had.
_REFUSED = ("known_speaker_names", "known_speaker_references")
_FORMATS = ("json", "text", "srt", "vtt", "verbose_json")
_LISTS = ("include", "keywords", "languages", "timestamp_granularities", *_REFUSED)


class TranscriptionFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What comes with a recording."""

    model: str
    """`parakeet_transcribe` or `moonshine_transcribe`, or the name of a model of OpenAI's for the one
    that the server has."""
    language: str | None = None
    """Of the speech, as in `en`."""
    languages: list[str] = []
    """As `language`: the first counts."""
    prompt: str | None = None
    """Ignored; names and words that are expected belong into `keywords`."""
    keywords: Annotated[list[Annotated[str, Meta(max_length=100)]], Meta(max_length=100)] = []
    """Names and words that are expected."""
    response_format: Literal["json", "text", "srt", "vtt", "verbose_json"] = "json"
    temperature: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Ignored: transcripts are not drawn."""
    timestamp_granularities: list[Literal["word", "segment"]] = []
    """With `verbose_json`: what is given times; segments if nothing is said. Words are refused
    by a model that knows no times of them."""
    stream: bool = False
    """Send the text as it is recognised, as server-sent events."""
    chunking_strategy: Any = None
    """Ignored: recordings are always cut at pauses."""
    include: list[str] = []
    """Nothing of it is supported."""


async def read_request(request: Request, recording: SpooledFile) -> TranscriptionFields:
    """Read the form.

    Args:
        request: nothing of its body was read.
        recording: gets the file.

    Raises:
        RefusedRequestError: something is missing, or cannot be fulfilled.
        UploadsFullError: there is no room for the file.
    """
    try:
        form, file = await read_form(request, recording)
    except InvalidFormError as error:
        raise RefusedRequestError(f"The form cannot be read: {error}") from error
    if file != "file":
        message = "Missing required parameter: 'file'."
        raise RefusedRequestError(message, param="file", reason="missing_required_parameter")
    fields = _fields(form)
    if fields.get("response_format", "json") not in _FORMATS:
        raise unsupported("response_format", f"must be one of {', '.join(_FORMATS)}")
    for name in _REFUSED:
        if fields.pop(name, None):
            raise unsupported(name)
    try:
        wanted = msgspec.convert(fields, TranscriptionFields, strict=False)
    except msgspec.ValidationError as error:
        raise refusal_of(error) from error
    if wanted.include:
        raise unsupported("include", "has nothing that these models can add")
    if wanted.stream and wanted.response_format not in ("json", "text"):
        raise unsupported("stream", "goes with the response formats json and text only")
    return wanted


def _fields(form: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Fields by name; lists come as repeated fields, with or without brackets."""
    found: dict[str, Any] = {}
    for key, value in form:
        name = key.partition("[")[0]
        if name in _LISTS:
            found.setdefault(name, []).append(value)
        else:
            found[name] = value
    return found


def texts(values: Sequence[str]) -> list[str]:
    """Without those that are empty."""
    return [value for value in values if value.strip()]
