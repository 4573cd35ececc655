"""How patient a conversation is with its user."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from parley.errors import InvalidMessageError
from parley.protocol import TurnOptions
from parley.vad.segmenter import DEFAULT_SILENCE_MS

Eagerness: TypeAlias = Literal["eager", "normal", "patient", "off"]
EAGERNESSES: tuple[Eagerness, ...] = ("eager", "normal", "patient", "off")
MAX_SILENCE_MS = 10_000
SCORED_SILENCE_MS = 160
"""With scored pauses an utterance ends early: the answer is prepared the sooner."""
MANUAL_SILENCE_MS = 800
"""With manual turns the end of an utterance is not urgent, and longer ones are recognised better."""


@dataclass(frozen=True)
class TurnSettings:
    """Numbers of the end-of-turn policy; silence is counted from the end of speech."""

    threshold: float
    """Probability from which a turn sounds complete."""
    complete_ms: int
    """Silence after such a turn. 0: the pause that is noticed is long enough."""
    incomplete_ms: int
    """Silence after a turn of probability 0; in between it falls in a straight line."""
    unfinished_ms: int
    """Silence at least after words that something has to follow."""
    limit_ms: int
    """Silence that always ends the turn."""
    longest_ms: int = 60_000
    """A turn that has lasted so long ends with its next pause."""
    manual: bool = False
    """No silence ends a turn: only the client does."""
    adapts: bool = True
    """Whether the caller's pauses lengthen the silences (:mod:`parley.turns.caller_pauses`)."""


PRESETS: Mapping[Eagerness, TurnSettings] = {
    "eager": TurnSettings(
        threshold=0.4, complete_ms=0, incomplete_ms=900, unfinished_ms=1_200, limit_ms=2_000
    ),
    "normal": TurnSettings(
        threshold=0.5, complete_ms=240, incomplete_ms=1_800, unfinished_ms=2_000, limit_ms=3_000
    ),
    "patient": TurnSettings(
        threshold=0.7, complete_ms=1_000, incomplete_ms=2_500, unfinished_ms=3_500, limit_ms=5_000
    ),
}


DICTATION = TurnSettings(
    threshold=0.7, complete_ms=1_500, incomplete_ms=2_500, unfinished_ms=3_500, limit_ms=5_000
)
"""While letters and digits are dictated: how they sound says little about whether more of them follow."""

NUMBERS = ("threshold", "complete_ms", "incomplete_ms", "unfinished_ms", "limit_ms")
"""Fields that mean nothing where every pause ends the turn."""


def at_least(settings: TurnSettings | None, patient: TurnSettings) -> TurnSettings:
    """The more patient numbers of two; ``settings`` None: every pause ends the turn."""
    if settings is None:
        return patient
    numbers = {name: max(getattr(settings, name), getattr(patient, name)) for name in NUMBERS}
    return dataclasses.replace(settings, **numbers)


def choose_settings(options: TurnOptions, default: Eagerness, *, adapts: bool = True) -> TurnSettings | None:
    """The settings of a session: what the client asked for, else the server's choice.

    Returns:
        None: every pause ends the turn.

    Raises:
        InvalidMessageError: a number is out of its range, or has no meaning.
    """
    numbers = _numbers(options)
    manual = options.detection == "manual"
    eagerness = options.eagerness or default
    if eagerness == "off":
        if options.eagerness == "off" and numbers:
            raise InvalidMessageError(f"turn.{next(iter(numbers))} means nothing when turn.eagerness is off")
        if not numbers and not manual:
            return None
        eagerness = "normal"
    adapts = adapts if options.adapts is None else options.adapts
    return dataclasses.replace(PRESETS[eagerness], **numbers, manual=manual, adapts=adapts)


def choose_silence_ms(settings: TurnSettings | None) -> int:
    """The silence that ends an utterance (``vad.silence_ms``) of a client that does not choose it.

    Args:
        settings: of the session; None: every pause ends the turn.
    """
    if settings is None:
        return DEFAULT_SILENCE_MS
    return MANUAL_SILENCE_MS if settings.manual else SCORED_SILENCE_MS


def _numbers(options: TurnOptions) -> dict[str, Any]:
    """The numbers that were given, by name."""
    threshold = options.threshold
    if threshold is not None and not 0.0 < threshold <= 1.0:
        raise InvalidMessageError(f"turn.threshold is {threshold}; it must be above 0 and at most 1")
    names = ("complete_ms", "incomplete_ms", "unfinished_ms", "limit_ms")
    numbers: dict[str, Any] = {name: value for name in names if (value := getattr(options, name)) is not None}
    for name, value in numbers.items():
        if not 0 <= value <= MAX_SILENCE_MS:
            raise InvalidMessageError(f"turn.{name} is {value}; it must be 0 to {MAX_SILENCE_MS}")
    return numbers if threshold is None else {"threshold": threshold, **numbers}
