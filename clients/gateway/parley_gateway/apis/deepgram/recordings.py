"""``POST /v1/listen``: a recording to text."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from fastapi import Request
from starlette.responses import JSONResponse, Response

from parley.asr.messages import TranscribeReply, TranscribeRequest
from parley.errors import InvalidAudioError, InvalidMessageError
from parley_client.stages import Transcription
from parley_client.transcription import TRANSCRIBERS
from parley_gateway.apis.deepgram.messages import Transaction, alternative
from parley_gateway.apis.deepgram.query import ListenOptions, read_query
from parley_gateway.audio.captions import segments_of
from parley_gateway.audio.recordings import container_of, raw_container
from parley_gateway.gateway import Gateway
from parley_gateway.model_limits import ModelLimiter, ModelSlot
from parley_gateway.spool import SpooledFile
from parley_gateway.streaming import while_connected


class RecordingRoute:
    """Writes recordings down."""

    def __init__(self, gateway: Gateway, desk: ModelLimiter) -> None:
        self._gateway = gateway
        self._settings = gateway.settings.stages
        self._desk = desk

    async def create(self, request: Request) -> Response:
        """Write a recording down: the body is the file, or raw audio of the ``encoding`` in the URL."""
        principal = await self._gateway.guard.admit(request, "transcribe")
        # Before the body is read: megabytes that have to wait for a server must not fill the disk.
        with self._desk.place(principal) as place:
            return await self._answer(request, place)

    async def _answer(self, request: Request, place: ModelSlot) -> Response:
        options = read_query(request.query_params, ListenOptions)
        if request.headers.get("content-type", "").startswith("application/json"):
            raise InvalidMessageError("recordings at other addresses are not fetched: send the audio itself")
        transaction = Transaction(TRANSCRIBERS[0])
        spool = self._gateway.spool
        spool.check_announced(request.headers, place.owner)
        with spool.open(place.owner) as audio:
            with spool.open(place.owner) as recording:
                async for piece in request.stream():
                    await recording.append(piece, transaction.note)
                await recording.finish(transaction.note)
                await while_connected(request, self._decode(recording, audio, options))
            reply = await while_connected(request, self._transcribe(place, audio, options, transaction))
        return JSONResponse(_body(reply, transaction, options), headers=transaction.headers)

    async def _transcribe(
        self, place: ModelSlot, audio: SpooledFile, options: ListenOptions, transaction: Transaction
    ) -> TranscribeReply:
        wanted = TranscribeRequest(language=options.base_language, phrases=options.phrases)
        async with self._gateway.spool.samples_of(audio) as samples:
            with place.lease() as server:
                async with Transcription(server, timeout_s=self._settings.transcribe_s) as recordings:
                    transaction.model = await recordings.model()
                    return await recordings.transcribe(samples, wanted)

    async def _decode(self, recording: SpooledFile, audio: SpooledFile, options: ListenOptions) -> None:
        limit_s = self._settings.recording_s
        if options.encoding is None:
            container = container_of(recording.head)
        elif not recording.size:
            raise InvalidAudioError("the recording is empty")
        elif recording.size > limit_s * options.form.bytes_per_s:
            raise InvalidAudioError(f"the recording is longer than {limit_s} s")
        else:
            container = raw_container(options.form)
        await self._gateway.decoders.decode(recording, container, audio, limit_s)


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
            for segment in segments_of(reply)
        ]
    return {"metadata": transaction.metadata(reply.duration_ms / 1000), "results": results}
