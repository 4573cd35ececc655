"""``POST /v1/audio/transcriptions``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from typing import Any

import numpy as np
from fastapi import Request
from numpy.typing import NDArray
from starlette.responses import JSONResponse, PlainTextResponse, Response

from parley.asr.messages import AsrOptions, TranscribeReply, TranscribeRequest, TranscriptEvent
from parley.errors import InvalidAudioError
from parley_client.stages import Recognition, Transcription
from parley_client.transcription import TRANSCRIBERS
from parley_gateway.apis.openai import events
from parley_gateway.apis.openai.errors import RefusedRequestError, unsupported
from parley_gateway.apis.openai.names import RECOGNIZERS, choose_model
from parley_gateway.apis.openai.transcription_request import TranscriptionFields, read_request, texts
from parley_gateway.audio.captions import segments_of, to_srt, to_vtt, verbose_segment
from parley_gateway.audio.recordings import container_of
from parley_gateway.gateway import Gateway
from parley_gateway.model_limits import ModelLimiter, ModelSlot
from parley_gateway.spool import SpooledFile
from parley_gateway.streaming import stream, while_connected

_ANY = ""
"""The model for recordings that the server has."""


class TranscriptionRoute:
    """Writes recordings down."""

    def __init__(self, gateway: Gateway, desk: ModelLimiter) -> None:
        self._gateway = gateway
        self._settings = gateway.settings.stages
        self._desk = desk

    async def create(self, request: Request) -> Response:
        """Write a recording down, at once or as it is recognised."""
        principal = await self._gateway.guard.admit(request, "transcribe")
        with ExitStack() as held:
            # Before the body is read: megabytes that have to wait for a server must not fill the disk.
            place = held.enter_context(self._desk.place(principal))
            self._gateway.spool.check_announced(request.headers, place.owner)
            with self._gateway.spool.open(place.owner) as recording:
                fields = await read_request(request, recording)
                model = choose_model(fields.model, RECOGNIZERS, _ANY)
                audio = held.enter_context(self._gateway.spool.open(place.owner))
                await while_connected(request, self._decode(recording, audio))
            if fields.stream:
                return await stream(
                    request,
                    events.with_failures(self._stream(place, audio, fields, model)),
                    media_type=events.MEDIA_TYPE,
                    stall_s=self._settings.stall_s,
                    held=held.pop_all(),
                )
            reply = await while_connected(request, self._transcribe(place, audio, fields, model))
            return _answer(reply, fields)

    async def _decode(self, recording: SpooledFile, audio: SpooledFile) -> None:
        try:
            container = container_of(recording.head)
            await self._gateway.decoders.decode(recording, container, audio, self._settings.recording_s)
        except InvalidAudioError as error:
            raise RefusedRequestError(str(error), param="file", reason="invalid_file") from error

    async def _transcribe(
        self, place: ModelSlot, audio: SpooledFile, fields: TranscriptionFields, model: str
    ) -> TranscribeReply:
        request = TranscribeRequest(language=_language(fields), phrases=texts(fields.keywords))
        async with self._gateway.spool.samples_of(audio) as samples:
            with place.lease() as server:
                named = model if model in TRANSCRIBERS else None
                async with Transcription(
                    server, model=named, timeout_s=self._settings.transcribe_s
                ) as recordings:
                    return await recordings.transcribe(samples, request)

    async def _stream(
        self, place: ModelSlot, audio: SpooledFile, fields: TranscriptionFields, model: str
    ) -> AsyncGenerator[bytes, None]:
        """A stream of speech that is heard as fast as it goes: its final texts, one after the other."""
        options = AsrOptions(
            language=_language(fields), phrases=texts(fields.keywords), partial_interval_ms=0, words=False
        )
        if model in (_ANY, *TRANSCRIBERS):
            model = self._settings.recognizer
        said: list[str] = []
        async with self._gateway.spool.samples_of(audio) as samples:
            with place.lease() as server:
                async with Recognition(server, options, model=model) as recognition:
                    sending = asyncio.ensure_future(_send(recognition, samples))
                    try:
                        async for heard in recognition:
                            if isinstance(heard, TranscriptEvent) and heard.is_final and heard.text:
                                delta = f" {heard.text}" if said else heard.text
                                said.append(delta)
                                yield events.event({"type": "transcript.text.delta", "delta": delta})
                        await sending
                    finally:
                        sending.cancel()
                        await asyncio.wait([sending])
        yield events.event({"type": "transcript.text.done", "text": "".join(said)})


async def _send(recognition: Recognition, audio: NDArray[np.int16]) -> None:
    try:
        await recognition.send_all(audio)
    finally:
        recognition.end()  # in any case, or its events would never end


def _language(fields: TranscriptionFields) -> str:
    return fields.language or next(iter(fields.languages), "en")


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
        body |= {"task": "transcribe", "language": _language(fields), "duration": seconds}
        granularities = fields.timestamp_granularities or ["segment"]
        if "word" in granularities:
            if reply.text and not reply.words:
                raise unsupported(
                    "timestamp_granularities", "has 'word', but this model knows no times of words"
                )
            body["words"] = [
                {"word": word.text, "start": word.start_ms / 1000, "end": word.end_ms / 1000}
                for word in reply.words
            ]
        if "segment" in granularities:
            found = segments_of(reply)
            body["segments"] = [verbose_segment(number, one) for number, one in enumerate(found)]
    return JSONResponse(body)
