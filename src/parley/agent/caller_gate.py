"""Passes on the caller's speech and drops that of others: :mod:`parley.turns.caller_voice` with the audio."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.agent.ports import Scoring
from parley.agent.speech_events import SpeechHandler
from parley.audio.buffer import AudioPiece, RecentAudio
from parley.engines.base import SpeakerModel
from parley.errors import InferenceError, ParleyError
from parley.protocol import INPUT_SAMPLE_RATE, SpeechStarted, SpeechStopped, Transcript
from parley.speakers.embedding import LEAST, MOST
from parley.timeouts import ToleratedFailures, hold_task, log_failure, with_timeout
from parley.turns.caller_voice import CallerVoice, loudness

_PER_MS = INPUT_SAMPLE_RATE // 1000
_WINDOW = INPUT_SAMPLE_RATE
"""Samples of speech under way that are judged together."""
_STEP = INPUT_SAMPLE_RATE * 32 // 100
"""Samples from one window to the next."""
_ENROLLED = INPUT_SAMPLE_RATE * 3 // 2
"""Samples of a first utterance by which the voice is known before it ends."""
_MOST_DOUBTS = 2
"""So many windows of another voice in a row end the caller's utterance."""
_TALK = 30 * INPUT_SAMPLE_RATE
"""Samples after others were heard for which no onset pauses the agent."""
_BEGINNING = INPUT_SAMPLE_RATE * 3 // 10
"""Samples that are as loud as the caller's turns where the caller speaks."""
_KEPT_S = 8
_LENGTH_ERROR = 0.01
"""By which the length of a voice's vector may differ from 1."""


@dataclass(eq=False)
class _Utterance:
    begin: int
    """Sample of the call at which it begins, or, where others began it, the caller's voice."""
    held: list[Callable[[], None]] | None
    """Events that wait; None: they are passed on at once."""
    is_other: bool = False
    is_decided: bool = False
    doubts: int = 0
    """Windows of another voice in a row, until now."""
    cut: int | None = None
    """Sample at which the caller had stopped, while others talked on."""
    final: Transcript | None = None


class CallerGate:
    """Stands between the recogniser's events and the conversation.

    The voice of the call's first speech is the caller's. Speech is passed on at once, unless it
    is soft: then it waits for a second of it. An utterance of another voice is no turn: its text is not
    passed on. Where others talk on behind the caller's words, the utterance is ended. What cannot be judged
    in time is the caller's. The agent's echo is not taken for the caller's voice.

    Args:
        speaker: represents voices.
        handler: gets the caller's events.
        language: primary language of the call.
        deadline_s: for each vector.
        name: of the session.
        cut: ends the utterance under way behind the audio so far.
        ignored: called with the text of an utterance of another person.
        is_echo: whether speech, i16 ``[n]``, is the agent's.
    """

    def __init__(
        self,
        speaker: Scoring[SpeakerModel],
        handler: SpeechHandler,
        language: str,
        *,
        enabled: bool,
        deadline_s: float,
        name: str,
        cut: Callable[[], None],
        ignored: Callable[[str], None],
        is_echo: Callable[[NDArray[np.int16]], bool],
    ) -> None:
        self._model = speaker.model
        self._unjudged = ToleratedFailures(f"{name}: a voice was not judged", speaker.failed)
        self._handler = handler
        self._voice = CallerVoice(language)
        self._deadline_s = deadline_s
        self._name = name
        self._cut = cut
        self._ignored = ignored
        self._is_echo = is_echo
        self._audio = RecentAudio(_KEPT_S * INPUT_SAMPLE_RATE)
        self._end = 0
        self._current: _Utterance | None = None
        self._awaited: deque[_Utterance] = deque()  # not judged, or without a final transcript
        self._checked = 0
        self._check: asyncio.Task[None] | None = None
        self._enabled = enabled
        self._others_at = -_TALK
        self._has_onset = False  # was passed on, and not what came of it
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def held_from_ms(self) -> int | None:
        """Where the speech begins that is not judged yet; None: there is none."""
        undecided = (one.begin // _PER_MS for one in self._awaited if not one.is_decided)
        return min(undecided, default=None)

    def change(self, *, enabled: bool) -> None:
        """Drop others' speech from now on, or pass all on and forget the voice."""
        self._enabled = enabled
        if not enabled:
            self._forget()
            for one in self._awaited:
                self._release(one, one.begin)

    def _forget(self) -> None:
        self._voice.forget()
        self._audio = RecentAudio(_KEPT_S * INPUT_SAMPLE_RATE)

    def close(self) -> set[asyncio.Task[None]]:
        """Stop judging, and forget the voice; returns the tasks that are still ending."""
        self._enabled = False
        self._forget()
        for task in self._tasks:
            task.cancel()
        return set(self._tasks)

    # --- what the recogniser reports ------------------------------------------------------------

    def on_audio_processed(self, piece: AudioPiece) -> None:
        """The recogniser has processed this audio."""
        if self._enabled:
            self._audio.append(piece)
        self._end = piece.position + len(piece.samples)
        self._handler.on_audio_processed(piece)
        if self._enabled and self._current is not None and self._current.cut is None:
            self._listen(self._current)

    def on_onset(self, at_ms: int) -> None:
        """Speech may begin."""
        if not (self._enabled and self._end - self._others_at < _TALK):
            self._has_onset = True
            self._handler.on_onset(at_ms)

    def on_onset_cancelled(self) -> None:
        """The onset was no speech."""
        if self._has_onset:
            self._has_onset = False
            self._handler.on_onset_cancelled()

    def on_speech_started(self, event: SpeechStarted) -> None:
        """Speech has begun."""
        begin = event.at_ms * _PER_MS
        waits = self._enabled and self._voice.is_soft(loudness(self._audio.since(begin)))
        self._current = one = _Utterance(begin, [lambda: self._handler.on_speech_started(event)])
        self._awaited.append(one)
        if not waits:
            self._release(one, begin)

    def on_speech_stopped(self, event: SpeechStopped, detected_at: float) -> None:
        """Speech has ended; the final transcript follows."""
        one, self._current = self._current, None
        if one is None:
            self._handler.on_speech_stopped(event, detected_at)
            return
        end = event.at_ms * _PER_MS if one.cut is None else one.cut
        event = msgspec.structs.replace(event, at_ms=end // _PER_MS)
        if one.held is None:
            self._handler.on_speech_stopped(event, detected_at)
        else:
            one.held.append(lambda: self._handler.on_speech_stopped(event, detected_at))
        if not self._enabled or (one.cut is not None and end - one.begin < LEAST):
            self._decide(one, is_other=self._enabled)
        else:
            self._start(self._judge(one, self._audio.since(one.begin, end)))

    def on_transcript(self, event: Transcript) -> None:
        """A partial or final transcript."""
        if not event.is_final:
            if not any(one.held is not None or one.is_other for one in self._awaited):
                self._handler.on_transcript(event)
            return
        one = next((one for one in self._awaited if one.final is None), None)
        if one is None:
            self._handler.on_transcript(event)
            return
        one.final = event
        self._finish_decided()

    def on_error(self, error: ParleyError) -> None:
        """A failure; recognition goes on."""
        self._handler.on_error(error)

    def on_recognizer_unavailable(self) -> None:
        """Speech is not recognised for now."""
        self._handler.on_recognizer_unavailable()

    # --- whose it is ----------------------------------------------------------------------------

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
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
        if len(speech) < size:  # a gap, or the gate was off
            return
        level = loudness(speech)
        if self._voice.is_usual(level):
            one.doubts = 0
        else:
            self._check = self._start(self._check_window(one, speech, level))

    async def _check_window(self, one: _Utterance, speech: NDArray[np.int16], level: float) -> None:
        end = self._checked
        begin = end - len(speech)
        vector = None
        with self._unjudged:
            vector = await self._embed(speech)
        if vector is None or self._current is not one or not self._enabled:
            return
        if self._voice.is_other(vector, level) and not self._voice.is_loud(level):
            self._others_at = end
            one.doubts += 1
            if one.held is not None:
                self.on_onset_cancelled()
            elif one.doubts == _MOST_DOUBTS:
                one.cut = begin
                self._cut()
            return
        one.doubts = 0
        if not self._voice.is_known or self._voice.is_loud(level):
            self._accepts(vector, speech, level, end)
            one.begin = begin
        self._release(one, begin)

    async def _judge(self, one: _Utterance, speech: NDArray[np.int16]) -> None:
        is_other = False
        with self._unjudged:
            if len(speech) >= LEAST:
                vector = await self._embed(speech[-MOST:])
                is_other = self._enabled and not self._accepts(vector, speech, loudness(speech), one.begin)
            elif one.held is not None:
                is_other = self._voice.is_soft(loudness(speech))
        self._decide(one, is_other=is_other)

    async def _embed(self, speech: NDArray[np.int16]) -> NDArray[np.float32]:
        vector = await with_timeout(self._model.embed(speech), self._deadline_s, "the voice's vector")
        if not abs(np.linalg.norm(vector) - 1) < _LENGTH_ERROR:  # NaN included
            raise InferenceError("the vector of a voice has not the length 1")
        return vector

    def _accepts(self, vector: NDArray[np.float32], speech: NDArray[np.int16], level: float, at: int) -> bool:
        """Whether speech is the caller's, or the agent's before the caller has spoken."""
        is_known = self._voice.is_known
        if (not is_known or self._voice.is_other(vector, level)) and self._is_echo(speech):
            return not is_known
        return self._voice.accepts(vector, level, len(speech) / INPUT_SAMPLE_RATE, at / INPUT_SAMPLE_RATE)

    def _decide(self, one: _Utterance, *, is_other: bool) -> None:
        if not is_other:
            self._release(one, one.begin)
        else:
            self._others_at = self._end
            if one.held is not None:
                self.on_onset_cancelled()
        one.is_decided, one.is_other = True, is_other
        self._finish_decided()

    def _finish_decided(self) -> None:
        """In the order of the utterances: a later one may be judged earlier."""
        while self._awaited and self._awaited[0].is_decided and self._awaited[0].final is not None:
            self._finish(self._awaited.popleft())

    def _release(self, one: _Utterance, begin: int) -> None:
        """Pass on what was held back of an utterance, which is the caller's from this sample on.

        What is not judged of the utterances before it is passed on too: the order stays.
        """
        if one.held is None or one.is_decided:
            return
        one.begin, self._has_onset = begin, False
        for earlier in self._awaited:
            if not earlier.is_decided:
                held, earlier.held = earlier.held or (), None
                for event in held:
                    event()
            if earlier is one:
                return

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
