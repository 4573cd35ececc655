"""The end of the user's turn: the policy of :mod:`parley.turns`, with its clock, its model and the audio."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parley.agent.ports import TurnScoring
from parley.audio.buffer import AudioPiece, RecentAudio
from parley.errors import InferenceError, ParleyError
from parley.protocol import (
    INPUT_SAMPLE_RATE,
    SpeechStarted,
    SpeechStopped,
    Transcript,
    TurnDecision,
)
from parley.turns.endpointing import (
    CommitTurn,
    EndpointingPolicy,
    Output,
    PrepareResponse,
    ScoreTurn,
    WaitForMore,
)
from parley.turns.settings import PRESETS, TurnSettings
from parley.turns.smart_turn import SAMPLES
from parley.waiting import within

_PER_MS = INPUT_SAMPLE_RATE // 1000
_BEFORE_ONSET = 500 * _PER_MS
"""Audio before the turn's first sound that the model hears too, as in its training."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class UserTurn:
    """What the user has said before it is the agent's turn. Times are seconds of the loop's clock."""

    text: str
    """Empty: there were no words in it."""
    heard_at: float
    """When its last final text was there."""
    detected_at: float | None
    """When its end was detected; None: unknown."""
    decided_at: float | None = None
    """When it was decided that it is over; None: every pause ends a turn."""
    requested: bool = False
    """Whether it was the client that ended it."""


class Endpointer:
    """Joins the user's utterances to turns.

    Without settings every utterance is a turn. With them the policy decides: the model hears a pause while
    its final text is still on the way, and has a deadline; without its answer the silence counts.

    Args:
        settings: how patient the session is; None: not at all.
        language: primary language of the session.
        scoring: the model; None: there is none.
        deadline_s: for the model's answer.
        name: of the session, for the log.
        emit: tells the client what was decided.
        prepare: takes what may be all that the user has to say, so that an answer can be begun.
        discard: is told that it was not all.
        commit: takes over a turn of the user that is over.
        turn_over: is told that what was said so far is dealt with, before anything else is.
    """

    def __init__(
        self,
        settings: TurnSettings | None,
        language: str,
        scoring: TurnScoring | None,
        *,
        deadline_s: float,
        name: str,
        emit: Callable[[TurnDecision], None],
        prepare: Callable[[str], None],
        discard: Callable[[], None],
        commit: Callable[[UserTurn], None],
        turn_over: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._language = language
        self._scoring = scoring
        self._policy = self._make_policy()
        self._deadline_s = deadline_s
        self._name = name
        self._emit = emit
        self._prepare = prepare
        self._discard = discard
        self._commit = commit
        self._turn_over = turn_over
        self._audio = RecentAudio(SAMPLES)
        self._onset: int | None = None
        self._heard_at = 0.0
        self._utterance = 0
        self._detected_at: float | None = None
        self._dropped = 0
        self._missing = 0  # final texts, where every pause ends a turn
        self._claimed = False
        self._timer: asyncio.TimerHandle | None = None
        self._score: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def change(self, settings: TurnSettings | None) -> None:
        """Judge by other settings from the next turn of the user on.

        A turn that only the client can end, or no longer only the client, is judged by them at once: nobody
        else might ever end it.
        """
        if settings == self._settings:
            return
        self._settings = settings
        policy = self._policy
        if policy is not None and self.pending:
            now_manual = settings is not None and settings.manual
            if policy.settings.manual != now_manual:
                self._stop()
                self._obey(policy.change(settings or PRESETS["normal"], _now()))
        self._renew()

    def _make_policy(self) -> EndpointingPolicy | None:
        settings = self._settings
        scored = self._scoring is not None
        return None if settings is None else EndpointingPolicy(settings, self._language, scored=scored)

    def _renew(self) -> None:
        """Between two turns the settings may change."""
        policy = self._policy
        if (None if policy is None else policy.settings) != self._settings and not self.pending:
            self._policy = self._make_policy()

    def hear(self, piece: AudioPiece) -> None:
        """Take the audio that the recogniser has heard."""
        if self._policy is not None and self._scoring is not None:
            self._audio.append(piece)

    @property
    def pending(self) -> bool:
        """Whether the user has begun a turn that is not over."""
        return bool(self._missing) if self._policy is None else self._policy.pending

    def take(self) -> str:
        """The words of the turn so far, which is over by other means; none while the user speaks."""
        if self._policy is None or not self._policy.interrupted:
            return ""
        return self._take(self._policy)

    def claim(self) -> None:
        """The client says that the user's turn is over; :meth:`end` follows when all of it was heard."""
        self._claimed = True

    def end(self) -> None:
        """All of the turn that the client has ended was heard; its texts may still come."""
        if not self._claimed:  # it has ended by itself meanwhile
            return
        if self._policy is not None:
            self._stop()
            self._obey(self._policy.end(_now()))
        elif not self._missing:
            self._end_without_judging("")

    def _end_without_judging(self, text: str) -> None:
        """Where every pause ends a turn, only an end that the client has asked for is told."""
        self._emit(TurnDecision(utterance=self._utterance, decision="commit", reason="requested", text=text))
        self._finish(text, _now())

    def drop(self, utterance: int) -> None:
        """Forget the turn so far; the final texts of its utterances, up to this one, may still come."""
        self._dropped = utterance
        if self._policy is not None:
            self._take(self._policy)

    def _take(self, policy: EndpointingPolicy) -> str:
        self._stop()
        self._discard()
        self._onset = None
        self._turn_over()
        text = policy.take()
        self._renew()
        return text

    def on_onset(self) -> None:
        """The user may be going on."""
        if self._policy is not None:
            self._policy.on_onset()

    def on_onset_cancelled(self) -> None:
        """That was no speech."""
        if self._policy is not None:
            self._obey(self._policy.on_onset_cancelled(_now()))

    def on_speech_started(self, event: SpeechStarted) -> None:
        """The user speaks."""
        if self._policy is None:
            return
        self._discard()
        if self._onset is None:
            self._onset = event.at_ms * _PER_MS
        self._stop()
        self._obey(self._policy.on_speech_started(_now()))

    def on_speech_stopped(self, event: SpeechStopped, detected_at: float) -> None:
        """The user is silent; the final text follows."""
        self._detected_at = detected_at
        if self._policy is None:
            self._missing += 1
        else:
            silence_s = (event.detected_at_ms - event.at_ms) / 1000
            self._stop()
            self._obey(self._policy.on_speech_stopped(detected_at - silence_s, _now()))

    def on_transcript(self, event: Transcript) -> None:
        """The final text of an utterance."""
        self._heard_at = _now()
        self._utterance = event.utterance
        dropped = event.utterance <= self._dropped
        text = "" if dropped else event.text
        policy = self._policy
        if policy is None:
            self._missing = max(0, self._missing - 1)
            if self._claimed and not self._missing:
                self._end_without_judging(text.strip())
            elif not dropped:
                self._finish(text.strip(), None)
            return
        first = 0 if dropped else event.first
        self._obey(
            policy.on_transcript(event.utterance, text, self._heard_at, first=first, before=event.before)
        )
        if not policy.pending:
            self._onset = None
            self._turn_over()
            self._renew()

    def close(self) -> set[asyncio.Task[None]]:
        """Decide nothing more; returns what is still ending."""
        self._stop()
        return set(self._tasks)

    # --- doing what the policy says ---------------------------------------------------------

    def _obey(self, outputs: list[Output]) -> None:
        for output in outputs:
            if isinstance(output, ScoreTurn):
                self._ask(output.pause)
                continue
            if isinstance(output, PrepareResponse):
                self._prepare(output.text)
                continue
            self._emit(output.decision)
            if isinstance(output, WaitForMore):
                self._stop_timer()
                loop = asyncio.get_running_loop()
                self._timer = loop.call_at(output.until, self._tick, output.until)
            elif isinstance(output, CommitTurn):
                self._stop()
                self._onset = None
                self._finish(output.decision.text, _now())

    def _finish(self, text: str, decided_at: float | None) -> None:
        detected_at, self._detected_at = self._detected_at, None
        requested, self._claimed = self._claimed, False
        if not text:  # no text was there, or one that has been dealt with
            self._heard_at = _now()
        self._turn_over()
        self._renew()
        self._commit(UserTurn(text, self._heard_at, detected_at, decided_at, requested))

    def _tick(self, until: float) -> None:
        self._timer = None
        if self._policy is not None:
            # The loop may wake a moment early.
            self._obey(self._policy.tick(max(until, _now())))

    def _stop(self) -> None:
        """Wait neither for time nor for a score."""
        self._stop_timer()
        score, self._score = self._score, None
        # The task that brings the score goes on: it may be what ends the turn.
        if score is not None and score is not asyncio.current_task():
            score.cancel()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- asking the model -------------------------------------------------------------------

    def _ask(self, pause: int) -> None:
        onset = 0 if self._onset is None else self._onset
        speech = self._audio.since(max(0, onset - _BEFORE_ONSET))
        self._score = asyncio.create_task(self._ask_model(pause, speech), name=f"{self._name} end of turn")
        self._tasks.add(self._score)
        self._score.add_done_callback(self._score_ended)

    async def _ask_model(self, pause: int, speech: NDArray[np.int16]) -> None:
        probability: float | None = None
        scoring = self._scoring
        assert scoring is not None
        try:
            score = await within(scoring.model.score(speech), self._deadline_s, "the end-of-turn model")
            probability = _checked(score)
        except ParleyError as error:
            _log.warning("%s: a pause was not scored: %s", self._name, error.to_log())
            scoring.failed(error.code)
        except Exception:  # noqa: BLE001 - logged; the user must be answered all the same
            _log.exception("%s: a pause was not scored", self._name)
            scoring.failed(ParleyError.code)
        if self._policy is not None:
            self._obey(self._policy.on_score(pause, probability, _now()))

    def _score_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("%s: judging a pause failed", self._name, exc_info=error)


def _checked(score: float) -> float:
    if not 0.0 <= score <= 1.0:  # NaN included
        raise InferenceError(f"the end-of-turn model gave {score}, which is no probability")
    return score


def _now() -> float:
    return asyncio.get_running_loop().time()
