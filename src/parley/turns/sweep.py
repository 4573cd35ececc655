"""How false cut-offs and delay trade off on labelled pauses, over all settings of a policy.

A pause is a *hold*, after which the user went on, or the *end* of a turn. A policy acts after some silence:
in a hold that is a false cut-off, after an end it is the delay. :func:`sweep` measures scores by themselves,
as eot-bench does, with a policy of a threshold, a delay and a timeout. :func:`sweep_settings` measures the
policy that serves (:func:`parley.turns.endpointing.judge`). Computing time is left out of all delays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from parley.errors import InvalidInputError
from parley.turns.caller_pauses import CallerPauses
from parley.turns.cues import Cue
from parley.turns.endpointing import judge
from parley.turns.settings import MAX_SILENCE_MS, TurnSettings

PolicyT = TypeVar("PolicyT")
SHORTEST_HOLD_MS, LONGEST_HOLD_MS = 200.0, 5_000.0
"""As in eot-bench, shorter and longer holds do not count."""
AREA_MS = 1_600
NUMBERS = ("threshold", "complete_ms", "incomplete_ms", "unfinished_ms", "limit_ms")
"""Of settings, as an agent's file has them under ``[turn]``."""
THRESHOLDS = (0.02, *(step / 20 for step in range(1, 20)), 0.98)
DELAYS_MS = tuple(range(0, 1_001, 100))
TIMEOUTS_MS = (*range(100, 2_001, 100), 2_500, 3_000, 4_000, 5_000)
_SETTINGS_THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_COMPLETE_MS = (0, 120, 240, 360, 480, 600, 800, 1_000, 1_300)
_NEXT_TURN_MS = 60_000
"""After an end."""
_INCOMPLETE_MS = (300, 600, 900, 1_200, 1_500, 1_800, 2_200, 2_600, 3_000, 3_500, 4_000, 5_000)


class TooFewPausesError(InvalidInputError):
    """There are no holds, or no ends, or too few to choose by."""


@dataclass(frozen=True)
class LabelledPause:
    """A silence of the user, and what was known in it. Times are milliseconds since the end of speech."""

    is_end: bool
    length_ms: float = math.inf
    """Of a hold: until the user went on."""
    scores: tuple[tuple[float, float], ...] = ()
    """By rising time: since when, and the probability that the turn is over."""
    cue: Cue | None = None
    """Of the turn's words so far."""
    text_probability: float | None = None
    """What the language model said of them."""
    ready_ms: float = 0.0
    """When words and score were there, without which the policy that serves does not act."""


@dataclass(frozen=True)
class SweptPolicy:
    """Acts at the score of the threshold, but not before the delay, and in any case at the timeout."""

    threshold: float
    """Infinite: the score does not matter, silence alone decides."""
    delay_ms: int
    timeout_ms: int


@dataclass(frozen=True)
class OperatingPoint(Generic[PolicyT]):
    """What a policy does to the pauses."""

    policy: PolicyT
    cut_offs: float
    """Share of the holds in which it acts, 0-1."""
    delay_ms: float
    """From the end of speech until it acts, the mean of all ends."""


class Frontier(Generic[PolicyT]):
    """The policies of which none is better in one respect without being worse in the other."""

    def __init__(self, points: Iterable[OperatingPoint[PolicyT]]) -> None:
        found: list[OperatingPoint[PolicyT]] = []
        for one in sorted(points, key=lambda one: (one.delay_ms, one.cut_offs)):
            if not found or one.cut_offs < found[-1].cut_offs:
                found.append(one)
        self.points = tuple(found)
        """By rising delay, with falling cut-offs."""

    def within(self, delay_ms: float) -> OperatingPoint[PolicyT] | None:
        """The fewest cut-offs with at most this delay; None: every policy is slower."""
        return next((one for one in reversed(self.points) if one.delay_ms <= delay_ms), None)

    def at(self, cut_offs: float) -> OperatingPoint[PolicyT] | None:
        """The shortest delay with at most this share of cut-offs; None: every policy has more."""
        return next((one for one in self.points if one.cut_offs <= cut_offs), None)

    @property
    def area(self) -> float:
        """Mean of the fewest cut-offs over all budgets of delay up to :data:`AREA_MS`, 0-1; lower is better.

        It is 1 for budgets that every policy exceeds.
        """
        area, at, cut_offs = 0.0, 0.0, 1.0
        for one in self.points:
            until = min(one.delay_ms, AREA_MS)
            area, at, cut_offs = area + (until - at) * cut_offs, until, one.cut_offs
        return (area + (AREA_MS - at) * cut_offs) / AREA_MS


class _Labels:
    """The pauses that count, in arrays."""

    def __init__(self, pauses: Iterable[LabelledPause]) -> None:
        self.pauses = [one for one in pauses if _counts(one)]
        self._is_end = np.array([one.is_end for one in self.pauses], bool)
        self._length = np.array([one.length_ms for one in self.pauses], np.float64)
        self.ready_ms = np.array([one.ready_ms for one in self.pauses], np.float64)
        # In hundredths there are few different probabilities, however many pauses there are.
        heard = [_heard(one) for one in self.pauses]
        self.kinds = list(dict.fromkeys(heard))
        """Of pauses that the policy that serves cannot tell apart: arguments of :func:`judge`."""
        places = {kind: place for place, kind in enumerate(self.kinds)}
        self.kind = np.array([places[one] for one in heard], np.intp)
        """``[n]``: the place in ``kinds``."""
        if self._is_end.all() or not self._is_end.any():
            raise TooFewPausesError(
                f"of {len(self.pauses)} pauses {self._is_end.sum()} are ends of turns: "
                "both ends and pauses inside of turns are needed"
            )

    def point(self, acts_ms: NDArray[np.float64], policy: PolicyT) -> OperatingPoint[PolicyT]:
        """``acts_ms`` ``[n]``: when the policy acts in each pause, if it lasts so long."""
        cut_off = acts_ms < self._length
        return OperatingPoint(
            policy, float(cut_off[~self._is_end].mean()), float(acts_ms[self._is_end].mean())
        )


def _counts(pause: LabelledPause) -> bool:
    return pause.is_end or SHORTEST_HOLD_MS <= pause.length_ms <= LONGEST_HOLD_MS


def _heard(pause: LabelledPause) -> tuple[float | None, Cue | None, float | None]:
    """What the policy that serves knows: arguments of :func:`judge`."""
    score = pause.scores[0][1] if pause.scores else None
    return _rounded(score), _bare(pause.cue), _rounded(pause.text_probability)


def _rounded(probability: float | None) -> float | None:
    return None if probability is None else round(probability, 2)


def _bare(cue: Cue | None) -> Cue | None:
    """Without its words, which no policy looks at."""
    return cue and Cue(cue.kind, "", cue.finished)


def sweep(pauses: Iterable[LabelledPause], thresholds: Sequence[float] = THRESHOLDS) -> Frontier[SweptPolicy]:
    """The frontier of scores over thresholds, delays and timeouts.

    A score counts until the next one of its pause. With the thresholds ``(math.inf,)`` it is that of silence
    alone. The work grows with the number of scores and of pauses; the grid is fixed.

    Raises:
        TooFewPausesError: there are no holds, or no ends.
    """
    labels = _Labels(pauses)
    most = max((len(one.scores) for one in labels.pauses), default=0)
    since, values = np.full((2, len(labels.pauses), most + 1), [[[math.inf]], [[-math.inf]]])
    for row, one in enumerate(labels.pauses):
        for column, (at_ms, probability) in enumerate(one.scores):
            since[row, column], values[row, column] = at_ms, probability
    points = []
    for threshold in thresholds:
        # By number of scores that are past: when the next one reaches the threshold.
        crossing = np.where(values >= threshold, since, math.inf)
        crossing = np.minimum.accumulate(crossing[:, ::-1], axis=1)[:, ::-1]
        for delay in DELAYS_MS:
            past = (since <= delay).sum(axis=1, keepdims=True)
            reached = (past > 0) & (np.take_along_axis(values, np.maximum(past - 1, 0), 1) >= threshold)
            acts = np.where(reached, delay, np.take_along_axis(crossing, past, 1))[:, 0]
            points += [
                labels.point(np.minimum(acts, timeout), SweptPolicy(threshold, delay, timeout))
                for timeout in TIMEOUTS_MS
                if timeout >= delay
            ]
    return Frontier(points)


def sweep_settings(pauses: Iterable[LabelledPause], base: TurnSettings) -> Frontier[TurnSettings]:
    """The frontier of the policy that serves, which hears the first score of a pause and its words.

    Of ``base``, ``unfinished_ms`` and ``limit_ms`` keep their proportion to ``incomplete_ms``.

    Raises:
        TooFewPausesError: there are no holds, or no ends.
    """
    labels = _Labels(pauses)
    grid = product(_SETTINGS_THRESHOLDS, _COMPLETE_MS, _INCOMPLETE_MS)
    return Frontier(_judged(labels, _scaled(base, *numbers)) for numbers in grid if numbers[1] <= numbers[2])


def measure_settings(pauses: Iterable[LabelledPause], settings: TurnSettings) -> OperatingPoint[TurnSettings]:
    """What the policy that serves does with these settings.

    Raises:
        TooFewPausesError: there are no holds, or no ends.
    """
    return _judged(_Labels(pauses), settings)


def measure_adapting(
    calls: Sequence[Sequence[LabelledPause]], settings: TurnSettings
) -> OperatingPoint[TurnSettings]:
    """What it does where it adapts to callers (:mod:`parley.turns.caller_pauses`); each call begins anew.

    Raises:
        TooFewPausesError: there are no holds, or no ends.
    """
    labels, acts = _Labels(chain.from_iterable(calls)), []
    for call in calls:
        caller = CallerPauses()
        for one in filter(_counts, call):
            needed = judge(settings, *_heard(one)).needed_ms
            acts.append(max(float(min(needed + caller.extra_ms, settings.limit_ms)), one.ready_ms))
            caller.on_speech_stopped(0)
            caller.on_judged(needed)
            caller.on_speech_started(round(min(one.length_ms, _NEXT_TURN_MS)))
            caller.on_words()
    return labels.point(np.array(acts), settings)


def _judged(labels: _Labels, settings: TurnSettings) -> OperatingPoint[TurnSettings]:
    needed = [float(judge(settings, *kind).needed_ms) for kind in labels.kinds]
    return labels.point(np.maximum(np.array(needed)[labels.kind], labels.ready_ms), settings)


def _scaled(base: TurnSettings, threshold: float, complete_ms: int, incomplete_ms: int) -> TurnSettings:
    by = incomplete_ms / base.incomplete_ms if base.incomplete_ms else 1.0
    return replace(
        base,
        threshold=threshold,
        complete_ms=complete_ms,
        incomplete_ms=incomplete_ms,
        unfinished_ms=min(MAX_SILENCE_MS, round(by * base.unfinished_ms)),
        limit_ms=min(MAX_SILENCE_MS, max(incomplete_ms, round(by * base.limit_ms))),
    )
