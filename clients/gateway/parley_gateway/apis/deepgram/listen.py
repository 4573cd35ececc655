"""``WS /v1/listen``: a stream of speech to texts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from starlette.websockets import WebSocket

from parley.asr.messages import SpeechStartedEvent, SpeechStoppedEvent, TranscriptEvent
from parley.errors import ParleyError
from parley.protocol import INPUT_SAMPLE_RATE
from parley_client.errors import CallEndedError
from parley_client.stages import FinalizedEvent, Recognition, RecognitionEvent
from parley_gateway.apis.deepgram import messages as forms
from parley_gateway.apis.deepgram.errors import close_for, message_of, refuse
from parley_gateway.apis.deepgram.idle import IdleLimit
from parley_gateway.apis.deepgram.query import ListenOptions, check_stream, read_query
from parley_gateway.audio.codecs import AudioStreamDecoder
from parley_gateway.closing import Close
from parley_gateway.gateway import Gateway
from parley_gateway.model_limits import ModelLimiter
from parley_gateway.security.meter import Meter
from parley_gateway.sockets import accept, messages, run_socket, until_going_away
from parley_gateway.writer import SocketWriter

_DONE = Close(1000, "")
# Utterances that may wait for their text; of those before them it never came.
_MOST_OPEN = 64


async def serve_listening(websocket: WebSocket, gateway: Gateway, desk: ModelLimiter) -> None:
    """Carry one stream over one WebSocket."""
    settings = gateway.settings.stages
    listening = None
    try:
        principal = await gateway.guard.admit(websocket, "transcribe")
        options = read_query(websocket.query_params, ListenOptions)
        check_stream(options)
        with desk.lease(principal) as server:
            async with Recognition(server, options.asr, model=settings.recognizer) as recognition:
                await accept(websocket, "token")
                meter = gateway.guard.meter(principal)
                listening = _Listening(websocket, recognition, gateway, options, meter)
                await listening.run()
    except ParleyError as error:
        if listening is not None:
            raise
        await refuse(websocket, error, gateway)


class _Listening:
    """The two directions of one open stream."""

    def __init__(
        self,
        websocket: WebSocket,
        recognition: Recognition,
        gateway: Gateway,
        options: ListenOptions,
        meter: Meter,
    ) -> None:
        self._websocket = websocket
        self._recognition = recognition
        self._gateway = gateway
        self._decoder = AudioStreamDecoder(options.form)
        self._meter = meter
        self._writer = SocketWriter(websocket, gateway.settings.writer, gateway.metrics)
        self._transaction = forms.Transaction(recognition.model)
        self._sent_s = 0.0
        self._results = _Results(self._transaction, options)

    async def run(self) -> None:
        """Until one side ends it."""
        await run_socket(
            self._writer,
            self._gateway,
            self._hear(),
            self._tell(),
            until_going_away(self._gateway),
            on_error=self._tell_error,
        )

    def _tell_error(self, error: ParleyError) -> None:
        self._writer.send_json(message_of(error))
        self._writer.close(*close_for(error))

    async def _hear(self) -> None:
        """From the client to the recogniser, until the client has gone."""
        idle = IdleLimit(self._gateway.settings.stages.idle_s, "audio, and no KeepAlive,")
        source = messages(self._websocket, self._meter, self._gateway)
        async for message in idle.each(source):
            try:
                await self._take(message)
            except CallEndedError:
                await asyncio.get_running_loop().create_future()  # the other direction ends it

    async def _take(self, message: str | bytes) -> None:
        if isinstance(message, bytes):
            if not message:  # how older clients say CloseStream
                self._recognition.end()
                return
            self._transaction.note(message)
            for samples in self._decoder.pieces(message):
                self._sent_s += len(samples) / INPUT_SAMPLE_RATE
                await self._recognition.send_all(samples)
            for result in self._results.silence(self._sent_s - self._recognition.waiting_s):
                self._writer.send_json(result)
            return
        match forms.read_message(message, forms.ListenMessage):
            case forms.Finalize():
                if self._recognition.finalize():
                    self._results.finalizing += 1
            case forms.CloseStream():
                self._recognition.end()

    async def _tell(self) -> None:
        """From the recogniser to the client, until all is written down."""
        async for event in self._recognition:
            for result in self._results.of(event):
                self._writer.send_json(result)
        for result in self._results.rest():
            self._writer.send_json(result)
        for result in self._results.silence(self._sent_s):
            self._writer.send_json(result)
        self._writer.send_json({"type": "Metadata", **self._transaction.metadata(round(self._sent_s, 3))})
        self._writer.close(*_DONE)


class _Results:
    """Makes Deepgram's messages of what the recogniser says."""

    def __init__(self, transaction: forms.Transaction, options: ListenOptions) -> None:
        self._transaction = transaction
        self._options = options
        self.finalizing = 0
        """``Finalize`` that are not answered."""
        self._held: dict[str, Any] | None = None  # the last final text, while it may be such an answer
        self._speaking = False
        self._started_s = 0.0
        self._stopped_s: dict[int, tuple[float, float]] = {}
        self._last_word_s: float | None = None
        self._heard_s = 0.0

    def of(self, event: RecognitionEvent) -> Sequence[dict[str, Any]]:
        """What the client is told of an event."""
        match event:
            case SpeechStartedEvent():
                self._speaking = True
                self._started_s = event.at_ms / 1000
                return [forms.speech_started(event.at_ms)] if self._options.vad_events else []
            case SpeechStoppedEvent():
                self._speaking = False
                self._stopped_s[event.utterance] = (self._started_s, event.at_ms / 1000)
                if len(self._stopped_s) > _MOST_OPEN:
                    del self._stopped_s[next(iter(self._stopped_s))]
            case TranscriptEvent(is_final=True):
                return self._final(event)
            case TranscriptEvent() if self._options.interim_results and event.text:
                end_s = event.words[-1].end_ms / 1000 if event.words else max(self._started_s, self._heard_s)
                return [self._result(event, (self._started_s, end_s))]
            case FinalizedEvent():
                return self._finalized(event)
        return []

    def rest(self) -> Sequence[dict[str, Any]]:
        """What the client is told at the end of all events."""
        before, self._held = self._held, None
        return [before] if before else []

    def silence(self, heard_s: float) -> Sequence[dict[str, Any]]:
        """What the client is told now that so much was heard (seconds)."""
        self._heard_s = heard_s
        wanted, last = self._options.utterance_end_ms, self._last_word_s
        if wanted is None or last is None or self._speaking or heard_s - last < wanted / 1000:
            return []
        self._last_word_s = None
        return [forms.utterance_end(last)]

    def _final(self, event: TranscriptEvent) -> Sequence[dict[str, Any]]:
        span_s = self._stopped_s.pop(event.utterance, (self._started_s, self._started_s))
        if event.text:  # some models know no times of words
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
