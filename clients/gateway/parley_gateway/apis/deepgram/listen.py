"""``/v1/listen``: transcripts of streams by WebSocket, and of recordings by POST."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any
from uuid import uuid4

import numpy as np
from fastapi import Request
from numpy.typing import NDArray
from starlette.responses import JSONResponse, Response
from starlette.websockets import WebSocket

from parley.asr.messages import (
    SpeechStartedEvent,
    SpeechStoppedEvent,
    TranscribeReply,
    TranscribeRequest,
    TranscriptEvent,
)
from parley.errors import InvalidAudioError, InvalidMessageError, ParleyError
from parley.protocol import INPUT_SAMPLE_RATE
from parley_gateway.apis.deepgram import messages
from parley_gateway.apis.deepgram.query import ListenOptions, read_query
from parley_gateway.apis.deepgram.stream_audio import StreamAudio
from parley_gateway.audio.captions import segments_of
from parley_gateway.audio.codecs import AudioFormat
from parley_gateway.audio.recordings import container_of, raw_container
from parley_gateway.bodies import read_json
from parley_gateway.gateway import Gateway
from parley_gateway.model_limits import ModelLimiter, ModelSlot
from parley_gateway.spool import SpooledFile
from parley_gateway.streaming import StageRoute, while_connected
from parley_gateway.tracing import with_trace
from parley_gateway.websocket import Close, IdleLimit, WebSocketSession, accept, refuse
from parley_stages import FinalizedEvent, Recognition, RecognitionEvent, Transcriber
from parley_stages.transcription import TRANSCRIBERS

_DONE = Close(1000, "")
# Utterances that wait for their text; older ones have none.
_MAX_OPEN = 64


async def serve_listening(websocket: WebSocket, gateway: Gateway, limiter: ModelLimiter) -> None:
    """Transcribe one stream over one WebSocket."""
    settings = gateway.settings.stages
    session = None
    try:
        principal = await gateway.guard.admit(websocket, "transcribe")
        options = read_query(websocket.query_params, ListenOptions)
        form = options.form
        with limiter.lease(principal) as server:
            async with Recognition(server, with_trace(options.asr), model=settings.recognizer) as recognition:
                await accept(websocket, "token")
                session = _ListenSession(
                    websocket, recognition, gateway, options, form, owner=principal.owner
                )
                await session.run()
    except ParleyError as error:
        if session is not None:
            raise
        await refuse(websocket, error, gateway, messages.answer)


class _ListenSession(WebSocketSession):
    """Sends audio to the recogniser, and its transcripts to the client."""

    def __init__(
        self,
        websocket: WebSocket,
        recognition: Recognition,
        gateway: Gateway,
        options: ListenOptions,
        form: AudioFormat | None,
        *,
        owner: str | None,
    ) -> None:
        idle = IdleLimit(gateway.settings.stages.idle_s, "audio, and no KeepAlive,")
        super().__init__(websocket, gateway, idle=idle)
        self._recognition = recognition
        self._audio = StreamAudio(form, gateway.decoders, owner, self._hear)
        self._transaction = messages.Transaction(recognition.model)
        self._sent_s = 0.0
        self._results = _Results(self._transaction, options)

    def on_failed(self, error: ParleyError) -> None:
        """See :class:`WebSocketSession`."""
        self.writer.send_json(messages.message_of(error))
        self.writer.close(*messages.close_for(error))

    async def on_message(self, message: str | bytes) -> None:
        """See :class:`WebSocketSession`."""
        if isinstance(message, bytes):
            if not message:  # CloseStream of older clients
                await self._close_stream()
                return
            self._transaction.add_audio(message)
            await self._audio.push(message)
            return
        match read_json(message, messages.ListenMessage, "the message"):
            case messages.Finalize():
                if self._recognition.finalize():
                    self._results.finalizing += 1
            case messages.CloseStream():
                await self._close_stream()

    async def _close_stream(self) -> None:
        await self._audio.finish()
        self._recognition.end()

    async def _hear(self, samples: NDArray[np.int16]) -> None:
        self._sent_s += len(samples) / INPUT_SAMPLE_RATE
        await self._recognition.send_all(samples)
        self._send(self._results.after_silence(self._sent_s - self._recognition.waiting_s))

    def beside(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """See :class:`WebSocketSession`."""
        return (self._audio.run(),)

    async def send_events(self) -> None:
        """Send results until all audio is transcribed."""
        async for event in self._recognition:
            self._send(self._results.of(event))
        self._send([*self._results.rest(), *self._results.after_silence(self._sent_s)])
        self.writer.send_json({"type": "Metadata", **self._transaction.metadata(round(self._sent_s, 3))})
        self.writer.close(*_DONE)

    def _send(self, results: Sequence[dict[str, Any]]) -> None:
        for result in results:
            self.writer.send_json(result)


class _Results:
    """Translates events of the recogniser to Deepgram's messages."""

    def __init__(self, transaction: messages.Transaction, options: ListenOptions) -> None:
        self._transaction = transaction
        self._options = options
        self.finalizing = 0
        """``Finalize`` messages without a response."""
        self._held: dict[str, Any] | None = None
        """The last final transcript, while it may be the response to ``Finalize``."""
        self._speaking = False
        self._started_s = 0.0
        self._stopped_s: dict[int, tuple[float, float]] = {}
        self._last_word_s: float | None = None
        self._processed_s = 0.0

    def of(self, event: RecognitionEvent) -> Sequence[dict[str, Any]]:
        """Deepgram's messages for an event."""
        match event:
            case SpeechStartedEvent():
                self._speaking = True
                self._started_s = event.at_ms / 1000
                return [messages.speech_started(event.at_ms)] if self._options.vad_events else []
            case SpeechStoppedEvent():
                self._speaking = False
                self._stopped_s[event.utterance] = (self._started_s, event.at_ms / 1000)
                if len(self._stopped_s) > _MAX_OPEN:
                    del self._stopped_s[next(iter(self._stopped_s))]
            case TranscriptEvent(is_final=True):
                return self._final(event)
            case TranscriptEvent() if self._options.interim_results and event.text:
                end_s = (
                    event.words[-1].end_ms / 1000 if event.words else max(self._started_s, self._processed_s)
                )
                return [self._result(event, (self._started_s, end_s))]
            case FinalizedEvent():
                return self._finalized(event)
        return []

    def rest(self) -> Sequence[dict[str, Any]]:
        """Messages at the end of the stream."""
        before, self._held = self._held, None
        return [before] if before else []

    def after_silence(self, processed_s: float) -> Sequence[dict[str, Any]]:
        """Messages that are due after this much processed audio (seconds)."""
        self._processed_s = processed_s
        pause_ms, last_s = self._options.utterance_end_ms, self._last_word_s
        if pause_ms is None or last_s is None or self._speaking or processed_s - last_s < pause_ms / 1000:
            return []
        self._last_word_s = None
        return [messages.utterance_end(last_s)]

    def _final(self, event: TranscriptEvent) -> Sequence[dict[str, Any]]:
        span_s = self._stopped_s.pop(event.utterance, (self._started_s, self._started_s))
        if event.text:  # some models have no word times
            self._last_word_s = event.words[-1].end_ms / 1000 if event.words else span_s[1]
        result = self._result(event, span_s)
        result |= {"is_final": True, "speech_final": self._options.endpointing is not False}
        if not self.finalizing:
            return [result]
        before, self._held = self._held, result
        return [before] if before else []

    def _finalized(self, event: FinalizedEvent) -> Sequence[dict[str, Any]]:
        self.finalizing = max(0, self.finalizing - 1)
        at_s = event.at_ms / 1000
        result = self._held or self._transaction.result([], "", 0.0, (at_s, at_s), is_final=True)
        self._held = None
        return [result | {"from_finalize": True}]

    def _result(self, event: TranscriptEvent, span_s: tuple[float, float]) -> dict[str, Any]:
        return self._transaction.result(event.words, event.text, event.confidence, span_s)


class RecordingRoute(StageRoute):
    """Transcribes recordings."""

    async def create(self, request: Request) -> Response:
        """Transcribe a recording: the body is the file, or raw audio of the ``encoding`` in the URL."""
        principal = await self._gateway.guard.admit(request, "transcribe")
        # Before the body is read: recordings that wait for a server must not fill the disk.
        with self._limiter.place(principal) as slot:
            return await self._answer(request, slot)

    async def _answer(self, request: Request, slot: ModelSlot) -> Response:
        options = read_query(request.query_params, ListenOptions)
        if request.headers.get("content-type", "").startswith("application/json"):
            raise InvalidMessageError("recordings are not fetched from a URL: send the audio itself")
        transaction = messages.Transaction(TRANSCRIBERS[0])
        spool = self._gateway.spool
        spool.check_announced(request.headers, slot.owner)
        with spool.open(slot.owner) as audio:
            with spool.open(slot.owner) as recording:
                async for piece in request.stream():
                    await recording.append(piece, transaction.add_audio)
                await recording.finish(transaction.add_audio)
                await while_connected(request, self._decode(recording, audio, options))
            reply = await while_connected(request, self._transcribe(slot, audio, options, transaction))
        return JSONResponse(_body(reply, transaction, options), headers=transaction.headers)

    async def _transcribe(
        self, slot: ModelSlot, audio: SpooledFile, options: ListenOptions, transaction: messages.Transaction
    ) -> TranscribeReply:
        wanted = TranscribeRequest(language=options.base_language, phrases=options.phrases)
        async with self._gateway.spool.samples_of(audio) as samples:
            with slot.lease() as server:
                async with Transcriber(server, timeout_s=self._settings.transcribe_s) as recordings:
                    transaction.model = await recordings.model(wanted.language)
                    return await recordings.transcribe(samples, with_trace(wanted))

    async def _decode(self, recording: SpooledFile, audio: SpooledFile, options: ListenOptions) -> None:
        limit_s = self._settings.recording_s
        form = options.form
        if form is None:
            container = container_of(recording.head)
        elif not recording.size:
            raise InvalidAudioError("the recording is empty")
        elif recording.size > limit_s * form.bytes_per_s:
            raise InvalidAudioError(f"the recording is longer than {limit_s} s")
        else:
            container = raw_container(form)
        await self._gateway.decoders.decode(recording, container, audio, limit_s)


def _body(
    reply: TranscribeReply, transaction: messages.Transaction, options: ListenOptions
) -> dict[str, Any]:
    results: dict[str, Any] = {
        "channels": [{"alternatives": [messages.alternative(reply.text, reply.confidence, reply.words)]}]
    }
    if options.utterances:
        results["utterances"] = [
            {
                "id": str(uuid4()),
                "channel": 0,
                "start": segment.start_s,
                "end": segment.end_s,
                **messages.alternative(segment.text, segment.confidence, segment.words),
            }
            for segment in segments_of(reply)
        ]
    return {"metadata": transaction.metadata(reply.duration_ms / 1000), "results": results}
