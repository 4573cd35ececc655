"""``POST /v1/listen``: a recording to text."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import numpy as np
from fastapi import Request
from numpy.typing import NDArray
from starlette.responses import JSONResponse, Response

from parley.asr.messages import TranscribeReply, TranscribeRequest
from parley.errors import InvalidAudioError, InvalidMessageError
from parley.protocol import INPUT_SAMPLE_RATE
from parley_client.stages import Transcription
from parley_client.transcription import MODEL
from parley_gateway.audio.captions import segments_of
from parley_gateway.audio.codecs import Decoder
from parley_gateway.audio.recordings import read_recording
from parley_gateway.doors.deepgram.messages import Transaction, alternative
from parley_gateway.doors.deepgram.query import ListenOptions, read_query
from parley_gateway.gateway import Gateway
from parley_gateway.stages import Place, StageDesk
from parley_gateway.streaming import while_connected


class RecordingRoute:
    """Writes recordings down."""

    def __init__(self, gateway: Gateway, desk: StageDesk) -> None:
        self._gateway = gateway
        self._settings = gateway.settings.stages
        self._desk = desk

    async def create(self, request: Request) -> Response:
        """Write a recording down: the body is the file, or raw audio of the ``encoding`` in the URL."""
        await self._gateway.guard.admit(request, "transcribe")
        # Before the body is read: megabytes that nobody can transcribe yet must not fill the memory.
        with self._desk.place() as place:
            return await self._answer(request, place)

    async def _answer(self, request: Request, place: Place) -> Response:
        options = read_query(request.query_params, ListenOptions)
        if request.headers.get("content-type", "").startswith("application/json"):
            raise InvalidMessageError("recordings at other addresses are not fetched: send the audio itself")
        data = await request.body()
        transaction = Transaction(MODEL)
        # A digest of many megabytes would hold up everybody's audio.
        await asyncio.to_thread(transaction.note, data)
        reply = await while_connected(request, self._transcribe(place, data, options))
        return JSONResponse(_body(reply, transaction, options), headers=transaction.headers)

    async def _transcribe(self, place: Place, data: bytes, options: ListenOptions) -> TranscribeReply:
        audio = await asyncio.to_thread(self._decode, data, options)
        wanted = TranscribeRequest(language=options.base_language, phrases=options.phrases)
        with place.lease() as server:
            async with Transcription(server, timeout_s=self._settings.transcribe_s) as recordings:
                return await recordings.transcribe(audio, wanted)

    def _decode(self, data: bytes, options: ListenOptions) -> NDArray[np.int16]:
        limit_s = self._settings.recording_s
        if options.encoding is None:
            return read_recording(data, limit_s)
        if len(data) > limit_s * options.form.bytes_per_s:
            raise InvalidAudioError(f"the recording is longer than {limit_s} s")
        audio = Decoder(options.form, INPUT_SAMPLE_RATE).decode(data)
        if not len(audio):
            raise InvalidAudioError("the recording is empty")
        return audio


def _body(reply: TranscribeReply, transaction: Transaction, options: ListenOptions) -> dict[str, Any]:
    results: dict[str, Any] = {
        "channels": [{"alternatives": [alternative(reply.text, reply.confidence, reply.words)]}]
    }
    if options.utterances:
        results["utterances"] = [
            {
                "id": str(uuid4()),
                "channel": 0,
                "start": segment.start_s,
                "end": segment.end_s,
                **alternative(segment.text, segment.confidence, segment.words),
            }
            for segment in segments_of(reply.words)
        ]
    return {"metadata": transaction.metadata(reply.duration_ms / 1000), "results": results}
