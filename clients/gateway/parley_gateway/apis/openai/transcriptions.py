"""``POST /v1/audio/transcriptions``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from fastapi import Request
from msgspec import Meta
from numpy.typing import NDArray
from starlette.responses import JSONResponse, PlainTextResponse, Response

from parley.asr.messages import AsrOptions, TranscribeReply, TranscribeRequest, TranscriptEvent
from parley.errors import InvalidAudioError
from parley.languages import DETECT, without_region
from parley_gateway.apis.openai import rest
from parley_gateway.audio.captions import segments_of, to_srt, to_vtt, verbose_segment
from parley_gateway.audio.recordings import container_of
from parley_gateway.bodies import InvalidFormError, fields_of, read_form
from parley_gateway.model_limits import ModelSlot
from parley_gateway.spool import SpooledFile
from parley_gateway.streaming import StageRoute, while_connected
from parley_gateway.tracing import with_trace
from parley_stages import Recognition, Transcriber
from parley_stages.transcription import FOR_RECORDINGS, TRANSCRIBERS

# Unsupported options that would change the response.
_REFUSED = ("known_speaker_names", "known_speaker_references")
_FORMATS = ("json", "text", "srt", "vtt", "verbose_json")
_DEFAULT = ""
"""The server's model for recordings."""
_UNDETERMINED = "und"
"""ISO 639-2's code where there is no language."""
_LISTS = ("include", "keywords", "languages", "timestamp_granularities", *_REFUSED)


class TranscriptionFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of a request with a recording."""

    model: str
    """`parakeet_transcribe`, `moonshine_transcribe`, `whisper_transcribe` or `sherpa_onnx_transcribe`, or the
    name of a model of OpenAI for the server's own."""
    language: str | None = None
    """The language of the speech, as in `en`. Without it, and with `auto`, `whisper_transcribe` finds it out
    and is preferred; without it a model of one language reads that."""
    languages: list[str] = []
    """The same as `language`: the first counts."""
    prompt: str | None = None
    """Ignored; use `keywords` for expected names and words."""
    keywords: Annotated[list[Annotated[str, Meta(max_length=100)]], Meta(max_length=100)] = []
    """Expected names and words."""
    response_format: Literal["json", "text", "srt", "vtt", "verbose_json"] = "json"
    temperature: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Ignored: decoding does not sample."""
    timestamp_granularities: list[Literal["word", "segment"]] = []
    """With `verbose_json`: the parts with times, by default segments. A model without word times refuses
    words."""
    stream: bool = False
    """Send the text while it is recognised, as server-sent events."""
    chunking_strategy: Any = None
    """Ignored: recordings are always split at pauses."""
    include: list[str] = []
    """No value is supported."""


async def read_request(request: Request, recording: SpooledFile) -> TranscriptionFields:
    """Read a form whose body was not read yet; its file is written to ``recording``.

    Raises:
        rest.RefusedRequestError: a field is missing or not supported.
        UploadsFullError: there is no room for the file.
    """
    try:
        form, file = await read_form(request, recording)
    except InvalidFormError as error:
        raise rest.RefusedRequestError(f"The form cannot be read: {error}") from error
    if file != "file":
        raise rest.missing("file")
    fields = fields_of(form, _LISTS)
    if fields.get("response_format", "json") not in _FORMATS:
        raise rest.unsupported("response_format", f"must be one of {', '.join(_FORMATS)}")
    for name in _REFUSED:
        if fields.pop(name, None):
            raise rest.unsupported(name)
    try:
        wanted = msgspec.convert(fields, TranscriptionFields, strict=False)
    except msgspec.ValidationError as error:
        raise rest.refusal_of(error, TranscriptionFields) from error
    if wanted.include:
        raise rest.unsupported("include", "is not supported by these models")
    if wanted.stream and wanted.response_format not in ("json", "text"):
        raise rest.unsupported("stream", "is supported for the response formats json and text only")
    return wanted


def _without_blank(values: Sequence[str]) -> list[str]:
    return [value for value in values if value.strip()]


def _recordings_model(model: str) -> str | None:
    """The model for recordings that a name stands for; None: the server's choice."""
    named = FOR_RECORDINGS.get(model, model)
    return named if named in TRANSCRIBERS else None


def _streams_model(model: str, default: str) -> str:
    """The model for streams that a name stands for; ``default`` where it names none."""
    streams = {recordings: name for name, recordings in FOR_RECORDINGS.items()}
    named = streams.get(model, model)
    return default if named == _DEFAULT else named


class TranscriptionRoute(StageRoute):
    """Transcribes recordings."""

    async def create(self, request: Request) -> Response:
        """Transcribe a recording, as a whole or as a stream."""
        principal = await self._gateway.guard.admit(request, "transcribe")
        with ExitStack() as resources:
            # Before the body is read: recordings that wait for a server must not fill the disk.
            slot = resources.enter_context(self._limiter.place(principal))
            self._gateway.spool.check_announced(request.headers, slot.owner)
            with self._gateway.spool.open(slot.owner) as recording:
                fields = await read_request(request, recording)
                model = rest.choose_model(fields.model, rest.RECOGNIZERS, _DEFAULT)
                audio = resources.enter_context(self._gateway.spool.open(slot.owner))
                await while_connected(request, self._decode(recording, audio))
            if fields.stream:
                return await self._stream_response(
                    request,
                    rest.with_failures(self._events(slot, audio, fields, model)),
                    media_type=rest.MEDIA_TYPE,
                    resources=resources.pop_all(),
                )
            reply = await while_connected(request, self._transcribe(slot, audio, fields, model))
            return _answer(reply, fields)

    async def _decode(self, recording: SpooledFile, audio: SpooledFile) -> None:
        try:
            container = container_of(recording.head)
            await self._gateway.decoders.decode(recording, container, audio, self._settings.recording_s)
        except InvalidAudioError as error:
            raise rest.RefusedRequestError(str(error), param="file", reason="invalid_file") from error

    async def _transcribe(
        self, slot: ModelSlot, audio: SpooledFile, fields: TranscriptionFields, model: str
    ) -> TranscribeReply:
        request = TranscribeRequest(language=_language(fields), phrases=_without_blank(fields.keywords))
        async with self._gateway.spool.samples_of(audio) as samples:
            named = _recordings_model(model)
            with rest.serving(named or fields.model, named), slot.lease() as server:
                async with Transcriber(
                    server, model=named, timeout_s=self._settings.transcribe_s
                ) as recordings:
                    return await recordings.transcribe(samples, with_trace(request))

    async def _events(
        self, slot: ModelSlot, audio: SpooledFile, fields: TranscriptionFields, model: str
    ) -> AsyncGenerator[bytes, None]:
        """The final transcripts of a stream, in order."""
        options = AsrOptions(
            language=_language(fields),
            phrases=_without_blank(fields.keywords),
            partial_interval_ms=0,
            words=False,
        )
        named = _streams_model(model, self._settings.recognizer)
        asked = fields.model if model == _DEFAULT else named
        said: list[str] = []
        async with self._gateway.spool.samples_of(audio) as samples:
            with rest.serving(asked, named), slot.lease() as server:
                async with Recognition(server, with_trace(options), model=named) as recognition:
                    sending = asyncio.ensure_future(_send(recognition, samples))
                    try:
                        async for event in recognition:
                            if isinstance(event, TranscriptEvent) and event.is_final and event.text:
                                delta = f" {event.text}" if said else event.text
                                said.append(delta)
                                yield rest.event({"type": "transcript.text.delta", "delta": delta})
                        await sending
                    finally:
                        sending.cancel()
                        await asyncio.wait([sending])
        yield rest.event({"type": "transcript.text.done", "text": "".join(said)})


async def _send(recognition: Recognition, audio: NDArray[np.int16]) -> None:
    try:
        await recognition.send_all(audio)
    finally:
        recognition.end()  # otherwise its events would never end


def _language(fields: TranscriptionFields) -> str:
    """The language without its region; empty: none is named."""
    return without_region(fields.language or next(iter(fields.languages), ""))


def _heard_language(reply: TranscribeReply, fields: TranscriptionFields) -> str:
    """The language that a recording was read in; ``und``: neither the model nor the request says it."""
    named = _language(fields)
    return reply.language or (_UNDETERMINED if named in ("", DETECT) else named)


def _answer(reply: TranscribeReply, fields: TranscriptionFields) -> Response:
    match fields.response_format:
        case "text":
            return PlainTextResponse(reply.text + "\n")
        case "srt":
            return PlainTextResponse(to_srt(segments_of(reply)), media_type="application/x-subrip")
        case "vtt":
            return PlainTextResponse(to_vtt(segments_of(reply)), media_type="text/vtt")
    seconds = reply.duration_ms / 1000
    body: dict[str, Any] = {"text": reply.text, "usage": {"type": "duration", "seconds": seconds}}
    if fields.response_format == "verbose_json":
        body |= {"task": "transcribe", "language": _heard_language(reply, fields), "duration": seconds}
        granularities = fields.timestamp_granularities or ["segment"]
        if "word" in granularities:
            if reply.text and not reply.words:
                raise rest.unsupported(
                    "timestamp_granularities", "has 'word', but this model has no word times"
                )
            body["words"] = [
                {"word": word.text, "start": word.start_ms / 1000, "end": word.end_ms / 1000}
                for word in reply.words
            ]
        if "segment" in granularities:
            found = segments_of(reply)
            body["segments"] = [verbose_segment(number, one) for number, one in enumerate(found)]
    return JSONResponse(body)
