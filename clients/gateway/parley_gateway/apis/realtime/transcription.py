"""Translates between OpenAI's transcription sessions and a recogniser; knows no network."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from starlette.websockets import WebSocket

from parley.asr.messages import SpeechStartedEvent, SpeechStoppedEvent, TranscriptEvent
from parley.errors import ParleyError, SessionIdleError
from parley_client.errors import CallEndedError
from parley_client.stages import FinalizedEvent, Recognition, RecognitionEvent
from parley_gateway.apis.realtime import client_events as client
from parley_gateway.apis.realtime.command_queue import CommandQueue
from parley_gateway.apis.realtime.input_items import InputItems, InputTurn, stable_words
from parley_gateway.apis.realtime.items import Items
from parley_gateway.apis.realtime.output_audio import AudioDecoder
from parley_gateway.apis.realtime.server_events import (
    ClientEventError,
    Emit,
    client_event_error,
    server_event,
)
from parley_gateway.apis.realtime.session import read_beside
from parley_gateway.apis.realtime.transcription_config import TranscriptionConfig
from parley_gateway.errors import SessionExpiredError
from parley_gateway.gateway import Gateway
from parley_gateway.model_limits import ModelSlot
from parley_gateway.security.principal import Principal
from parley_gateway.sockets import messages, run_socket, until_going_away
from parley_gateway.writer import SocketWriter

_LEAST_COMMIT_MS = 100
_UTTERANCES = 64


class RecognizerPort(Protocol):
    """The way to the recogniser: nothing waits."""

    def hear(self, samples: NDArray[np.int16]) -> None:
        """Audio: mono, 16 kHz, int16 [n]. The first opens the stream."""
        ...

    def finalize(self) -> None:
        """Write down now what was sent so far."""
        ...


@dataclass
class _Turn(InputTurn):
    texts: list[str] = field(default_factory=list)


class SessionTranscriber:
    """One transcription session.

    Every utterance is an item; where the client says itself when a turn is over, every turn is.

    Args:
        config: The session's settings.
        ears: To the recogniser.
        emit: Sends server events.
    """

    def __init__(self, config: TranscriptionConfig, ears: RecognizerPort, emit: Emit) -> None:
        self._config = config
        self._ears = ears
        self._emit = emit
        self._items = Items(emit)
        self._inputs = InputItems(emit, self._items)
        self._listening = AudioDecoder(config.input_format)
        self._appended_ms = 0.0
        self._taken_ms = 0.0
        self._turns: OrderedDict[int, _Turn] = OrderedDict()
        """By utterance, where pauses end turns."""
        self._committed: deque[_Turn] = deque()
        self._texts: list[str] = []
        """Of the turn that the client has not ended."""

    def begin(self) -> None:
        """The client is connected."""
        self._emit("session.created", session=self._config.echo())

    def refuse(self, error: ParleyError) -> None:
        """There is no recogniser, or no longer."""
        self._emit("error", error=client_event_error(error).body())

    # --- the client's events ----------------------------------------------------------------

    async def receive(self, raw: str | bytes) -> None:
        """Take an event of the client's."""
        event_id: str | None = None
        try:
            event = client.read_event(raw)
            event_id = event.event_id
            await self._obey(event)
        except ClientEventError as refusal:
            self._emit("error", error=refusal.body(event_id or client.event_id_of(raw)))
        except ParleyError as error:
            self._emit("error", error=client_event_error(error).body(event_id))

    async def _obey(self, event: client.ClientEvent) -> None:
        match event:
            case client.SessionUpdate():
                self._update(event)
            case client.AudioAppend():
                async for samples, length_ms in self._listening.read(event.audio):
                    self._appended_ms += length_ms
                    self._ears.hear(samples)
            case client.AudioCommit():
                self._commit()
            case client.AudioClear():
                self._taken_ms = self._appended_ms
                self._texts.clear()
                self._emit("input_audio_buffer.cleared")
            case client.ItemRetrieve():
                item = self._items.find(event.item_id, "retrieve")
                self._emit("conversation.item.retrieved", item=dict(item.body))
            case _:
                message = "A transcription session listens only: it has no answers."
                raise ClientEventError(message, code="invalid_event", param="type")

    def _update(self, event: client.SessionUpdate) -> None:
        before = self._config.options() if self._appended_ms else None
        changed = TranscriptionConfig()
        changed.__dict__.update(self._config.__dict__)
        changed.body = self._config.echo()
        changed.change(event.session)
        if before is not None and changed.options() != before:
            message = "How the recogniser listens cannot be changed once audio was sent; connect again."
            raise ClientEventError(message, code="session_already_started", param="session.audio.input")
        self._config.__dict__.update(changed.__dict__)
        if self._config.input_format != self._listening.name:
            self._listening = AudioDecoder(self._config.input_format)
        self._emit("session.updated", session=self._config.echo())

    def _commit(self) -> None:
        length_ms = self._appended_ms - self._taken_ms
        if length_ms < _LEAST_COMMIT_MS:
            message = (
                "Error committing input audio buffer: buffer too small. Expected at least "
                f"{_LEAST_COMMIT_MS}ms of audio, but buffer only has {length_ms:.2f}ms of audio."
            )
            raise ClientEventError(message, code="input_audio_buffer_commit_empty")
        if not self._config.detects:
            turn = _Turn(round(self._taken_ms), round(self._appended_ms))
            self._inputs.commit(turn)
            self._committed.append(turn)
        self._taken_ms = self._appended_ms
        self._ears.finalize()

    # --- the recogniser's events ------------------------------------------------------------

    def hear(self, event: RecognitionEvent) -> None:
        """Take an event of the recogniser's."""
        match event:
            case SpeechStartedEvent() if self._config.detects:
                self._started(event)
            case SpeechStoppedEvent() if self._config.detects:
                self._stopped(event)
            case TranscriptEvent() if self._config.detects:
                self._heard(event)
            case TranscriptEvent(is_final=True):
                self._texts.append(event.text)
            case FinalizedEvent() if self._committed:
                turn, text = self._committed.popleft(), _joined(self._texts)
                self._texts.clear()
                self._inputs.stream(turn, text)
                self._complete(turn, text)
            case _:
                pass

    def _started(self, event: SpeechStartedEvent) -> None:
        turn = self._turns[event.utterance] = _Turn(event.at_ms)
        if len(self._turns) > _UTTERANCES:
            self._turns.popitem(last=False)
        start_ms = max(0, event.at_ms - self._config.padding_ms)
        self._emit("input_audio_buffer.speech_started", audio_start_ms=start_ms, item_id=turn.item_id)

    def _stopped(self, event: SpeechStoppedEvent) -> None:
        turn = self._turns.get(event.utterance)
        if turn is None:
            return
        turn.end_ms = event.at_ms
        self._emit("input_audio_buffer.speech_stopped", audio_end_ms=turn.end_ms, item_id=turn.item_id)
        self._taken_ms = self._appended_ms
        self._inputs.commit(turn)

    def _heard(self, event: TranscriptEvent) -> None:
        turn = self._turns.get(event.utterance)
        if turn is None:
            return
        if event.is_final:
            del self._turns[event.utterance]
            self._inputs.stream(turn, event.text)
            self._complete(turn, event.text)
            return
        stable, turn.partial = stable_words(turn.partial, event.text), event.text
        self._inputs.stream(turn, stable)

    # --- telling it -------------------------------------------------------------------------

    def _complete(self, turn: _Turn, text: str) -> None:
        self._inputs.write_down(turn, text)
        self._inputs.complete(turn, text)


def _joined(texts: list[str]) -> str:
    return " ".join(text for text in texts if text)


_Wish = NDArray[np.int16] | None
"""Audio, or to write down what was sent."""


class TranscribingSession:
    """Runs a :class:`SessionTranscriber` over one WebSocket.

    Args:
        gateway: The parts of the process.
        desk: Leads to the recogniser.
        writer: Sends to the client.
        given: Settings that the client's secret brings.
    """

    def __init__(
        self, gateway: Gateway, desk: ModelSlot, writer: SocketWriter, given: dict[str, Any]
    ) -> None:
        self._gateway = gateway
        self._desk = desk
        self._settings = gateway.settings.realtime
        self._writer = writer
        self._config = TranscriptionConfig(given)
        self._transcriber = SessionTranscriber(self._config, self, self._emit)
        self._wishes: CommandQueue[_Wish] = CommandQueue(self._settings.waiting)

    async def serve(self, websocket: WebSocket, principal: Principal) -> None:
        """Until one side ends it."""
        self._transcriber.begin()
        meter = self._gateway.guard.meter(principal)

        async def hear() -> None:
            async for message in messages(websocket, meter, self._gateway):
                await self._transcriber.receive(message)
                await self._wishes.room()

        await run_socket(
            self._writer,
            self._gateway,
            hear(),
            self._speak(),
            until_going_away(self._gateway),
            on_error=self._transcriber.refuse,
        )

    # --- the way to the recogniser ----------------------------------------------------------

    def hear(self, samples: NDArray[np.int16]) -> None:
        """Audio: mono, 16 kHz, int16 [n]."""
        if len(samples):
            self._wishes.put(samples, samples.nbytes)

    def finalize(self) -> None:
        """Write down what was sent."""
        self._wishes.put(None)

    # --- the session ------------------------------------------------------------------------

    async def _speak(self) -> None:
        try:
            async with asyncio.timeout(self._settings.session_s):
                await self._transcribe()
        except TimeoutError as error:
            limit_s = self._settings.session_s
            raise SessionExpiredError(f"a session lasts {limit_s:g} s at most; connect again") from error

    async def _transcribe(self) -> None:
        limit_s = self._settings.first_event_s
        try:
            async with asyncio.timeout(limit_s):
                await self._wishes.any()
        except TimeoutError as error:
            raise SessionIdleError(f"no audio came within {limit_s:g} s") from error
        with self._desk.lease() as server:
            async with Recognition(
                server, self._config.options(), model=self._gateway.settings.stages.recognizer
            ) as stream:
                await read_beside(self._read(stream), self._send(stream))

    async def _read(self, stream: Recognition) -> None:
        async for event in stream:
            self._transcriber.hear(event)

    async def _send(self, stream: Recognition) -> None:
        with suppress(CallEndedError):  # the stream's events tell how that came
            while True:
                wish = await self._wishes.take()
                if wish is None:
                    stream.finalize()
                else:
                    await stream.send_all(wish)

    def _emit(self, kind: str, /, **fields: Any) -> None:
        self._writer.send_json(server_event(kind, fields))
