"""When the user's turn is over: pauses, scores and words in, decisions out.

::

    quiet ──began──▶ speaking ──paused──▶ judging ──text and score are there──▶ waiting
      ▲                 ▲                    │                                     │ │
      │                 └───────began────────┴───────────────began (resume)────────┘ │
      └───────────────────────────commit: silence is long enough─────────────────────┘

Nothing here waits or calls: the caller brings the time with every event (seconds of one monotonic clock)
and does what the outputs say.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from parley.protocol import TurnDecision, TurnReason
from parley.turns.caller_pauses import CallerPauses
from parley.turns.cues import Cue, find_cue
from parley.turns.settings import TurnSettings

MAX_CHARACTERS = 8_000
"""Length of one turn; of a longer one the first words are dropped."""
PREPARED_MS = 1_000
"""A pause that has to last longer than this is likely to end by itself: no answer is begun in it."""


@dataclass(frozen=True)
class ScoreTurn:
    """Ask the model about this pause, and bring its answer with :meth:`EndpointingPolicy.on_score`."""

    pause: int


@dataclass(frozen=True)
class ReadTurn:
    """Ask the language model about these words; :meth:`EndpointingPolicy.on_read` takes its answer."""

    text: str


@dataclass(frozen=True)
class PrepareResponse:
    """This may be all that the user has to say: an answer to it may be begun."""

    text: str


@dataclass(frozen=True)
class WaitForMore:
    """The user may go on; call :meth:`EndpointingPolicy.tick` at ``until`` (seconds)."""

    until: float
    decision: TurnDecision


@dataclass(frozen=True)
class Resume:
    """The user does go on: nothing is waited for any more."""

    decision: TurnDecision


@dataclass(frozen=True)
class CommitTurn:
    """The turn is over; its text is in the decision."""

    decision: TurnDecision


Output: TypeAlias = ScoreTurn | ReadTurn | PrepareResponse | WaitForMore | Resume | CommitTurn


@dataclass(frozen=True)
class Judgement:
    """Why so much silence is needed."""

    needed_ms: int
    reason: TurnReason
    probability: float | None
    text_probability: float | None
    cue: Cue | None


_READ = ("question", "punctuation")
"""Cues that recognisers write as they guess: the language model is asked about these words as well."""
_GUESSES = {"digits": 0.4, "spelling": 0.4, "punctuation": 0.2}
"""Share of the way from ``complete_ms`` to ``unfinished_ms``, by the kind of cue. Between groups of dictated
digits or letters are pauses of 0.7 s."""


_WEIGHTS = (1.81, 0.33, 1.16)
"""Of bias, sound and text, by `python -m perf turn-words --fit`."""
_SURE = 0.99
_UNLIKELY = 1e-4
_NO_SCORE = 0.5


def features(probability: float | None, text_probability: float) -> tuple[float, float]:
    """What :func:`join` weighs: the log odds of the sound, and the log probability of the text."""
    sound = min(_SURE, max(1 - _SURE, _NO_SCORE if probability is None else probability))
    return math.log(sound / (1 - sound)), math.log(max(_UNLIKELY, text_probability))


def join(probability: float | None, text_probability: float) -> float:
    """The probability that a turn is over, by its sound (None: not scored) and its words."""
    bias, *weights = _WEIGHTS
    score = bias + sum(map(operator.mul, weights, features(probability, text_probability)))
    return 1 / (1 + math.exp(-score))


def needs_reading(cue: Cue | None) -> bool:
    """Whether the language model is asked about words with this cue: not where the rules alone decide."""
    return cue is None or cue.kind in _READ


def judge(
    settings: TurnSettings, probability: float | None, cue: Cue | None, text_probability: float | None = None
) -> Judgement:
    """How much silence ends a turn, by its sound, its last words, and what the language model says of them.

    The sound alone demands ``complete_ms`` from the threshold on, ``incomplete_ms`` at probability 0, and
    in between what lies on the line; without a score, ``complete_ms``. Words that something has to
    follow demand ``unfinished_ms`` at least. But how many digits or letters follow is a guess, and so is a
    comma that a recogniser writes: where they sound complete, two fifths of the way there will do for digits
    and letters, and a fifth after a comma. The fifth shrinks to nothing as the probability grows to 1:
    recognisers end many whole sentences with a comma. Words that are complete in themselves halve what the
    sound demands beyond ``complete_ms``.

    Where the language model has judged the words, :func:`join` stands for the sound alone. A question mark
    counts no more then: recognisers write it behind half a question too.
    """
    sound = probability
    if text_probability is not None:
        probability = join(sound, text_probability)
        cue = None if cue is not None and cue.kind == "question" else cue
    doubt = 0.0 if probability is None else max(0.0, 1.0 - probability / settings.threshold)
    extra = doubt * max(0, settings.incomplete_ms - settings.complete_ms)
    reason = _reason(settings.threshold, sound, probability)
    needed = settings.complete_ms + extra
    if cue is not None and cue.finished:
        needed -= extra / 2
        reason = "text_finished" if doubt or probability is None else reason
    elif cue is not None:
        share = _share(cue, settings, probability)
        unfinished = settings.complete_ms + share * (settings.unfinished_ms - settings.complete_ms)
        if unfinished > needed:
            needed, reason = unfinished, "text_unfinished"
    return Judgement(min(round(needed), settings.limit_ms), reason, sound, text_probability, cue)


def _reason(threshold: float, sound: float | None, probability: float | None) -> TurnReason:
    """What has decided: the words where the sound alone would have said something else."""
    if probability is None:
        return "not_scored"
    complete = probability >= threshold
    if sound is None or (sound >= threshold) != complete:
        return "text_finished" if complete else "text_unfinished"
    return "sounds_complete" if complete else "sounds_incomplete"


def _share(cue: Cue, settings: TurnSettings, probability: float | None) -> float:
    """How far from ``complete_ms`` to ``unfinished_ms`` words demand that something has to follow."""
    guess = _GUESSES.get(cue.kind)
    if guess is None or probability is None or probability < settings.threshold:
        return 1.0
    if cue.kind != "punctuation" or settings.threshold == 1.0:
        return guess
    return guess * (1.0 - probability) / (1.0 - settings.threshold)


@dataclass(frozen=True)
class _Pause:
    """The silence after an utterance."""

    ended_at: float
    scored: bool
    probability: float | None = None


class EndpointingPolicy:
    """The policy of one conversation."""

    def __init__(
        self,
        settings: TurnSettings,
        language: str,
        *,
        scored: bool = True,
        read: bool = False,
        pauses: CallerPauses | None = None,
    ) -> None:
        """``scored``: :class:`ScoreTurn` is answered; ``read``: :class:`ReadTurn` is; ``pauses``: a caller's.

        Without ``pauses`` there is no extra to what is judged.
        """
        self.settings = settings
        """How patient it is."""
        self._language = language
        self._scored = scored
        self._reads = read
        self._pauses_of_caller = pauses
        self._asks = scored and not settings.manual
        self._speaking = False
        self._utterance = 0
        self._pauses = 0
        self._texts_missing = 0
        self._forget()

    def _forget(self) -> None:
        self._begun_at: float | None = None
        self._said: dict[int, str] = {}
        self._pause: _Pause | None = None
        self._heard_pause: _Pause | None = None
        self._new_words = False
        self._judgement: Judgement | None = None
        self._due: float | None = None
        self._sound = False
        self._prepared = False
        self._read = ""
        self._reading = False
        self._text_probability: float | None = None
        self._ending: int | None = None  # texts that are missing of the turn that is to end

    @property
    def pending(self) -> bool:
        """Whether a turn has begun that is not over."""
        return self._begun_at is not None

    @property
    def interrupted(self) -> bool:
        """Whether the turn's words so far are all there, and the user does not speak."""
        return self.pending and not self._speaking and not self._texts_missing

    def restore(self, utterance: int, text: str, ended_at: float, at: float) -> list[Output]:
        """Go on with a turn that has these words, up to this utterance.

        Args:
            utterance: number of its last utterance.
            text: its words.
            ended_at: when their pause begins (seconds); it may be later than ``at``.
            at: the time.
        """
        self._begun_at, self._utterance = at, utterance
        self._said[utterance] = text
        self._pause, self._new_words = _Pause(ended_at, scored=True), True
        return self._judge(at)

    def take(self) -> str:
        """The words so far; the turn is over."""
        text = self.text
        self._forget()
        return text

    @property
    def text(self) -> str:
        """The turn's words so far."""
        return " ".join(filter(None, self._said.values()))

    # --- what happens -----------------------------------------------------------------------

    def on_onset(self) -> None:
        """Something that may be speech: the turn is not over before it is known what it was."""
        self._sound = True

    def on_onset_cancelled(self, at: float) -> list[Output]:
        """The onset was shorter than ``min_speech_ms``."""
        self._sound = False
        return self.tick(at)

    def on_speech_started(self, at: float) -> list[Output]:
        """The user speaks."""
        waiting = self._due is not None
        self._speaking, self._due = True, None
        self._sound = self._prepared = False
        if self._begun_at is None:
            self._begun_at = at
        return [Resume(self._decide("resume", "spoke_again", at))] if waiting else []

    def on_speech_stopped(self, ended_at: float, at: float) -> list[Output]:
        """The user has been silent since ``ended_at``; the utterance's text follows."""
        self._speaking, self._due = False, None
        if self._begun_at is None:
            self._begun_at = ended_at
        self._pauses += 1
        self._texts_missing += 1
        self._pause = _Pause(min(ended_at, at), scored=not self._asks)
        return [ScoreTurn(self._pauses)] if self._asks else []

    def on_transcript(
        self, utterance: int, text: str, at: float, *, first: int = 0, before: str = ""
    ) -> list[Output]:
        """The final text of an utterance.

        Args:
            utterance: its number.
            text: its words; empty: there were none in it.
            at: the time.
            first: number of the first utterance that was read again together with it; 0: there is none.
            before: what that one and those after it said. It counts if that one is part of this turn.
        """
        self._utterance = utterance
        self._texts_missing = max(0, self._texts_missing - 1)
        words_so_far = len(self.text.split())
        if first in self._said:
            self._said = {number: said for number, said in self._said.items() if number < first}
            self._said[first] = before.strip()
        self._said[utterance] = text.strip()
        if text.strip() or len(self.text.split()) > words_so_far:
            self._new_words = True
        while len(self.text) > MAX_CHARACTERS and len(self._said) > 1:
            del self._said[next(iter(self._said))]
        if self._ending is None:
            return self._judge(at)
        self._ending -= 1
        return self._end(at)

    def on_score(self, pause: int, probability: float | None, at: float) -> list[Output]:
        """The model's answer about a pause; None: it has none."""
        if self._pause is None or self._pause.scored or pause != self._pauses:
            return []
        self._pause = _Pause(self._pause.ended_at, scored=True, probability=probability)
        return self._judge(at)

    def on_read(self, text: str, probability: float | None, at: float) -> list[Output]:
        """The language model's answer about the turn's words; None: it has none."""
        if not self._reading or text != self._read:
            return []
        self._reading, self._text_probability = False, probability
        return self._judge(at)

    def tick(self, at: float) -> list[Output]:
        """Time has passed."""
        if self._due is None or at < self._due or self._judgement is None or self._sound or self._reading:
            return []
        limit = self._judgement.needed_ms >= self.settings.limit_ms
        return self._commit("silence_limit" if limit else "waited", at)

    def end(self, at: float) -> list[Output]:
        """The client says that the turn is over: it ends as soon as the texts of its utterances are there."""
        self._ending, self._due = self._texts_missing, None
        return self._end(at)

    def change(self, settings: TurnSettings, at: float) -> list[Output]:
        """Go on with a turn that has begun by other settings; whether its pause was scored stays as it is."""
        asked = not self.settings.manual
        self.settings, self._due = settings, None
        self._asks = self._scored and not settings.manual
        if self._pause is not None and not self._pause.scored and not (asked and self._asks):
            self._pause = _Pause(self._pause.ended_at, scored=True)
        return self._judge(at)

    # --- what follows -----------------------------------------------------------------------

    def _judge(self, at: float) -> list[Output]:
        if self._speaking or self._texts_missing or self._pause is None:
            return []
        text = self.text
        if self.settings.manual or not text:
            return self._pass_over(text, at)
        cue = find_cue(text, self._language)
        if not self._pause.scored:
            return self._prepare(text) if cue is None or cue.finished else []
        if self._new_words or self._heard_pause is None:
            self._heard_pause = self._pause
        # A noise within the pause does not make it begin anew: what counts is the pause after the last words.
        pause, self._new_words = self._heard_pause, False
        read = self._ask_about(text, cue)
        judgement = self._judgement = self._judge_pause(pause.probability, cue)
        if self._begun_at is not None and (at - self._begun_at) * 1000 >= self.settings.longest_ms:
            return self._commit("turn_limit", at)
        due = pause.ended_at + judgement.needed_ms / 1000
        if at >= due and not self._sound and not self._reading:
            return self._commit(judgement.reason, at)
        self._due = due
        prepare = self._prepare(text) if judgement.needed_ms <= PREPARED_MS else []
        return [*read, *prepare, WaitForMore(max(due, at), self._decide("wait", judgement.reason, at))]

    def _judge_pause(self, probability: float | None, cue: Cue | None) -> Judgement:
        judgement = judge(self.settings, probability, cue, self._text_probability)
        if (pauses := self._pauses_of_caller) is None:
            return judgement
        if not self._reading:
            pauses.on_judged(judgement.needed_ms)
        needed_ms = min(judgement.needed_ms + pauses.extra_ms, self.settings.limit_ms)
        return replace(judgement, needed_ms=needed_ms)

    def _ask_about(self, text: str, cue: Cue | None) -> list[Output]:
        """Once for each text."""
        if not self._reads or text == self._read:
            return []
        self._read, self._text_probability = text, None
        self._reading = needs_reading(cue)
        return [ReadTurn(text)] if self._reading else []

    def _pass_over(self, text: str, at: float) -> list[Output]:
        """A pause that is not judged: only the client ends turns, or there are no words."""
        if not self.settings.manual:
            return self._commit("no_words", at)
        if not text:  # a cough is no turn
            self._forget()
        return []

    def _end(self, at: float) -> list[Output]:
        if self._ending:
            return []
        pause = self._pause
        committed = self._commit("requested", at)
        if self._speaking or self._texts_missing:  # the user has begun the next turn meanwhile
            self._begun_at, self._pause = at, pause
        return committed

    def _prepare(self, text: str) -> list[Output]:
        """Once for each pause."""
        if self._prepared:
            return []
        self._prepared = True
        return [PrepareResponse(text)]

    def _commit(self, reason: TurnReason, at: float) -> list[Output]:
        committed = CommitTurn(self._decide("commit", reason, at))
        self._forget()
        return [committed]

    def _decide(
        self, decision: Literal["wait", "resume", "commit"], reason: TurnReason, at: float
    ) -> TurnDecision:
        judgement, pause = self._judgement, self._heard_pause or self._pause
        cue = judgement.cue if judgement else None
        return TurnDecision(
            utterance=self._utterance,
            decision=decision,
            reason=reason,
            text=self.text,
            probability=judgement.probability if judgement else None,
            text_probability=judgement.text_probability if judgement else None,
            cue=cue.kind if cue else "",
            cue_words=cue.words if cue else "",
            silence_ms=max(0, round((at - pause.ended_at) * 1000)) if pause else 0,
            needed_ms=judgement.needed_ms if judgement else 0,
        )
