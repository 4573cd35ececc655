"""Transcription sessions: translates between OpenAI's protocol and a recogniser."""

from __future__ import annotations

import copy
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, TypeAlias

import msgspec
import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray
from starlette.websockets import WebSocket

from parley.asr.messages import AsrEvent, AsrOptions, SpeechStartedEvent, SpeechStoppedEvent, TranscriptEvent
from parley.errors import ParleyError
from parley.protocol import Word
from parley_client.errors import CallEndedError
from parley_gateway.apis.realtime import client_events as client
from parley_gateway.apis.realtime.agent_commands import CommandQueue
from parley_gateway.apis.realtime.items import InputTurn, Items, check_commit, stable_words
from parley_gateway.apis.realtime.output_audio import AudioDecoder
from parley_gateway.apis.realtime.server_events import (
    ClientEventError,
    Emit,
    client_event_error,
    emitter,
    new_id,
)
from parley_gateway.apis.realtime.session import run_with_helpers, session_deadline
from parley_gateway.apis.realtime.session_config import (
    InputConfig,
    InputTranscription,
    TranscriptionSessionFields,
    vad_of,
)
from parley_gateway.gateway import Gateway
from parley_gateway.model_limits import ModelSlot
from parley_gateway.tracing import with_trace
from parley_gateway.websocket import IdleLimit, WebSocketSession
from parley_stages import FinalizedEvent, Recognition, RecognitionEvent

_MAX_PAUSE_MS = 5_000
"""The recogniser's limit."""
_MAX_UTTERANCES = 64

RecognizerCommand: TypeAlias = NDArray[np.int16] | None
"""Audio (mono, 16 kHz, int16 [n]); None: end the utterance after the audio so far."""


class TranscriptionConfig(InputConfig):
    """One session's settings, initially ``given``; raises ClientEventError if they are refused."""

    FIELDS = TranscriptionSessionFields
    TYPE_REFUSAL = "A transcription session cannot become a realtime session; connect without intent."
    UNDETECTED_PADDING_MS = 0

    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        super().__init__(
            {
                "type": "transcription",
                "object": "realtime.transcription_session",
                "id": new_id("sess"),
                "include": None,
            }
        )
        self.body["audio"]["input"]["transcription"] = {}
        if given:
            self.change(given)

    def options(self) -> AsrOptions:
        """The recogniser's options."""
        given = self.transcription or InputTranscription()
        return AsrOptions(
            vad=vad_of(self.detection, _MAX_PAUSE_MS),
            language=given.language or "en",
            words=self.wants_logprobs,
            phrases=given.keywords or [],
        )

    def _apply(self, fields: TranscriptionSessionFields) -> None:
        if fields.include is not UNSET:
            self.body["include"] = fields.include
        if fields.audio and fields.audio.input:
            audio = fields.audio.input
            if audio.transcription is None:  # here it cannot be switched off
                audio = msgspec.structs.replace(audio, transcription=UNSET)
            self._apply_input(audio)


class SessionTranscriber:
    """Translates the events of one session, without network and clock.

    Every utterance is an item; without turn detection, every turn that the client commits is one.
    """

    def __init__(
        self, config: TranscriptionConfig, commands: CommandQueue[RecognizerCommand], emit: Emit
    ) -> None:
        self._config = config
        self._commands = commands
        self._emit = emit
        self._items = Items(emit)
        self._decoder = AudioDecoder(config.input_format)
        self._appended_ms = 0.0
        self._committed_ms = 0.0
        self._turns: OrderedDict[int, InputTurn] = OrderedDict()
        """By utterance, with turn detection."""
        self._committed: deque[InputTurn] = deque()
        self._heard: list[TranscriptEvent] = []
        """Final transcripts of the turn that is not committed."""
        emit("session.created", session=config.body)

    def on_failed(self, error: ParleyError) -> None:
        """Report the failure that ends the session."""
        self._emit("error", error=client_event_error(error).body())

    async def on_client_event(self, raw: str | bytes) -> None:
        """Handle an event of the client."""
        await client.handle_event(raw, self._handle, self._emit)

    async def _handle(self, event: client.ClientEvent) -> None:
        match event:
            case client.SessionUpdate():
                self._update(event)
            case client.AudioAppend():
                async with aclosing(self._decoder.read(event.audio)) as pieces:
                    async for samples, length_ms in pieces:
                        self._appended_ms += length_ms
                        if len(samples):
                            self._commands.put(samples, samples.nbytes)
            case client.AudioCommit():
                self._commit()
            case client.AudioClear():
                self._committed_ms = self._appended_ms
                self._heard.clear()
                self._emit("input_audio_buffer.cleared")
            case client.ItemRetrieve():
                self._items.send(event.item_id)
            case _:
                message = "A transcription session has no responses."
                raise ClientEventError(message, code="invalid_event", param="type")

    def _update(self, event: client.SessionUpdate) -> None:
        before = copy.copy(self._config)
        self._config.change(event.session)
        if self._appended_ms and self._config.options() != before.options():
            self._config.restore(before)
            message = "The recogniser's settings cannot be changed once audio was sent; connect again."
            raise ClientEventError(message, code="session_already_started", param="session.audio.input")
        if self._config.input_format != self._decoder.name:
            self._decoder = AudioDecoder(self._config.input_format)
        self._emit("session.updated", session=self._config.body)

    def _commit(self) -> None:
        check_commit(self._appended_ms - self._committed_ms)
        if self._config.detection is None:
            turn = InputTurn(round(self._committed_ms), round(self._appended_ms))
            self._items.commit_turn(turn)
            self._committed.append(turn)
        self._committed_ms = self._appended_ms
        self._commands.put(None)

    def on_recognition_event(self, event: RecognitionEvent) -> None:
        """Handle an event of the recogniser."""
        match event:
            case FinalizedEvent():
                if self._committed:
                    text = " ".join(one.text for one in self._heard if one.text)
                    words = [word for one in self._heard for word in one.words]
                    self._heard.clear()
                    self._complete(self._committed.popleft(), text, words)
            case _ if self._config.detection is not None:
                self._on_utterance(event)
            case TranscriptEvent(is_final=True):
                self._heard.append(event)

    def _on_utterance(self, event: AsrEvent) -> None:
        match event:
            case SpeechStartedEvent():
                turn = self._turns[event.utterance] = InputTurn(event.at_ms)
                if len(self._turns) > _MAX_UTTERANCES:
                    self._turns.popitem(last=False)
                start_ms = max(0, event.at_ms - self._config.padding_ms)
                self._emit("input_audio_buffer.speech_started", audio_start_ms=start_ms, item_id=turn.item_id)
            case SpeechStoppedEvent(utterance=utterance, at_ms=at_ms) if utterance in self._turns:
                turn = self._turns[utterance]
                turn.end_ms = at_ms
                self._emit("input_audio_buffer.speech_stopped", audio_end_ms=at_ms, item_id=turn.item_id)
                self._committed_ms = self._appended_ms
                self._items.commit_turn(turn)
            case TranscriptEvent(utterance=utterance, text=text) if utterance in self._turns:
                turn = self._turns[utterance]
                if event.is_final:
                    del self._turns[utterance]
                    self._complete(turn, text, event.words)
                else:
                    stable, turn.partial = stable_words(turn.partial, text), text
                    self._items.send_delta(turn, stable)

    def _complete(self, turn: InputTurn, text: str, words: Sequence[Word]) -> None:
        self._items.send_delta(turn, text)
        self._items.store_transcript(turn, text)
        self._items.complete_turn(turn, text, words if self._config.wants_logprobs else None)


class TranscribingSession(WebSocketSession):
    """Runs a :class:`SessionTranscriber` over one accepted WebSocket; ``given`` are its secret's settings."""

    def __init__(
        self, websocket: WebSocket, gateway: Gateway, slot: ModelSlot, given: dict[str, Any]
    ) -> None:
        super().__init__(websocket, gateway)
        self._slot = slot
        self._settings = gateway.settings.realtime
        self._config = TranscriptionConfig(given)
        self._commands: CommandQueue[RecognizerCommand] = CommandQueue(self._settings.waiting)
        self._transcriber = SessionTranscriber(self._config, self._commands, emitter(self.writer.send_json))

    async def on_message(self, message: str | bytes) -> None:
        """See :class:`WebSocketSession`."""
        await self._transcriber.on_client_event(message)
        await self._commands.wait_for_room()

    def on_failed(self, error: ParleyError) -> None:
        """See :class:`WebSocketSession`."""
        self._transcriber.on_failed(error)

    async def send_events(self) -> None:
        """Transcribe until the client leaves or the session expires."""
        async with session_deadline(self._settings.session_s):
            first_audio = IdleLimit(self._settings.first_event_s, "audio")
            await first_audio.wait_for(self._commands.wait_for_command())
            model = self.gateway.settings.stages.recognizer
            with self._slot.lease() as server:
                options = with_trace(self._config.options())
                async with Recognition(server, options, model=model) as stream:
                    await run_with_helpers(self._read(stream), self._send(stream))

    async def _read(self, stream: Recognition) -> None:
        async for event in stream:
            self._transcriber.on_recognition_event(event)

    async def _send(self, stream: Recognition) -> None:
        with suppress(CallEndedError):  # the stream's events give the reason
            while True:
                samples = await self._commands.get()
                if samples is None:
                    stream.finalize()
                else:
                    await stream.send_all(samples)
