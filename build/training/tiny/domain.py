"""What a caller may say to the tiny models: one definition for the recogniser and the LLM.

An :class:`Utterance` is the text a recogniser should write (lower case, no punctuation,
numbers as words) together with what it means, so that the ASR data (:mod:`tiny.speech`)
and the LLM dialogues (:mod:`tiny.dialogs`) come from the same sentences and share
one held-out split.
"""

from __future__ import annotations

import hashlib
import random
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Intent = Literal[
    "weather",
    "weather_follow_up",
    "time",
    "time_follow_up",
    "timer",
    "correct_city",
    "correct_minutes",
    "phone_number",
    "sum",
    "tell_name",
    "ask_name",
    "repeat",
    "stop",
    "small_talk",
    "unknown",
]

TEXTS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("texts.toml").read_text())
CITIES: list[str] = TEXTS["cities"]
DAYS: list[str] = TEXTS["days"]
LABELS: list[str] = TEXTS["labels"]
NAMES: list[str] = TEXTS["names"]
COUNTRIES: list[str] = TEXTS["countries"]
STOP_PHRASES: list[str] = TEXTS["stop"]
SMALL_TALK: dict[str, str] = TEXTS["small_talk"]
ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen"
).split()
TENS = {20: "twenty", 30: "thirty", 40: "forty", 50: "fifty", 60: "sixty"}


@dataclass(frozen=True)
class Utterance:
    """One thing a caller says, and what it means."""

    text: str
    intent: Intent
    slots: dict[str, str | int] = field(default_factory=dict)

    @property
    def held_out(self) -> bool:
        """Whether this sentence is kept from every training set (about one in eight).

        Only sentences with several words and a slot can be held out: a fixed phrase that is
        never trained on cannot be known.
        """
        if not self.slots or len(self.text.split()) < 4:
            return False
        return hashlib.sha256(self.text.encode()).digest()[0] < 32


def number_words(n: int) -> str:
    """Spell ``n`` (0-69) as a recogniser writes it: ``25`` is ``twenty five``."""
    if n < 20:
        return ONES[n]
    tens, ones = n // 10 * 10, n % 10
    return TENS[tens] + (f" {ONES[ones]}" if ones else "")


def weather(rng: random.Random) -> Utterance:
    """A question about the weather in a city, often on a day."""
    city = rng.choice(CITIES)
    if rng.random() < 0.5:
        day = rng.choice(DAYS)
        when = day if day in ("today", "tomorrow", "tonight") else f"on {day}"
        text = rng.choice(TEXTS["weather_on_day"]).format(city=city, when=when)
        return Utterance(text, "weather", {"city": city, "day": day})
    return Utterance(rng.choice(TEXTS["weather"]).format(city=city), "weather", {"city": city})


def follow_up(rng: random.Random, of: Intent) -> Utterance:
    """A question that only makes sense after a weather or time question."""
    city = rng.choice(CITIES)
    text = rng.choice(TEXTS["follow_up"]).format(city=city)
    return Utterance(text, "weather_follow_up" if of == "weather" else "time_follow_up", {"city": city})


def time_in_city(rng: random.Random) -> Utterance:
    """A question about the time in a city."""
    city = rng.choice(CITIES)
    return Utterance(rng.choice(TEXTS["time"]).format(city=city), "time", {"city": city})


def duration(rng: random.Random) -> tuple[str, int]:
    """A spoken duration and its length in minutes."""
    kind = rng.random()
    if kind < 0.06:
        return rng.choice((("half an hour", 30), ("an hour", 60), ("a quarter of an hour", 15)))
    n = rng.randint(1, 60)
    return f"{number_words(n)} {'minute' if n == 1 else 'minutes'}", n


def timer(rng: random.Random) -> Utterance:
    """A request for a timer, often with what it is for."""
    spoken, minutes = duration(rng)
    slots: dict[str, str | int] = {"minutes": minutes}
    label = ""
    if rng.random() < 0.5:
        slots["label"] = rng.choice(LABELS)
        label = f" for the {slots['label']}"
    text = rng.choice(TEXTS["timer"]).format(spoken=spoken, label=label)
    return Utterance(text, "timer", slots)


def correct_city(rng: random.Random, wrong: str) -> Utterance:
    """A correction after the assistant answered for ``wrong``."""
    city = rng.choice([c for c in CITIES if c != wrong])
    text = rng.choice(TEXTS["correct_city"]).format(city=city, wrong=wrong)
    return Utterance(text, "correct_city", {"city": city})


def correct_minutes(rng: random.Random) -> Utterance:
    """A correction after a timer was set."""
    spoken, minutes = duration(rng)
    text = rng.choice(TEXTS["correct_minutes"]).format(spoken=spoken)
    return Utterance(text, "correct_minutes", {"minutes": minutes})


def phone_number(rng: random.Random) -> Utterance:
    """A number, spoken digit by digit."""
    digits = [rng.randint(0, 9) for _ in range(rng.randint(3, 8))]
    spoken = " ".join(ONES[d] for d in digits)
    kind = rng.choice(("phone number", "order number", "number"))
    return Utterance(
        f"my {kind} is {spoken}", "phone_number", {"kind": kind, "digits": " ".join(map(str, digits))}
    )


def addition(rng: random.Random) -> Utterance:
    """A small sum."""
    a, b = rng.randint(1, 10), rng.randint(1, 10)
    start = rng.choice(("what is", "what's", "how much is"))
    return Utterance(f"{start} {number_words(a)} plus {number_words(b)}", "sum", {"a": a, "b": b})


def tell_name(rng: random.Random) -> Utterance:
    """The caller's name."""
    name = rng.choice(NAMES)
    return Utterance(
        rng.choice((f"my name is {name}", f"hello my name is {name}", f"hi i am {name}", f"i am {name}")),
        "tell_name",
        {"name": name},
    )


def unknown(rng: random.Random) -> Utterance:
    """Something that the assistant has no tool and no answer for."""
    drawn = {
        name: rng.choice(choices)
        for name, choices in (
            *(("city", CITIES), ("day", DAYS), ("room", TEXTS["rooms"]), ("city2", CITIES)),
            *(("count", [number_words(count) for count in range(2, 13)]), ("name", NAMES), ("name2", NAMES)),
            *(("name3", NAMES), ("on", ("on", "off")), ("genre", TEXTS["genres"])),
            *(("genre2", TEXTS["genres"]), ("country", COUNTRIES)),
        )
    }
    text = rng.choice(TEXTS["unknown"]).format(**drawn)
    return Utterance(text, "unknown", {"topic": text})


def small_talk(rng: random.Random) -> Utterance:
    """A fixed phrase that has a fixed answer."""
    return Utterance(rng.choice(tuple(SMALL_TALK)), "small_talk")


def stop(rng: random.Random) -> Utterance:
    """A wish that the assistant be quiet."""
    return Utterance(rng.choice(STOP_PHRASES), "stop")


def repeat(rng: random.Random) -> Utterance:
    """A wish to hear the last answer again."""
    return Utterance(rng.choice(TEXTS["repeat"]), "repeat")


def ask_name(rng: random.Random) -> Utterance:
    """A question that the caller has answered before, or not."""
    return Utterance(rng.choice(TEXTS["ask_name"]), "ask_name")


# How often each kind is said, for data that stands alone (the recogniser's).
SPOKEN: tuple[tuple[float, Callable[[random.Random], Utterance]], ...] = (
    (0.20, weather),
    (0.05, lambda rng: follow_up(rng, "weather")),
    (0.12, time_in_city),
    (0.18, timer),
    (0.05, lambda rng: correct_city(rng, rng.choice(CITIES))),
    (0.05, correct_minutes),
    (0.08, phone_number),
    (0.05, addition),
    (0.04, tell_name),
    (0.01, ask_name),
    (0.02, repeat),
    (0.03, stop),
    (0.12, unknown),
    (0.08, small_talk),
)


def spoken(rng: random.Random) -> Utterance:
    """Draw one utterance as callers say them."""
    makers = [maker for _, maker in SPOKEN]
    weights = [weight for weight, _ in SPOKEN]
    return rng.choices(makers, weights)[0](rng)
