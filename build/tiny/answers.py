"""What the assistant says: sentences that the recogniser must know to transcribe the agent's own speech.

A tiny agent is tested by listening to it, so its answers are part of the recogniser's data.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from tiny.domain import (
    CITIES,
    DAYS,
    LABELS,
    NAMES,
    ONES,
    SMALL_TALK,
    Utterance,
    number_words,
)

SKIES = ("sunny", "cloudy", "rainy", "windy", "foggy", "snowy")

_SENTENCE_END = re.compile(r"(?<=[.!?]) ")
_LONGEST_ANSWER = 24


@dataclass(frozen=True)
class Answer:
    """One thing the assistant says."""

    spoken: str
    """The text with punctuation, which gives a synthesizer its pauses."""

    @property
    def text(self) -> str:
        """What a recogniser should write: lower case, no punctuation, numbers as words."""
        return re.sub(r"[^a-z' ]", "", self.spoken.lower())

    @property
    def held_out(self) -> bool:
        """Whether this answer is kept from training, by the rule of :class:`tiny.domain.Utterance`."""
        fixed = self.spoken in _FIXED
        return not fixed and Utterance(self.text, "unknown", {"answer": self.text}).held_out


def _pieces(answer: str) -> tuple[str, ...]:
    """A fixed answer as one line if it is short, and each of its sentences."""
    sentences = _SENTENCE_END.split(answer)
    whole = (answer,) if len(answer.split()) <= _LONGEST_ANSWER else ()
    return (*whole, *sentences)


_FIXED = tuple(
    dict.fromkeys(
        piece
        for text in (
            *SMALL_TALK.values(),
            "Sorry, I can't help with that.",
            "I can tell you the weather and the time, and set timers.",
            "Sorry, I can't help with that. I can tell you the weather and the time, and set timers.",
            "Sorry, that did not work. Please try again.",
            "For which city?",
            "For how many minutes?",
            "You have not told me your name yet.",
            "I have not said anything yet.",
            "Okay.",
        )
        for piece in _pieces(text)
    )
)


def _weather(rng: random.Random) -> str:
    size = rng.randint(0, 45)
    below = "minus " if 0 < size <= 20 and rng.random() < 0.35 else ""
    weather = f"{below}{number_words(size)} {'degree' if size == 1 else 'degrees'} and {rng.choice(SKIES)}"
    city, day = rng.choice(CITIES).title(), rng.choice(DAYS)
    if rng.random() < 0.6:
        return f"It's {weather} in {city}."
    when = day.title() if day.startswith("to") else f"On {day.title()}"
    return f"{when} it will be {weather} in {city}."


def _clock(rng: random.Random) -> str:
    """A time as the agent's synthesizer reads it: 14:05 is ``fourteen zero five``."""
    hour, minute = rng.randrange(24), rng.randrange(60)
    tens = "zero " if minute < 10 else ""
    return f"It's {number_words(hour)} {tens}{number_words(minute)} in {rng.choice(CITIES).title()}."


def _timer(rng: random.Random) -> str:
    n, label = rng.randint(1, 60), rng.choice(LABELS)
    minutes = f"{number_words(n)} {'minute' if n == 1 else 'minutes'}"
    return rng.choice(
        (
            f"Okay, {minutes}, starting now.",
            f"Okay, {minutes} for the {label}, starting now.",
            f"Okay, {minutes} for the {label}, starting now.",
            f"Your {label} timer for {minutes} is running.",
        )
    )


def _name(rng: random.Random) -> str:
    name = rng.choice(NAMES).title()
    return rng.choice((f"Nice to meet you, {name}.", f"Your name is {name}."))


def _digits(rng: random.Random) -> str:
    digits = " ".join(rng.choice(ONES[:10]) for _ in range(rng.randint(3, 8)))
    return f"I heard {digits}. Is that right?"


def _sum(rng: random.Random) -> str:
    return f"It's {number_words(rng.randint(2, 20))}."


def answer(rng: random.Random) -> Answer:
    """Draw one answer; half are fixed ones."""
    if rng.random() < 0.5:
        return Answer(rng.choice(_FIXED))
    make = rng.choice((_weather, _weather, _clock, _clock, _timer, _timer, _name, _digits, _sum))
    return Answer(make(rng))
