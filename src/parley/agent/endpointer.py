"""Detects the end of the user's turn: :mod:`parley.turns.endpointing` with its clock, model and audio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parley.agent.ports import Scoring
from parley.audio.buffer import AudioPiece, RecentAudio
from parley.engines.base import TurnModel
from parley.errors import InferenceError
from parley.protocol import (
    INPUT_SAMPLE_RATE,
    SpeechStarted,
    SpeechStopped,
    Transcript,
    TurnDecision,
)
from parley.timeouts import ToleratedFailures, hold_task, log_failure, loop_time, with_timeout
from parley.tracing import NO_TRACE, Trace
from parley.turns.caller_pauses import CallerPauses
from parley.turns.endpointing import (
    CommitTurn,
    EndpointingPolicy,
    Output,
    PrepareResponse,
    ReadTurn,
    ScoreTurn,
    WaitForMore,
)
from parley.turns.every_pause import EndTurn, EveryPause
from parley.turns.settings import PRESETS, TurnSettings
from parley.turns.smart_turn import BEFORE_ONSET_MS, SAMPLES

_PER_MS = INPUT_SAMPLE_RATE // 1000
_REPLAY_S = 0.5
"""After a move from another session until the client's audio has come again."""


@dataclass(frozen=True)
class UserTurn:
    """A turn of the user that is over. Times are seconds of the loop's clock."""

    text: str = ""
    """Empty: it has no words."""
    heard_at: float | None = None
    """When its last final transcript came; None: there was none."""
    detected_at: float | None = None
    """When its end was detected; None: unknown."""
    decided_at: float | None = None
    """When its end was decided; None: every pause ends a turn."""
    stopped_at: float | None = None
    """When its speech ended: the arrival of the last audio with it; None: unknown."""
    requested: bool = False
    """Whether the client has ended it."""
    confidence: float = 1.0
    """Of its last words, 0-1."""


class Endpointer:
    """Joins the user's utterances to turns.

    Without settings every pause ends the turn. With settings the policy decides. The turn model scores a
    pause while its final transcript is on the way; without a score in time the silence decides.

    Args:
        settings: of the policy; None: every pause ends the turn.
        language: primary language of the session.
        scoring: the turn model; None: there is none.
        read: asks the language model how likely a sentence ends with these words of the turn (0-1), and
            raises a ``ParleyError`` on failure; None: it cannot be asked.
        emit: sends decisions to the client, but for those that end a turn.
        prepare: called with the text of a turn that may be over, and when its speech ended, to begin an
            answer.
        discard: called when that turn goes on.
        commit: called with a turn that is over, and the decision for the client, if there is one.
        begin_turn: called before it, and before all else: later utterances belong to another turn.
        arrival: when the client's audio before a position (ms) had arrived, in seconds; None: unknown.
        extra_ms: what an earlier part of the call has learned of the caller's pauses.
    """

    def __init__(
        self,
        settings: TurnSettings | None,
        language: str,
        scoring: Scoring[TurnModel] | None,
        read: Callable[[str], Awaitable[float]] | None,
        *,
        deadline_s: float,
        read_deadline_s: float,
        name: str,
        emit: Callable[[TurnDecision], None],
        prepare: Callable[[str, float | None], None],
        discard: Callable[[], None],
        commit: Callable[[UserTurn, TurnDecision | None], None],
        begin_turn: Callable[[], None],
        arrival: Callable[[int], float | None],
        extra_ms: int = 0,
        trace: Trace = NO_TRACE,
    ) -> None:
        self._trace = trace
        self._arrival = arrival
        self._settings = settings
        self._language = language
        self._model = None if scoring is None else scoring.model
        failed = scoring.failed if scoring is not None else lambda _: None
        self._unscored = ToleratedFailures(f"{name}: a pause was not scored", failed)
        self._unread = ToleratedFailures(f"{name}: words were not judged")
        self._read = read
        self._pauses = CallerPauses(extra_ms)
        self._policy = self._make_policy()
        self._deadline_s = deadline_s
        self._read_deadline_s = read_deadline_s
        self._name = name
        self._emit = emit
        self._prepare = prepare
        self._discard = discard
        self._commit = commit
        self._begin_turn = begin_turn
        self._audio = RecentAudio(SAMPLES)
        self._onset: int | None = None
        self._heard_at = 0.0
        self._utterance = 0
        self._confidence = 1.0
        self._stopped_at: float | None = None
        self._detected_at: float | None = None
        self._dropped = -1
        self._requested = False
        self._timer: asyncio.TimerHandle | None = None
        self._score: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def change(self, settings: TurnSettings | None) -> None:
        """Use other settings from the next turn of the user on.

        A change of ``detection`` applies to the turn under way too, which might never end otherwise.
        """
        if settings == self._settings:
            return
        self._settings = settings
        if self.pending and _is_manual(self._policy.settings) != _is_manual(settings):
            self._stop()
            self._apply(self._policy.change(settings or PRESETS["normal"], loop_time()))
        self._renew()

    def _make_policy(self) -> EndpointingPolicy | EveryPause:
        if self._settings is None:
            return EveryPause()
        return EndpointingPolicy(
            self._settings,
            self._language,
            scored=self._model is not None,
            read=self._read is not None,
            pauses=self._pauses if self._settings.adapts else None,
        )

    def _renew(self) -> None:
        """Apply changed settings between two turns."""
        if self._policy.settings != self._settings and not self.pending:
            self._policy = self._make_policy()

    def on_audio_processed(self, piece: AudioPiece) -> None:
        """The recogniser has processed this audio."""
        if self._model is not None:
            self._audio.append(piece)

    @property
    def pending(self) -> bool:
        """Whether a turn of the user is under way."""
        return self._policy.pending

    @property
    def text(self) -> str:
        """The words so far of the turn under way."""
        return self._policy.text

    @property
    def extra_ms(self) -> int:
        """See :attr:`CallerPauses.extra_ms`."""
        return self._pauses.extra_ms

    def restore(self, utterance: int, text: str) -> None:
        """Go on with a turn that has these words, up to this utterance.

        Without more words it ends by silence, which begins when audio that is sent again has come.
        """
        self._heard_at, self._utterance = loop_time(), utterance
        self._apply(self._policy.restore(utterance, text, self._heard_at + _REPLAY_S, self._heard_at))

    def take(self) -> str:
        """End the turn under way and return its text; empty while the user speaks."""
        return self._take() if self._policy.interrupted else ""

    def request_commit(self) -> None:
        """The client ends the turn; :meth:`commit_requested` follows when its audio was transcribed."""
        self._requested = True

    def commit_requested(self) -> None:
        """End the turn that the client has ended; late transcripts may still come."""
        if not self._requested:  # the turn has ended by itself
            return
        self._stop()
        self._apply(self._policy.end(loop_time()))

    def drop(self, utterance: int) -> None:
        """Drop the turn so far; late transcripts up to this utterance are dropped too."""
        self._dropped = utterance
        self._take()

    def _take(self) -> str:
        self._stop()
        self._discard()
        self._onset = None
        self._forget_times()
        self._begin_turn()
        text = self._policy.take()
        self._renew()
        return text

    def on_onset(self) -> None:
        """The user may continue the turn."""
        self._policy.on_onset()

    def on_onset_cancelled(self) -> None:
        """The onset was no speech, or no part of the user's turn."""
        self._apply(self._policy.on_onset_cancelled(loop_time()))

    def on_speech_started(self, event: SpeechStarted) -> None:
        """The user has started to speak."""
        self._discard()
        if self._onset is None:
            self._onset = event.at_ms * _PER_MS
        self._stop()
        self._pauses.on_speech_started(event.at_ms)
        self._apply(self._policy.on_speech_started(loop_time()))

    def on_speech_stopped(self, event: SpeechStopped, detected_at: float) -> None:
        """The user has stopped speaking; the final transcript follows."""
        self._detected_at = detected_at
        self._pauses.on_speech_stopped(event.at_ms)
        # Where the recogniser was lost, or the client has ended the turn, that is not known.
        known = event.detected_at_ms > event.at_ms or self._requested
        self._stopped_at = self._arrival(event.at_ms) if known else None
        silence_s = (event.detected_at_ms - event.at_ms) / 1000
        self._stop()
        self._apply(self._policy.on_speech_stopped(detected_at - silence_s, loop_time()))

    def on_transcript(self, event: Transcript) -> None:
        """A final transcript."""
        self._heard_at = loop_time()
        self._utterance = event.utterance
        dropped = event.utterance <= self._dropped
        text = "" if dropped else event.text
        if text:
            self._confidence = event.confidence
            self._pauses.on_words()
        first = 0 if dropped else event.first
        policy = self._policy
        self._apply(
            policy.on_transcript(event.utterance, text, self._heard_at, first=first, before=event.before)
        )
        if not policy.pending:
            self._onset = None
            self._forget_times()
            self._begin_turn()
            self._renew()

    def close(self) -> set[asyncio.Task[None]]:
        """Stop deciding; returns the tasks that are still ending."""
        self._stop()
        self._stop_reading()
        return set(self._tasks)

    # --- the policy's decisions ---------------------------------------------------------

    def _apply(self, outputs: Sequence[Output | EndTurn]) -> None:
        for output in outputs:
            if isinstance(output, EndTurn):
                self._end_turn(output.text)
                continue
            if isinstance(output, ScoreTurn):
                self._start_scoring(output.pause)
                continue
            if isinstance(output, ReadTurn):
                self._start_reading(output.text)
                continue
            if isinstance(output, PrepareResponse):
                self._prepare(output.text, self._stopped_at)
                continue
            if isinstance(output, CommitTurn):
                self._stop()
                self._onset = None
                self._finish(output.decision.text, loop_time(), output.decision)
                continue
            self._emit(output.decision)
            if isinstance(output, WaitForMore):
                self._stop_timer()
                loop = asyncio.get_running_loop()
                self._timer = loop.call_at(output.until, self._tick, output.until)

    def _end_turn(self, text: str) -> None:
        """Every pause ends the turn: a decision is reported only for one that the client has ended."""
        if self._requested and not self.pending:
            decision = TurnDecision(
                utterance=self._utterance, decision="commit", reason="requested", text=text
            )
            self._finish(text, loop_time(), decision)
        elif self._utterance > self._dropped:
            self._finish(text, None)

    def _finish(self, text: str, decided_at: float | None, decision: TurnDecision | None = None) -> None:
        stopped_at, detected_at = self._stopped_at, self._detected_at
        self._forget_times()
        if not text:
            stopped_at = None
        requested, self._requested = self._requested, False
        if not text:
            self._heard_at = loop_time()
        self._begin_turn()
        self._renew()
        user = UserTurn(
            text, self._heard_at, detected_at, decided_at, stopped_at, requested, self._confidence
        )
        self._commit(user, decision)

    def _forget_times(self) -> None:
        self._stopped_at = self._detected_at = None

    def _tick(self, until: float) -> None:
        self._timer = None
        # The event loop may call early.
        self._apply(self._policy.tick(max(until, loop_time())))

    def _stop(self) -> None:
        self._stop_timer()
        score, self._score = self._score, None
        # Not the task that is running this: its score may have ended the turn.
        if score is not None and score is not asyncio.current_task():
            score.cancel()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- the turn model -------------------------------------------------------------------

    def _start_scoring(self, pause: int) -> None:
        onset = 0 if self._onset is None else self._onset
        speech = self._audio.since(max(0, onset - BEFORE_ONSET_MS * _PER_MS))
        self._score = hold_task(self._tasks, self._score_pause(pause, speech), f"{self._name} end of turn")
        self._score.add_done_callback(log_failure)

    async def _score_pause(self, pause: int, speech: NDArray[np.int16]) -> None:
        probability: float | None = None
        assert self._model is not None
        # A pause may be no end of a turn: the span is below that of the call.
        with self._unscored, self._trace.child("scoring") as span:
            score = self._model.score(speech, traceparent=span.traceparent)
            probability = _checked(await with_timeout(score, self._deadline_s, "the end-of-turn model"))
            span.set({"parley.probability": probability})
        self._apply(self._policy.on_score(pause, probability, loop_time()))

    # --- the language model ---------------------------------------------------------------

    def _start_reading(self, text: str) -> None:
        """Replace the question that may be under way: it was about other words."""
        self._stop_reading()
        self._reading = hold_task(self._tasks, self._read_turn(text), f"{self._name} words of the turn")
        self._reading.add_done_callback(log_failure)

    def _stop_reading(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None and reading is not asyncio.current_task():
            reading.cancel()

    async def _read_turn(self, text: str) -> None:
        probability: float | None = None
        assert self._read is not None
        with self._unread:
            probability = _checked(
                await with_timeout(self._read(text), self._read_deadline_s, "the words of the turn")
            )
        self._apply(self._policy.on_read(text, probability, loop_time()))


def _is_manual(settings: TurnSettings | None) -> bool:
    return settings is not None and settings.manual


def _checked(score: float) -> float:
    if not 0.0 <= score <= 1.0:  # NaN included
        raise InferenceError(f"the end-of-turn model returned {score}, which is no probability")
    return score
