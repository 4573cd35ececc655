"""Detects interruptions of the agent: :mod:`parley.turns.interruption` with its clock and the audio."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.agent.endpointer import Endpointer
from parley.agent.metrics import SessionMetrics
from parley.agent.turn import AgentTurn
from parley.agent.turns import AgentTurns
from parley.audio.buffer import AudioPiece, RecentAudio
from parley.audio.echo import EchoDetector
from parley.protocol import INPUT_SAMPLE_RATE, SpeechStarted, SpeechStopped, Start, Transcript
from parley.timeouts import loop_time
from parley.turns.interruption import (
    InterruptionPolicy,
    InterruptSpeech,
    ResumeSpeech,
    Verdict,
    interruption_words,
    words_of,
)

_TAIL_MS = 700.0
"""An answer with no more audio than this left counts as over."""
_QUESTION_TAIL_MS = 1_500.0
"""The same for one that ends with a question: callers answer before its end."""
_PER_MS = INPUT_SAMPLE_RATE // 1000
_COMPARED_MS = 1_000
"""The end of the sound that is compared with the agent's audio."""
_KEPT_S = 4.0
"""Audio that is kept: a transcript may come long after the end of the sound."""
_AFTER_SPEECH_MS = 50
_BEFORE_ONSET_MS = 200
"""An echo begins before it is loud enough for an onset."""
_ECHO_DELAY_S = 1.0
"""Longest time between the agent's last audio and its echo."""
_WORDS_WITH_ECHO = 2
"""Words of an interruption, but for commands, after an echo was detected: one word may be misheard."""
_FALSE_ALARMS = 2
"""After these in one answer only words pause the agent: the line has noise or an echo."""


@dataclass(frozen=True)
class _Paused:
    event: SpeechStopped
    detected_at: float


_Event: TypeAlias = SpeechStarted | _Paused | Transcript


@dataclass
class _Candidate:
    """Sound that may be an interruption."""

    policy: InterruptionPolicy
    at_ms: int
    alone: bool
    """Whether nothing of the agent's turn was audible, or the turn is over: then all words but an echo are a
    turn of the user."""
    over_speech: bool = False
    """Whether the agent was audible, and had asked nothing, when it began: then signs of listening stay what
    they are."""
    ended_ms: int | None = None
    """End of the speech; None: it goes on."""
    speaking: bool = False
    texts_missing: int = 0
    counted: bool = False
    """Whether it was counted as a false alarm."""
    events: list[_Event] = field(default_factory=list)
    """Events that the endpointer has not received."""


class InterruptionDetector:
    """Filters the speech events that reach the endpointer during a turn of the agent.

    Events are held back until they are an interruption, and then passed on. Events of a backchannel, an echo
    or a noise are dropped. While the agent is silent, or after its turn, all words are passed on. So are
    events where speech does not stop the agent, and with manual turns all events at once.
    """

    def __init__(
        self,
        start: Start,
        language: str,
        agent_turns: AgentTurns,
        endpointer: Endpointer,
        metrics: SessionMetrics,
    ) -> None:
        self._metrics = metrics
        self.change(start)
        self.words = interruption_words(language)
        """Signs of listening and commands of the session's language."""
        self._agent_turns = agent_turns
        self._endpointer = endpointer
        self._candidate: _Candidate | None = None
        self._passing_ms: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._alarmed: AgentTurn | None = None
        self._false_alarms = 0
        self._recent = RecentAudio(round(_KEPT_S * INPUT_SAMPLE_RATE))
        self._echoes = EchoDetector(INPUT_SAMPLE_RATE)
        self._has_echo = False
        self._spoke_at = -_ECHO_DELAY_S

    @property
    def undecided(self) -> bool:
        """Whether a sound over the agent is not judged yet."""
        return self._candidate is not None

    @property
    def text(self) -> str:
        """The words of that sound so far, but for those without a final transcript."""
        events = self._candidate.events if self._candidate is not None else ()
        return " ".join(event.text for event in events if isinstance(event, Transcript))

    @property
    def held_from_ms(self) -> int | None:
        """Where the speech begins that the endpointer has not received as a whole; None: there is none."""
        return self._passing_ms if self._candidate is None else self._candidate.at_ms

    def change(self, start: Start) -> None:
        """Use other options from the next sound on."""
        self._options = start.barge_in
        self._judged = start.turn.detection == "auto"
        self._enabled = start.barge_in.enabled and self._judged

    def on_agent_audio(self, samples: NDArray[np.int16], sample_rate: int) -> None:
        """The agent's audio was sent."""
        self._echoes.sent(samples, sample_rate)
        self._spoke_at = loop_time()

    def on_audio_processed(self, piece: AudioPiece) -> None:
        """The recogniser has processed this audio."""
        self._recent.append(piece)

    def is_echo(self, sound: NDArray[np.int16]) -> bool:
        """Whether the end of a sound is what the agent has just said: i16 ``[n]``, 16 kHz."""
        return self._echoes.recognises(sound[-_COMPARED_MS * _PER_MS :])

    def on_onset(self, at_ms: int) -> None:
        """Speech may begin."""
        if self._candidate is None:
            self._open_candidate(at_ms)

    def on_onset_cancelled(self) -> None:
        """The onset was too short."""
        candidate = self._candidate
        if candidate is not None and not candidate.speaking and not candidate.events:
            self._dismiss(ResumeSpeech("noise"))

    def on_speech_started(self, event: SpeechStarted) -> None:
        """The user has started to speak."""
        if self._candidate is None:
            self._open_candidate(event.at_ms)
        candidate = self._candidate
        if candidate is None:
            self._endpointer.on_speech_started(event)
            return
        if candidate.events:
            candidate.policy.on_speech_resumed()
        candidate.speaking, candidate.ended_ms = True, None
        candidate.events.append(event)
        # The onset may already be long enough; without confirmed speech it never is.
        self._apply(self._checked(candidate, candidate.policy.tick(loop_time())))

    def on_speech_stopped(self, event: SpeechStopped, detected_at: float) -> None:
        """The user has stopped speaking; the final transcript follows."""
        candidate = self._candidate
        if candidate is None or not candidate.speaking:
            self._endpointer.on_speech_stopped(event, detected_at)
            return
        candidate.speaking, candidate.ended_ms = False, event.at_ms
        candidate.texts_missing += 1
        candidate.events.append(_Paused(event, detected_at))
        candidate.policy.on_speech_stopped(event.at_ms - candidate.at_ms, loop_time())
        self._set_timer()

    def on_transcript(self, event: Transcript) -> None:
        """A partial or final transcript."""
        candidate = self._candidate
        if candidate is None or (event.is_final and not candidate.texts_missing):
            # A transcript of speech before the agent's turn may still come.
            if event.is_final:
                self._endpointer.on_transcript(event)
            return
        if not event.is_final:
            verdict = candidate.policy.on_partial(event.text, event.confidence, loop_time())
            self._apply(self._checked(candidate, verdict))
            return
        candidate.texts_missing -= 1
        candidate.events.append(event)
        more = candidate.speaking or candidate.texts_missing > 0
        verdict = candidate.policy.on_final(event.text, event.confidence, loop_time(), more=more)
        if isinstance(verdict, ResumeSpeech) and candidate.alone and self._counts_alone(candidate, verdict):
            verdict = InterruptSpeech("words")
        verdict = self._checked(candidate, verdict)
        if verdict is None and not more:
            verdict = ResumeSpeech("echo", candidate.policy.text)
        if isinstance(verdict, ResumeSpeech):
            self._dismiss(verdict)
        else:
            self._apply(verdict)

    def _counts_alone(self, candidate: _Candidate, verdict: ResumeSpeech) -> bool:
        """Whether words that are no interruption are a turn of the user while the agent is silent."""
        turn = self._agent_turns.current
        hums = candidate.over_speech or self.words.is_hum(words_of(verdict.text))
        # A backchannel does not cancel a running tool.
        patient = (turn is not None and turn.acted) or (hums and candidate.policy.only_listens)
        listens = verdict.reason == "backchannel" and patient
        return bool(verdict.text) and verdict.reason != "echo" and not listens

    def release(self) -> None:
        """Pass on all held events: the agent was stopped, or the client has ended the user's turn."""
        self._pass_all_on(self._forget())

    def on_turn_ended(self) -> None:
        """The agent's turn has ended by itself."""
        if self._candidate is not None:
            self._candidate.alone = True

    def drop(self) -> None:
        """Drop all held events: the client has discarded the user's turn."""
        if self._forget() is not None:
            self._agent_turns.resume("no_words", "")
            self._endpointer.on_onset_cancelled()

    def close(self) -> None:
        """Stop deciding."""
        self._forget()

    # --- one candidate ------------------------------------------------------------------------

    def _open_candidate(self, at_ms: int) -> None:
        turn, now = self._agent_turns.current, loop_time()
        said, closing, asks = "", True, True
        if turn is None:
            if not self._has_echo or now - self._spoke_at > _ECHO_DELAY_S:
                return
        elif not turn.interruptible or not self._judged:
            return
        else:
            said, left_ms = turn.playout.heard(now).text, turn.remaining_ms()
            asks = said.rstrip().endswith("?")
            if left_ms is not None and left_ms <= _QUESTION_TAIL_MS:
                asks = asks or turn.asks
            closing = asks or (left_ms is not None and left_ms <= _TAIL_MS)
        if turn is not self._alarmed:
            self._alarmed, self._false_alarms = turn, 0
        options = self._options
        if self._has_echo and options.min_words == 1:
            options = msgspec.structs.replace(options, min_words=_WORDS_WITH_ECHO)
        policy = InterruptionPolicy(
            options, self.words, agent_text=said, closing=closing, asks=asks, began_at=now
        )
        audible = turn is not None and bool(turn.playout.length_ms)
        self._candidate = _Candidate(
            policy, at_ms, alone=not audible, over_speech=audible and "?" not in said
        )
        if self._enabled and self._false_alarms < _FALSE_ALARMS:
            self._agent_turns.pause(at_ms, playback=self._options.pause_playback)
        self._set_timer()

    def _checked(self, candidate: _Candidate, verdict: Verdict) -> Verdict:
        """Veto an interruption by the agent's echo, or by the length of unconfirmed speech."""
        if isinstance(verdict, InterruptSpeech) and verdict.reason == "speech" and not candidate.events:
            return None
        if isinstance(verdict, InterruptSpeech):
            if self.is_echo(self._sound_of(candidate)):
                self._has_echo = True
                candidate.policy.on_echo()
                return None
        elif isinstance(verdict, ResumeSpeech) and verdict.reason == "echo":
            self._has_echo = True
        return verdict

    def _sound_of(self, candidate: _Candidate) -> NDArray[np.int16]:
        """The end of the sound without trailing silence: i16 ``[n]``."""
        begin_ms = max(0, candidate.at_ms - _BEFORE_ONSET_MS)
        end_ms = None if candidate.ended_ms is None else candidate.ended_ms + _AFTER_SPEECH_MS
        until = None if end_ms is None else end_ms * _PER_MS
        return self._recent.since(begin_ms * _PER_MS, until)

    def _apply(self, verdict: Verdict) -> None:
        if isinstance(verdict, InterruptSpeech):
            candidate = self._forget()
            self._passing_ms = None if candidate is None else candidate.at_ms
            if self._enabled:
                silent_at = self._agent_turns.paused_at or loop_time()
                if self._agent_turns.interrupt(verdict.reason) and candidate is not None:
                    self._metrics.on_barge_in(candidate.at_ms, silent_at)
            # A turn that was paused and is not to be interrupted any more, after an update, goes on.
            self._agent_turns.resume("no_words", "")
            self._pass_all_on(candidate)
            return
        if isinstance(verdict, ResumeSpeech):
            # The sound goes on and may still become an interruption.
            self._count_alarm(self._candidate)
            self._agent_turns.resume(verdict.reason, verdict.text)
        self._set_timer()

    def _pass_all_on(self, candidate: _Candidate | None) -> None:
        events = [] if candidate is None else candidate.events
        self._passing_ms = candidate.at_ms if candidate and events else None
        for left, event in zip(range(len(events) - 1, -1, -1), events, strict=True):
            if not left:  # with the last one the endpointer has them all, and may end the turn
                self._passing_ms = None
            self._pass_on(event)

    def _pass_on(self, event: _Event) -> None:
        if isinstance(event, SpeechStarted):
            self._endpointer.on_speech_started(event)
        elif isinstance(event, _Paused):
            self._endpointer.on_speech_stopped(event.event, event.detected_at)
        else:
            self._endpointer.on_transcript(event)

    def _dismiss(self, verdict: ResumeSpeech) -> None:
        if self._agent_turns.current is not None:
            self._metrics.on_false_interruption(verdict.reason)
        self._count_alarm(self._forget())
        self._agent_turns.ignore(verdict.reason, verdict.text)
        self._endpointer.on_onset_cancelled()

    def _count_alarm(self, candidate: _Candidate | None) -> None:
        if candidate is not None and not candidate.counted:
            candidate.counted = True
            self._false_alarms += 1

    def _forget(self) -> _Candidate | None:
        candidate, self._candidate = self._candidate, None
        self._set_timer()
        return candidate

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = None if self._candidate is None else self._candidate.policy.due
        if due is not None:
            self._timer = asyncio.get_running_loop().call_at(due, self._tick, due)

    def _tick(self, due: float) -> None:
        self._timer = None
        candidate = self._candidate
        if candidate is None:
            return
        # The event loop may call early.
        verdict = self._checked(candidate, candidate.policy.tick(max(due, loop_time())))
        if isinstance(verdict, ResumeSpeech) and not candidate.events:
            # A failed recogniser never reports the end of the onset.
            self._dismiss(verdict)
        else:
            self._apply(verdict)
