"""What a caller is going to do, drawn before the call, and when the next one calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Literal, TypeAlias

from load.recordings import Recording, Repertoire

Ending: TypeAlias = Literal["complete", "early", "vanish"]
"""``complete``: hangs up after the last answer. ``early``: hangs up in the middle of a turn. ``vanish``:
drops the connection there, without END."""
CHUNKS_MS = (20, 100)
"""Lengths of a microphone's chunks: telephones and browsers, and recorders."""

_OVER_MS = (500, 2_500)
"""How much of an answer was heard when it is spoken over."""
_LEAVES_AFTER_S = (0.2, 4.0)
"""When a caller leaves, counted from the beginning of a sentence."""
_PAUSE_S = (0.3, 1.2)


@dataclass(frozen=True)
class Habits:
    """How callers behave; probabilities are 0-1."""

    turns: tuple[int, int] = (2, 5)
    """Fewest and most questions of a call."""
    interrupt: float = 0.2
    """For each answer but the last: that it is spoken over."""
    early: float = 0.1
    """For each call: that it is hung up in the middle of a turn."""
    vanish: float = 0.1
    """For each call: that the connection is dropped in the middle of a turn."""
    chunk_ms: int | None = None
    """Of every caller's microphone; None: drawn for each."""

    def __post_init__(self) -> None:
        fewest, most = self.turns
        if not 1 <= fewest <= most:
            raise ValueError(f"a call has at least one turn and at most as many as given, not {self.turns}")
        for name in ("interrupt", "early", "vanish"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is a probability, 0-1")
        if self.early + self.vanish > 1:
            raise ValueError("early and vanish exclude each other: together at most 1")


@dataclass(frozen=True)
class Sentence:
    """A recording, and when it is spoken."""

    recording: Recording
    pause_s: float
    """Silence before it, after the answer before was heard (seconds)."""
    over_ms: int | None = None
    """It is spoken over the answer before, when so much of that was heard; None: after it."""
    expects_answer: bool = True


@dataclass(frozen=True)
class Plan:
    """One call."""

    chunk_ms: int
    sentences: tuple[Sentence, ...]
    ending: Ending
    leaves_in: int = 0
    """The sentence in whose turn a caller leaves who does not stay to the end."""
    leaves_after_s: float = 0.0
    """Seconds from the beginning of that sentence."""


def make_plan(random: Random, habits: Habits, repertoire: Repertoire) -> Plan:
    """Draw a call."""
    sentences: list[Sentence] = []
    for _ in range(random.randint(*habits.turns)):
        over_ms = random.randint(*_OVER_MS) if sentences and random.random() < habits.interrupt else None
        # Either a command stops the answer and the question follows, or the question is spoken over it.
        if over_ms is not None and random.random() < 0.5:
            command = random.choice(repertoire.commands)
            sentences.append(Sentence(command, 0.0, over_ms, expects_answer=False))
            over_ms = None
        question = random.choice(repertoire.questions)
        sentences.append(Sentence(question, random.uniform(*_PAUSE_S), over_ms))
    return Plan(
        chunk_ms=habits.chunk_ms or random.choice(CHUNKS_MS),
        sentences=tuple(sentences),
        ending=_draw_ending(random.random(), habits),
        leaves_in=random.randrange(len(sentences)),
        leaves_after_s=random.uniform(*_LEAVES_AFTER_S),
    )


def _draw_ending(drawn: float, habits: Habits) -> Ending:
    if drawn < habits.vanish:
        return "vanish"
    return "early" if drawn < habits.vanish + habits.early else "complete"


def arrival_gaps(random: Random, per_minute: float) -> Iterator[float]:
    """Seconds between two arrivals of a Poisson process of this rate, without end.

    Several of them with different generators make one process with the sum of their rates.

    Raises:
        ValueError: the rate is not above 0.
    """
    if per_minute <= 0:
        raise ValueError("the rate of arrivals is above 0")
    while True:
        yield random.expovariate(per_minute / 60)
