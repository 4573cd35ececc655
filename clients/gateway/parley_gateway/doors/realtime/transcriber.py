"""Translates between OpenAI's transcription sessions and a recogniser; knows no network."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from parley.asr.messages import SpeechStartedEvent, SpeechStoppedEvent, TranscriptEvent
from parley.errors import ParleyError
from parley_client.stages import FinalizedEvent, RecognitionEvent
from parley_gateway.doors.realtime import client_events as client
from parley_gateway.doors.realtime.events import Emit
from parley_gateway.doors.realtime.formats import Listening
from parley_gateway.doors.realtime.input_items import InputItems, InputTurn, stable_words
from parley_gateway.doors.realtime.items import Items
from parley_gateway.doors.realtime.refusals import Refusal, refusal_of
from parley_gateway.doors.realtime.transcription_config import TranscriptionConfig

_LEAST_COMMIT_MS = 100
_UTTERANCES = 64


class Ears(Protocol):
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


class Transcriber:
    """One transcription session.

    Every utterance is an item; where the client says itself when a turn is over, every turn is.

    Args:
        config: The session's settings.
        ears: To the recogniser.
        emit: Sends server events.
    """

    def __init__(self, config: TranscriptionConfig, ears: Ears, emit: Emit) -> None:
        self._config = config
        self._ears = ears
        self._emit = emit
        self._items = Items(emit)
        self._inputs = InputItems(emit, self._items)
        self._listening = Listening(config.input_format)
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
        self._emit("error", error=refusal_of(error).body())

    # --- the client's events ----------------------------------------------------------------

    async def receive(self, raw: str | bytes) -> None:
        """Take an event of the client's."""
        event_id: str | None = None
        try:
            event = client.read_event(raw)
            event_id = event.event_id
            await self._obey(event)
        except Refusal as refusal:
            self._emit("error", error=refusal.body(event_id or client.event_id_of(raw)))
        except ParleyError as error:
            self._emit("error", error=refusal_of(error).body(event_id))

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
                raise Refusal(message, code="invalid_event", param="type")

    def _update(self, event: client.SessionUpdate) -> None:
        before = self._config.options() if self._appended_ms else None
        changed = TranscriptionConfig()
        changed.__dict__.update(self._config.__dict__)
        changed.body = self._config.echo()
        changed.change(event.session)
        if before is not None and changed.options() != before:
            message = "How the recogniser listens cannot be changed once audio was sent; connect again."
            raise Refusal(message, code="session_already_started", param="session.audio.input")
        self._config.__dict__.update(changed.__dict__)
        if self._config.input_format != self._listening.name:
            self._listening = Listening(self._config.input_format)
        self._emit("session.updated", session=self._config.echo())

    def _commit(self) -> None:
        length_ms = self._appended_ms - self._taken_ms
        if length_ms < _LEAST_COMMIT_MS:
            message = (
                "Error committing input audio buffer: buffer too small. Expected at least "
                f"{_LEAST_COMMIT_MS}ms of audio, but buffer only has {length_ms:.2f}ms of audio."
            )
            raise Refusal(message, code="input_audio_buffer_commit_empty")
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
