"""What a recogniser says, in the numbers and times of the client."""

from __future__ import annotations

import asyncio
from typing import Protocol

import msgspec

from parley.asr.messages import (
    AsrFallbackEvent,
    AsrReply,
    OnsetEvent,
    OnsetLostEvent,
    SpeechStartedEvent,
    SpeechStoppedEvent,
    UtteranceEvent,
)
from parley.audio.buffer import AudioPiece
from parley.audio.clock import Timeline
from parley.errors import AsrFallbackError, ParleyError
from parley.protocol import INPUT_SAMPLE_RATE, SpeechStarted, SpeechStopped, Transcript, Word

_PER_MS = INPUT_SAMPLE_RATE // 1000


class SpeechHandler(Protocol):
    """Whoever wants to know what the user says."""

    def on_onset(self, at_ms: int) -> None:
        """Speech may begin; either :meth:`on_speech_started` or :meth:`on_onset_cancelled` follows."""
        ...

    def on_onset_cancelled(self) -> None:
        """It was too short to be speech."""
        ...

    def on_speech_started(self, event: SpeechStarted) -> None:
        """The user has begun to speak."""
        ...

    def on_speech_stopped(self, event: SpeechStopped, detected_at: float) -> None:
        """The user has finished; ``detected_at``: when the audio that shows it had arrived (seconds)."""
        ...

    def on_audio_processed(self, piece: AudioPiece) -> None:
        """The recogniser has heard this; what it makes of it follows."""
        ...

    def on_transcript(self, event: Transcript) -> None:
        """A partial or final text; a final text is there for every utterance that stopped."""
        ...

    def on_error(self, error: ParleyError) -> None:
        """Something went wrong; the listener goes on."""
        ...

    def on_recognizer_unavailable(self) -> None:
        """The recogniser could not be replaced at once: nothing is heard for now."""
        ...


class SpeechEventMapper:
    """Keeps count of the utterances of one conversation, across the streams that are opened for it.

    Args:
        handler: is told what was heard.
    """

    def __init__(self, handler: SpeechHandler) -> None:
        self._handler = handler
        self._timeline = Timeline()
        self._sounding = False  # an onset of which nothing has come yet
        self._speaking = False
        self._awaited: set[int] = set()  # utterances that stopped and have no final text
        self._partials: dict[int, Transcript] = {}  # the last one of each utterance without a final text
        self._utterance = 0
        self._utterances_before = 0

    @property
    def utterance(self) -> int:
        """Number of the last utterance; 0: there was none."""
        return self._utterance

    @property
    def awaits_text(self) -> bool:
        """Whether the final text of an utterance is on its way."""
        return bool(self._awaited)

    @property
    def idle(self) -> bool:
        """Whether nobody speaks, and no text is missing."""
        return not (self._sounding or self._speaking or self._awaited)

    def arrived(self, position: int, now: float) -> None:
        """The client has sent so many samples."""
        self._timeline.arrived(position, now)

    def heard(self, piece: AudioPiece) -> None:
        """The stream has heard this."""
        self._timeline.heard(piece.position, len(piece.samples))

    def begin_stream(self) -> None:
        """A new stream begins; its utterances are counted on."""
        self._timeline.restart()
        self._utterances_before = self._utterance

    def lose_stream(self, position: int) -> None:
        """The utterance under way ends with its stream, and texts that the stream still owed never come.

        What was understood of them so far is all that will be known.

        Args:
            position: samples that the client has sent.
        """
        self._sounding = False
        if self._speaking:
            self._speaking = False
            self._awaited.add(self._utterance)
            at_ms = position // _PER_MS
            self._handler.on_speech_stopped(SpeechStopped(at_ms=at_ms, detected_at_ms=at_ms), _now())
        lost, self._awaited = sorted(self._awaited), set()
        partials, self._partials = self._partials, {}
        for utterance in lost:
            nothing = Transcript(utterance=utterance, text="", is_final=True, confidence=0.0)
            known = partials.get(utterance, nothing)
            self._handler.on_transcript(msgspec.structs.replace(known, is_final=True))

    def pass_on(self, reply: AsrReply) -> None:
        """Tell what the recogniser has made of a piece."""
        for event in reply.events:
            if isinstance(event, OnsetEvent):
                self._sounding = True
                self._handler.on_onset(self._client_ms(event.at_ms))
            elif isinstance(event, OnsetLostEvent):
                self._sounding = False
                self._handler.on_onset_cancelled()
            else:
                number = self._utterances_before + event.utterance
                # A final text may come when the next utterance has begun.
                self._utterance = max(self._utterance, number)
                self._tell(event, number)

    def _tell(self, event: UtteranceEvent, number: int) -> None:
        if isinstance(event, SpeechStartedEvent):
            self._sounding, self._speaking = False, True
            self._handler.on_speech_started(SpeechStarted(at_ms=self._client_ms(event.at_ms)))
        elif isinstance(event, SpeechStoppedEvent):
            self._speaking = False
            self._awaited.add(number)
            stopped = SpeechStopped(
                at_ms=self._client_ms(event.at_ms), detected_at_ms=self._client_ms(event.detected_at_ms)
            )
            arrived = self._timeline.arrival(stopped.detected_at_ms * _PER_MS)
            self._handler.on_speech_stopped(stopped, _now() if arrived is None else arrived)
        elif isinstance(event, AsrFallbackEvent):
            text = f"{event.from_model} ({event.reason}); {event.to_model} transcribes this utterance"
            self._handler.on_error(AsrFallbackError(text))
        else:
            if event.is_final:
                self._awaited.discard(number)
            words = [
                Word(
                    text=word.text,
                    start_ms=self._client_ms(word.start_ms),
                    end_ms=self._client_ms(word.end_ms),
                    confidence=word.confidence,
                )
                for word in event.words
            ]
            transcript = Transcript(
                utterance=number,
                text=event.text,
                is_final=event.is_final,
                confidence=event.confidence,
                words=words,
                alternatives=event.alternatives,
                first=self._utterances_before + event.first if event.first else 0,
                before=event.before,
            )
            if event.is_final:
                self._partials.pop(number, None)
            else:
                self._partials[number] = transcript
            self._handler.on_transcript(transcript)

    def _client_ms(self, heard_ms: int) -> int:
        return self._timeline.client_position(heard_ms * _PER_MS) // _PER_MS


def _now() -> float:
    return asyncio.get_running_loop().time()
