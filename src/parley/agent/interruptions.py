"""Interruptions while the agent speaks: the policy of :mod:`parley.turns.interruption` and its clock."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from parley.agent.turn import AgentTurn
from parley.agent.turns import AgentTurns
from parley.audio.buffer import AudioPiece, RecentAudio
from parley.audio.echo import EchoDetector
from parley.protocol import INPUT_SAMPLE_RATE, BargeInOptions, SpeechStarted, SpeechStopped, Transcript
from parley.turns.interruption import Interrupt, InterruptionPolicy, ResumeSpeech, Verdict
from parley.turns.interruption_words import interruption_words

_TAIL_MS = 700.0
"""An answer of which no more than this is left is as good as over."""
_QUESTION_TAIL_MS = 1_500.0
"""The same for one that ends with a question: people answer before they have heard its end."""
_PER_MS = INPUT_SAMPLE_RATE // 1000
_COMPARED_MS = 1_000
"""Of the sound, so much is looked at for an echo, at its end."""
_KEPT_S = 4.0
"""A text may come long after the end of the sound."""
_AFTER_SPEECH_MS = 50
_BEFORE_ONSET_MS = 200
"""An echo is there before it is loud enough to be taken for speech."""
_ECHO_DELAY_S = 1.0
"""So long after the agent has fallen silent its echo may still come."""
_FALSE_ALARMS = 2
"""After so many in one answer the agent falls silent for words only: there is noise, or it hears itself."""


@dataclass(frozen=True)
class _Paused:
    event: SpeechStopped
    detected_at: float


class UserTurnHandler(Protocol):
    """Takes what is the user's turn: see :class:`parley.agent.endpointer.Endpointer`."""

    def on_speech_started(self, event: SpeechStarted) -> None:
        """The user speaks."""
        ...

    def on_speech_stopped(self, event: SpeechStopped, detected_at: float) -> None:
        """The user is silent."""
        ...

    def on_transcript(self, event: Transcript) -> None:
        """The final text of an utterance."""
        ...

    def on_onset_cancelled(self) -> None:
        """What may have been speech is none of the user's turn."""
        ...


_Event: TypeAlias = SpeechStarted | _Paused | Transcript


@dataclass
class _Candidate:
    """Sound that may be an interruption."""

    policy: InterruptionPolicy
    at_ms: int
    alone: bool
    """Whether nothing of the agent's turn was audible, or the turn is over: then all words are the user's
    turn, but for an echo."""
    ended_ms: int | None = None
    """Where the speech ended; None: it goes on."""
    speaking: bool = False
    texts_missing: int = 0
    counted: bool = False
    """As a false alarm."""
    events: list[_Event] = field(default_factory=list)
    """What the end of the user's turn has not been told yet."""


class InterruptionDetector:
    """Stands between the ears and the end of the user's turn while the agent has its own.

    What is said meanwhile is kept back until it is known to be an interruption; then it is passed on as if it
    had just happened. What is none is never passed on. Where the agent only thinks, or its turn has ended
    meanwhile, there is nothing to speak over, and all words are passed on.

    Args:
        options: of the session.
        enabled: whether speech stops the agent; if not, what would have is only passed on.
        judged: whether it is judged at all; if not, everything is passed on at once.
        language: primary language of the session.
        answers: the agent's turns.
        endpointer: takes what is the user's turn.
    """

    def __init__(
        self,
        options: BargeInOptions,
        language: str,
        answers: AgentTurns,
        endpointer: UserTurnHandler,
        *,
        enabled: bool = True,
        judged: bool = True,
    ) -> None:
        self.change(options, enabled=enabled, judged=judged)
        self._words = interruption_words(language)
        self._agent_turns = answers
        self._endpointer = endpointer
        self._candidate: _Candidate | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._alarmed: AgentTurn | None = None
        self._false_alarms = 0
        self._heard = RecentAudio(round(_KEPT_S * INPUT_SAMPLE_RATE))
        self._echoes = EchoDetector(INPUT_SAMPLE_RATE)
        self._has_echo = False
        self._spoke_at = -_ECHO_DELAY_S

    @property
    def undecided(self) -> bool:
        """Whether it is not known yet what something is that was heard over the agent."""
        return self._candidate is not None

    def change(self, options: BargeInOptions, *, enabled: bool, judged: bool) -> None:
        """Judge by other options from the next sound on."""
        self._options = options
        self._enabled = enabled
        self._judged = judged

    def spoke(self, samples: NDArray[np.int16], sample_rate: int) -> None:
        """The agent's audio, as it is sent."""
        self._echoes.sent(samples, sample_rate)
        self._spoke_at = _now()

    def on_audio_processed(self, piece: AudioPiece) -> None:
        """The audio that the recogniser has heard."""
        self._heard.append(piece)

    def on_onset(self, at_ms: int) -> None:
        """Something that may be speech."""
        if self._candidate is None:
            self._suspect(at_ms)

    def on_onset_cancelled(self) -> None:
        """It was none."""
        candidate = self._candidate
        if candidate is not None and not candidate.speaking and not candidate.events:
            self._dismiss(ResumeSpeech("noise"))

    def on_speech_started(self, event: SpeechStarted) -> None:
        """The user speaks."""
        if self._candidate is None:
            self._suspect(event.at_ms)
        candidate = self._candidate
        if candidate is None:
            self._endpointer.on_speech_started(event)
            return
        if candidate.events:
            candidate.policy.on_speech_resumed()
        candidate.speaking, candidate.ended_ms = True, None
        candidate.events.append(event)
        # It may have lasted long enough already; what is only a sound never has.
        self._obey(self._checked(candidate, candidate.policy.tick(_now())))

    def on_speech_stopped(self, event: SpeechStopped, detected_at: float) -> None:
        """The user is silent; the final text follows."""
        candidate = self._candidate
        if candidate is None or not candidate.speaking:
            self._endpointer.on_speech_stopped(event, detected_at)
            return
        candidate.speaking, candidate.ended_ms = False, event.at_ms
        candidate.texts_missing += 1
        candidate.events.append(_Paused(event, detected_at))
        candidate.policy.on_speech_stopped(event.at_ms - candidate.at_ms, _now())
        self._set_timer()

    def on_transcript(self, event: Transcript) -> None:
        """A partial or final text."""
        candidate = self._candidate
        if candidate is None or (event.is_final and not candidate.texts_missing):
            # A text of what was said before the agent's turn may still come.
            if event.is_final:
                self._endpointer.on_transcript(event)
            return
        if not event.is_final:
            verdict = candidate.policy.on_partial(event.text, event.confidence, _now())
            self._obey(self._checked(candidate, verdict))
            return
        candidate.texts_missing -= 1
        candidate.events.append(event)
        more = candidate.speaking or candidate.texts_missing > 0
        verdict = candidate.policy.on_final(event.text, event.confidence, _now(), more=more)
        if isinstance(verdict, ResumeSpeech) and candidate.alone and self._counts_alone(verdict):
            verdict = Interrupt("words")
        verdict = self._checked(candidate, verdict)
        if verdict is None and not more:
            verdict = ResumeSpeech("echo", candidate.policy.text)
        if isinstance(verdict, ResumeSpeech):
            self._dismiss(verdict)
        else:
            self._obey(verdict)

    def _counts_alone(self, verdict: ResumeSpeech) -> bool:
        """Whether words that are no interruption are the user's turn where they are spoken over nothing."""
        turn = self._agent_turns.current
        # A tool that is running is not cancelled for a sign of listening.
        patient = turn is not None and turn.acted and verdict.reason == "backchannel"
        return bool(verdict.text) and verdict.reason != "echo" and not patient

    def release(self) -> None:
        """What was said is the user's turn, whatever it is: the client says so, or nobody is spoken over."""
        candidate = self._forget()
        for event in candidate.events if candidate else ():
            self._pass_on(event)

    def on_turn_ended(self) -> None:
        """The agent's turn has ended by itself: nothing is spoken over any more."""
        if self._candidate is not None:
            self._candidate.alone = True

    def drop(self) -> None:
        """The client says that what was said does not count."""
        if self._forget() is not None:
            self._agent_turns.resume("no_words", "")
            self._endpointer.on_onset_cancelled()

    def close(self) -> None:
        """Decide nothing more."""
        self._forget()

    # --- one sound ------------------------------------------------------------------------

    def _suspect(self, at_ms: int) -> None:
        turn, now = self._agent_turns.current, _now()
        said, closing = "", True
        if turn is None:
            if not self._has_echo or now - self._spoke_at > _ECHO_DELAY_S:
                return
        elif not turn.interruptible or not self._judged:
            return
        else:
            said, left_ms = turn.playout.heard(now).text, turn.remaining_ms()
            tail_ms = _QUESTION_TAIL_MS if turn.asks else _TAIL_MS
            closing = said.rstrip().endswith("?") or (left_ms is not None and left_ms <= tail_ms)
        if turn is not self._alarmed:
            self._alarmed, self._false_alarms = turn, 0
        policy = InterruptionPolicy(
            self._options, self._words, agent_text=said, closing=closing, began_at=now
        )
        self._candidate = _Candidate(policy, at_ms, alone=turn is None or not turn.playout.sent_ms)
        if self._enabled and self._false_alarms < _FALSE_ALARMS:
            self._agent_turns.pause(at_ms, playback=self._options.pause_playback)
        self._set_timer()

    def _checked(self, candidate: _Candidate, verdict: Verdict) -> Verdict:
        """No interruption by the agent's own voice, or by the length of what is not known to be speech."""
        if isinstance(verdict, Interrupt) and verdict.reason == "speech" and not candidate.events:
            return None
        if isinstance(verdict, Interrupt):
            if self._echoes.recognises(self._sound_of(candidate)):
                self._has_echo = True
                candidate.policy.on_echo()
                return None
        elif isinstance(verdict, ResumeSpeech) and verdict.reason == "echo":
            self._has_echo = True
        return verdict

    def _sound_of(self, candidate: _Candidate) -> NDArray[np.int16]:
        """The end of the sound, without the silence after it: i16 ``[n]``."""
        begin_ms = max(0, candidate.at_ms - _BEFORE_ONSET_MS)
        end_ms = None if candidate.ended_ms is None else candidate.ended_ms + _AFTER_SPEECH_MS
        until = None if end_ms is None else end_ms * _PER_MS
        return self._heard.since(begin_ms * _PER_MS, until)[-_COMPARED_MS * _PER_MS :]

    def _obey(self, verdict: Verdict) -> None:
        if isinstance(verdict, Interrupt):
            candidate = self._forget()
            if self._enabled:
                self._agent_turns.interrupt(verdict.reason)
            for event in candidate.events if candidate else ():
                self._pass_on(event)
            return
        if isinstance(verdict, ResumeSpeech):
            # The sound goes on, and may still become an interruption.
            self._count_alarm(self._candidate)
            self._agent_turns.resume(verdict.reason, verdict.text)
        self._set_timer()

    def _pass_on(self, event: _Event) -> None:
        if isinstance(event, SpeechStarted):
            self._endpointer.on_speech_started(event)
        elif isinstance(event, _Paused):
            self._endpointer.on_speech_stopped(event.event, event.detected_at)
        else:
            self._endpointer.on_transcript(event)

    def _dismiss(self, verdict: ResumeSpeech) -> None:
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
        # The loop may wake a moment early.
        verdict = self._checked(candidate, candidate.policy.tick(max(due, _now())))
        if isinstance(verdict, ResumeSpeech) and not candidate.events:
            # A recogniser that failed has never said what became of the sound.
            self._dismiss(verdict)
        else:
            self._obey(verdict)


def _now() -> float:
    return asyncio.get_running_loop().time()
