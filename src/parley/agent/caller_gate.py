"""Passes on the caller's speech and drops that of others: :mod:`parley.turns.caller_voice` with the audio."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.agent.ports import SpeakerScoring
from parley.agent.speech_events import SpeechHandler
from parley.audio.buffer import AudioPiece, RecentAudio
from parley.errors import ParleyError
from parley.protocol import INPUT_SAMPLE_RATE, SpeechStarted, SpeechStopped, Transcript
from parley.speakers.embedding import LEAST, MOST
from parley.timeouts import hold_task, log_failure, with_timeout
from parley.turns.caller_voice import CallerVoice, loudness

_PER_MS = INPUT_SAMPLE_RATE // 1000
_WINDOW = INPUT_SAMPLE_RATE
"""Samples of speech under way that are judged together."""
_STEP = INPUT_SAMPLE_RATE * 32 // 100
"""Samples from one window to the next."""
_ENROLLED = INPUT_SAMPLE_RATE * 3 // 2
"""Samples of a first utterance by which the voice is known before it ends."""
_WINDOWS = 2
"""Windows of another voice, one behind the other, that end the caller's utterance."""
_TALK = 30 * INPUT_SAMPLE_RATE
"""Samples after others were heard for which no onset pauses the agent."""
_BEGINNING = INPUT_SAMPLE_RATE * 3 // 10
"""Samples that are as loud as the caller's turns where the caller speaks."""
_KEPT_S = 8
_log = logging.getLogger(__name__)


@dataclass
class _Utterance:
    begin: int
    """Sample of the call. Where others began it: at which the caller's voice was found."""
    held: list[Callable[[], None]] | None
    """Events that wait; None: they are passed on at once."""
    is_other: bool = False
    is_decided: bool = False
    doubts: int = 0
    """Windows of another voice until now, one behind the other."""
    cut: int | None = None
    """Sample at which the caller had stopped, while others talked on."""
    final: Transcript | None = None


class CallerGate:
    """Stands between the recogniser's events and the conversation.

    The voice of the call's first speech is the caller's. Speech is passed on at once, unless it
    is soft: then it waits for a second of it. An utterance of another voice
    is no turn: its text is not passed on. Where others talk on behind the caller's words, the utterance is
    ended. What cannot be judged in time is the caller's.

    Args:
        speaker: represents voices.
        handler: gets the caller's events.
        language: primary language of the call.
        deadline_s: for each vector.
        name: of the session.
        cut: ends the utterance under way behind the audio so far.
        ignored: called with the text of an utterance of another person.
    """

    def __init__(
        self,
        speaker: SpeakerScoring,
        handler: SpeechHandler,
        language: str,
        *,
        enabled: bool,
        deadline_s: float,
        name: str,
        cut: Callable[[], None],
        ignored: Callable[[str], None],
    ) -> None:
        self._speaker = speaker
        self._handler = handler
        self._voice = CallerVoice(language)
        self._deadline_s = deadline_s
        self._name = name
        self._cut = cut
        self._ignored = ignored
        self._audio = RecentAudio(_KEPT_S * INPUT_SAMPLE_RATE)
        self._end = 0
        self._current: _Utterance | None = None
        self._awaited: deque[_Utterance] = deque()  # without a final transcript
        self._undecided: list[_Utterance] = []
        self._checked = 0
        self._check: asyncio.Task[None] | None = None
        self.enabled = enabled
        """Whether others' speech is dropped; otherwise all is passed on."""
        self._others_at = -_TALK
        self._onset_held = False
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def held_from_ms(self) -> int | None:
        """Where the speech begins that is not judged yet; None: there is none."""
        return min((one.begin // _PER_MS for one in self._undecided), default=None)

    def close(self) -> set[asyncio.Task[None]]:
        """Stop judging, and forget the voice; returns the tasks that are still ending."""
        for task in self._tasks:
            task.cancel()
        return set(self._tasks)

    # --- what the recogniser reports ------------------------------------------------------------

    def on_audio_processed(self, piece: AudioPiece) -> None:
        """The recogniser has processed this audio."""
        self._audio.append(piece)
        self._end = piece.position + len(piece.samples)
        self._handler.on_audio_processed(piece)
        if self.enabled and self._current is not None and self._current.cut is None:
            self._listen(self._current)

    def on_onset(self, at_ms: int) -> None:
        """Speech may begin."""
        self._onset_held = self._others_talk
        if not self._onset_held:
            self._handler.on_onset(at_ms)

    def on_onset_cancelled(self) -> None:
        """The onset was no speech."""
        if not self._onset_held:
            self._handler.on_onset_cancelled()

    def on_speech_started(self, event: SpeechStarted) -> None:
        """Speech has begun."""
        begin = event.at_ms * _PER_MS
        waits = self.enabled and self._voice.is_soft(loudness(self._audio.since(begin)))
        self._current = one = _Utterance(begin, [] if waits else None)
        self._awaited.append(one)
        self._undecided.append(one)
        self._pass_on(one, lambda: self._handler.on_speech_started(event))

    def on_speech_stopped(self, event: SpeechStopped, detected_at: float) -> None:
        """Speech has ended; the final transcript follows."""
        one, self._current = self._current, None
        if one is None:
            self._handler.on_speech_stopped(event, detected_at)
            return
        end = event.at_ms * _PER_MS if one.cut is None else one.cut
        event = msgspec.structs.replace(event, at_ms=end // _PER_MS)
        self._pass_on(one, lambda: self._handler.on_speech_stopped(event, detected_at))
        if not self.enabled or (one.cut is not None and end - one.begin < LEAST):
            self._decide(one, is_other=self.enabled)
        else:
            self._hold(self._judge(one, self._audio.since(one.begin, end)))

    def on_transcript(self, event: Transcript) -> None:
        """A partial or final transcript."""
        if not event.is_final:
            if not any(one.held is not None or one.is_other for one in self._awaited):
                self._handler.on_transcript(event)
            return
        one = self._awaited.popleft() if self._awaited else None
        if one is None:
            self._handler.on_transcript(event)
            return
        one.final = event
        if one.is_decided:
            self._finish(one)

    def on_error(self, error: ParleyError) -> None:
        """A failure; recognition goes on."""
        self._handler.on_error(error)

    def on_recognizer_unavailable(self) -> None:
        """Speech is not recognised for now."""
        self._handler.on_recognizer_unavailable()

    # --- whose it is ----------------------------------------------------------------------------

    @property
    def _others_talk(self) -> bool:
        return self.enabled and self._end - self._others_at < _TALK

    def _hold(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = hold_task(self._tasks, work, f"{self._name} voice")
        task.add_done_callback(log_failure)
        return task

    def _listen(self, one: _Utterance) -> None:
        """Look whose speech the end of the utterance under way is."""
        length = self._end - one.begin
        beginning = self._end - _BEGINNING
        is_held = one.held is not None and beginning >= one.begin
        if is_held and not self._voice.is_soft(loudness(self._audio.since(beginning))):
            self._release(one, beginning)
        size = _WINDOW if self._voice.is_known else _ENROLLED
        is_busy = self._check is not None and not self._check.done()
        if length < size or self._end - self._checked < _STEP or is_busy:
            return
        self._checked = self._end
        speech = self._audio.since(self._end - size)
        level = loudness(speech)
        if self._voice.is_usual(level):
            one.doubts = 0
        else:
            self._check = self._hold(self._check_window(one, speech, level))

    async def _check_window(self, one: _Utterance, speech: NDArray[np.int16], level: float) -> None:
        end = self._end
        begin = end - len(speech)
        vector = await self._embed(speech)
        if vector is None or self._current is not one:
            return
        if self._voice.is_other(vector, level) and not self._voice.is_loud(level):
            self._others_at = end
            one.doubts += 1
            if one.held is None and one.doubts == _WINDOWS:
                one.cut = begin
                self._cut()
            return
        one.doubts = 0
        if not self._voice.is_known or self._voice.is_loud(level):
            self._voice.accepts(vector, level, len(speech) / INPUT_SAMPLE_RATE, end / INPUT_SAMPLE_RATE)
            one.begin = begin
        self._release(one, begin)

    async def _judge(self, one: _Utterance, speech: NDArray[np.int16]) -> None:
        is_other = False
        if len(speech) >= LEAST:
            if (vector := await self._embed(speech[-MOST:])) is not None:
                seconds, at = len(speech) / INPUT_SAMPLE_RATE, one.begin / INPUT_SAMPLE_RATE
                is_other = not self._voice.accepts(vector, loudness(speech), seconds, at)
        elif one.held is not None:
            is_other = self._voice.is_soft(loudness(speech))
        self._decide(one, is_other=is_other)

    async def _embed(self, speech: NDArray[np.int16]) -> NDArray[np.float32] | None:
        try:
            return await with_timeout(
                self._speaker.model.embed(speech), self._deadline_s, "the voice's vector"
            )
        except ParleyError as error:
            _log.warning(
                "%s: a voice was not judged: %s", self._name, error.to_log(), extra=error.log_extra()
            )
            self._speaker.failed(error.code)
        except Exception:  # noqa: BLE001 - logged; the speech is the caller's then
            _log.exception("%s: a voice was not judged", self._name)
            self._speaker.failed(ParleyError.code)
        return None

    def _decide(self, one: _Utterance, *, is_other: bool) -> None:
        one.is_decided, one.is_other = True, is_other
        self._undecided.remove(one)
        if is_other:
            self._others_at = self._end
        else:
            self._release(one, one.begin)
        if one.final is not None:
            self._finish(one)

    def _pass_on(self, one: _Utterance, event: Callable[[], None]) -> None:
        if one.held is None:
            event()
        else:
            one.held.append(event)

    def _release(self, one: _Utterance, begin: int) -> None:
        """Pass on what was held back of an utterance, which is the caller's from this sample on."""
        if one.held is None:
            return
        held, one.held = one.held, None
        one.begin = begin
        for event in held:
            event()

    def _finish(self, one: _Utterance) -> None:
        final = one.final
        assert final is not None
        if not one.is_other:
            self._voice.hear(final.text)
            self._handler.on_transcript(final)
            return
        self._ignored(final.text)
        if one.held is None:  # its beginning was passed on
            nothing = Transcript(utterance=final.utterance, text="", is_final=True, confidence=0.0)
            self._handler.on_transcript(nothing)
