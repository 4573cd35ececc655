"""Maps a recogniser's events to those of the protocol, with the client's times and utterance numbers."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
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
from parley.errors import AsrFallbackError, ParleyError
from parley.protocol import INPUT_SAMPLE_RATE, SpeechStarted, SpeechStopped, Transcript, Word
from parley.timeouts import loop_time

_BEFORE_SPEECH_MS = 500
"""Audio that a recogniser gets before speech; it also covers speech that is not detected yet."""
_RECENT = 64
_GAPS = 64
_ARRIVALS = 512


class Timeline:
    """Maps sample positions of a recogniser's stream to those of the client's audio.

    They differ by all audio that the recogniser did not get: muted, dropped, or sent
    while it was being reopened. All positions are samples at one rate.
    """

    def __init__(self) -> None:
        self._processed = 0
        # (processed position, client position) where a stretch without a gap begins.
        self._stretches: deque[tuple[int, int]] = deque([(0, 0)], maxlen=_GAPS)
        # (client position, seconds): audio before that position had arrived by then.
        self._arrivals: deque[tuple[int, float]] = deque(maxlen=_ARRIVALS)

    @property
    def processed(self) -> int:
        """The client's position up to which the recogniser has got audio."""
        return self.client_position(self._processed)

    def on_processed(self, position: int, count: int) -> None:
        """The recogniser gets ``count`` samples that begin at the client's ``position``."""
        if self.client_position(self._processed) != position:
            self._stretches.append((self._processed, position))
        self._processed += count

    def restart(self) -> None:
        """The recogniser begins a new stream at zero."""
        position = self.client_position(self._processed)
        self._processed = 0
        self._stretches.clear()
        self._stretches.append((0, position))

    def client_position(self, processed: int) -> int:
        """The client's position of the recogniser's position ``processed``."""
        index = bisect_right(self._stretches, (processed, 2**63)) - 1
        start, position = self._stretches[max(index, 0)]
        return position + processed - start

    def arrived(self, position: int, now: float) -> None:
        """Everything before the client's ``position`` has arrived by ``now`` (seconds)."""
        self._arrivals.append((position, now))

    def arrival(self, position: int) -> float | None:
        """When the audio before the client's ``position`` had arrived; None: too long ago to know."""
        index = bisect_right(self._arrivals, (position, -1.0))
        if index == 0 and len(self._arrivals) == _ARRIVALS:
            return None
        return self._arrivals[index][1] if index < len(self._arrivals) else None


_PER_MS = INPUT_SAMPLE_RATE // 1000


class SpeechHandler(Protocol):
    """Receives speech events."""

    def on_onset(self, at_ms: int) -> None:
        """Speech may begin; either :meth:`on_speech_started` or :meth:`on_onset_cancelled` follows."""
        ...

    def on_onset_cancelled(self) -> None:
        """The onset was shorter than ``vad.min_speech_ms``."""
        ...

    def on_speech_started(self, event: SpeechStarted) -> None:
        """The user has started to speak."""
        ...

    def on_speech_stopped(self, event: SpeechStopped, detected_at: float) -> None:
        """The user has stopped speaking. ``detected_at``: arrival of the audio that shows it (seconds)."""
        ...

    def on_audio_processed(self, piece: AudioPiece) -> None:
        """The recogniser has processed this audio; its events follow."""
        ...

    def on_transcript(self, event: Transcript) -> None:
        """A partial or final transcript; each utterance that stopped gets a final one."""
        ...

    def on_error(self, error: ParleyError) -> None:
        """A failure; recognition goes on."""
        ...

    def on_recognizer_unavailable(self) -> None:
        """The recogniser could not be replaced at once: speech is not recognised for now."""
        ...


@dataclass(frozen=True)
class Contained:
    """How much of the user's speech was passed on as a whole."""

    audio_ms: int
    """The client's audio before this position."""
    utterances: int


@dataclass
class _Utterance:
    number: int
    begin_ms: int
    end_ms: int
    """Where its end was detected; meaningless while it goes on."""
    final: bool = False


class SpeechEventMapper:
    """Counts the utterances of one conversation across its recogniser streams.

    ``before``: what another session has passed on.
    """

    def __init__(self, handler: SpeechHandler, before: Contained = Contained(0, 0)) -> None:
        self._handler = handler
        self._timeline = Timeline()
        self._sounding = False  # between an onset and its start or cancellation
        self._speaking = False
        self._awaited: set[int] = set()  # stopped utterances without a final transcript
        self._partials: dict[int, Transcript] = {}  # the last one of each of these
        self.utterance = self._utterances_before = before.utterances
        """Number of the last utterance; 0: there was none."""
        self._onset_ms = 0  # of the sound under way
        self._recent: deque[_Utterance] = deque(maxlen=_RECENT)
        self._passed = before  # up to these
        self._contained_ms = before.audio_ms

    @property
    def awaits_text(self) -> bool:
        """Whether a final transcript is due."""
        return bool(self._awaited)

    @property
    def idle(self) -> bool:
        """Whether no speech is under way and no transcript is due."""
        return not (self._sounding or self._speaking or self._awaited)

    def contained(self, processed_ms: int, held_from_ms: int | None) -> Contained:
        """What of the user's speech is in the state of the conversation.

        Args:
            processed_ms: the recogniser has processed the client's audio before this position.
            held_from_ms: speech from here on was passed on, but may be of no turn; None: there is none.
        """
        passed, begin_ms = self._passed, self._onset_ms if self._sounding else processed_ms
        for one in self._recent:
            if not self._is_whole(one, held_from_ms):
                begin_ms = min(begin_ms, one.begin_ms)
                break
            passed = Contained(one.end_ms, one.number)
        if held_from_ms is None:
            self._passed = passed
            while self._recent and self._recent[0].number <= passed.utterances:
                self._recent.popleft()
        else:
            begin_ms = min(begin_ms, held_from_ms)
        # It never goes back, by some milliseconds of a beginning that is found late: the client has dropped
        # the audio before.
        self._contained_ms = max(self._contained_ms, passed.audio_ms, begin_ms - _BEFORE_SPEECH_MS)
        return Contained(self._contained_ms, passed.utterances)

    @staticmethod
    def _is_whole(one: _Utterance, held_from_ms: int | None) -> bool:
        return one.final and (held_from_ms is None or one.end_ms <= held_from_ms)

    def arrived(self, position: int, now: float) -> None:
        """Record when the sample at ``position`` arrived."""
        self._timeline.arrived(position, now)

    def arrival(self, at_ms: int) -> float | None:
        """When the client's audio before ``at_ms`` had arrived, in seconds; None: unknown."""
        return self._timeline.arrival(at_ms * _PER_MS)

    def on_processed(self, piece: AudioPiece) -> None:
        """Record that the stream has processed this audio."""
        self._timeline.on_processed(piece.position, len(piece.samples))

    def begin_stream(self) -> None:
        """A new stream begins; utterance numbers continue."""
        self._timeline.restart()
        self._utterances_before = self.utterance

    def lose_stream(self, position: int) -> None:
        """End the utterance under way with its stream; the last partial transcripts become final.

        ``position``: samples that the client has sent.
        """
        self._sounding = False
        if self._speaking:
            self._speaking = False
            self._awaited.add(self.utterance)
            self._mark_end(self.utterance, self._timeline.processed // _PER_MS)
            at_ms = position // _PER_MS
            self._handler.on_speech_stopped(SpeechStopped(at_ms=at_ms, detected_at_ms=at_ms), loop_time())
        lost, self._awaited = sorted(self._awaited), set()
        partials, self._partials = self._partials, {}
        for utterance in lost:
            nothing = Transcript(utterance=utterance, text="", is_final=True, confidence=0.0)
            known = partials.get(utterance, nothing)
            self._mark_final(utterance)
            self._handler.on_transcript(msgspec.structs.replace(known, is_final=True))

    def pass_on(self, reply: AsrReply) -> None:
        """Report the events of a reply."""
        for event in reply.events:
            if isinstance(event, OnsetEvent):
                self._sounding, self._onset_ms = True, self._client_ms(event.at_ms)
                self._handler.on_onset(self._onset_ms)
            elif isinstance(event, OnsetLostEvent):
                self._sounding = False
                self._handler.on_onset_cancelled()
            else:
                number = self._utterances_before + event.utterance
                # A final transcript may come when the next utterance has begun.
                self.utterance = max(self.utterance, number)
                self._report(event, number)

    def _report(self, event: UtteranceEvent, number: int) -> None:
        if isinstance(event, SpeechStartedEvent):
            at_ms = self._client_ms(event.at_ms)
            begin_ms = min(at_ms, self._onset_ms) if self._sounding else at_ms
            self._recent.append(_Utterance(number, begin_ms, begin_ms))
            self._sounding, self._speaking = False, True
            self._handler.on_speech_started(SpeechStarted(at_ms=at_ms))
        elif isinstance(event, SpeechStoppedEvent):
            self._speaking = False
            self._awaited.add(number)
            stopped = SpeechStopped(
                at_ms=self._client_ms(event.at_ms), detected_at_ms=self._client_ms(event.detected_at_ms)
            )
            self._mark_end(number, stopped.detected_at_ms)
            arrived = self.arrival(stopped.detected_at_ms)
            self._handler.on_speech_stopped(stopped, loop_time() if arrived is None else arrived)
        elif isinstance(event, AsrFallbackEvent):
            # Which one, and why, is for the log and the metrics: callers see this.
            self._handler.on_error(AsrFallbackError("another model transcribes this utterance"))
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
                self._mark_final(number)
                self._partials.pop(number, None)
            else:
                self._partials[number] = transcript
            self._handler.on_transcript(transcript)

    def _mark_end(self, number: int, at_ms: int) -> None:
        for one in self._recent:
            if one.number == number:
                one.end_ms = at_ms

    def _mark_final(self, number: int) -> None:
        for one in self._recent:
            if one.number == number:
                one.final = True

    def _client_ms(self, heard_ms: int) -> int:
        return self._timeline.client_position(heard_ms * _PER_MS) // _PER_MS
