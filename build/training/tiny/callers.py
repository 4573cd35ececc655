"""What callers say that the recogniser's grammar lacks: half questions, answers to questions, noise."""

from __future__ import annotations

import random
from typing import Literal

from tiny import domain, words
from tiny.domain import Utterance

NEAR_DAYS = ("today", "tomorrow", "tonight")
_NO_WORDS = ("", "uh", "um", "hm", "mhm", "...", "?", "eh", "ah")
_OPEN_WEATHER = (
    "what's the weather",
    "what is the weather",
    "how is the weather",
    "what's the weather like",
    "is it raining",
    "do i need an umbrella",
)
_OPEN_TIME = ("what time is it", "what's the time", "tell me the time", "what time is it now")
_OPEN_TIMER = ("set a timer", "start a timer", "i need a timer", "can you set a timer", "please set a timer")
_CONFIRMATIONS = ("yes", "that is right", "that's right", "no", "that is wrong", "that's wrong")


def _salad() -> tuple[str, ...]:
    """Every word of the grammar, some rare and some common ones."""
    rng = random.Random(0)
    known = {word for _ in range(3000) for word in domain.spoken(rng).text.split()}
    return (*sorted(known), *words.COMMON_WORDS)


_SALAD = _salad()


def other_day(rng: random.Random) -> Utterance:
    """The last question about the weather, for another day."""
    day = rng.choice(domain.DAYS)
    on = "" if day in NEAR_DAYS else "on "
    text = rng.choice((f"and {on}{day}", f"what about {day}", f"how about {day}"))
    return Utterance(text, "weather_follow_up", {"day": day})


def missing_city(rng: random.Random, intent: Literal["weather", "time"]) -> Utterance:
    """The answer to "For which city?"."""
    city = rng.choice(domain.CITIES)
    text = rng.choice((city, f"in {city}", f"for {city}", f"{city} please", f"in {city} please"))
    return Utterance(text, intent, {"city": city})


def missing_minutes(rng: random.Random) -> Utterance:
    """The answer to "For how many minutes?"."""
    spoken, minutes = domain.duration(rng)
    spoken = rng.choice((spoken, f"for {spoken}", f"{spoken} please"))
    return Utterance(spoken, "timer", {"minutes": minutes})


def confirmation(rng: random.Random) -> Utterance:
    """The answer to "Is that right?"."""
    return Utterance(rng.choice(_CONFIRMATIONS), "small_talk")


def open_question(rng: random.Random) -> Utterance:
    """A request that lacks what its tool needs."""
    kind = rng.random()
    if kind < 0.5:
        if rng.random() < 0.35:
            day = rng.choice(domain.DAYS)
            when = day if day in NEAR_DAYS else f"on {day}"
            text = rng.choice(("what's the weather", "what will the weather be", "how is the weather"))
            return Utterance(f"{text} {when}", "weather", {"day": day})
        return Utterance(rng.choice(_OPEN_WEATHER), "weather")
    if kind < 0.75:
        return Utterance(rng.choice(_OPEN_TIME), "time")
    if rng.random() < 0.4:
        label = rng.choice(domain.LABELS)
        return Utterance(f"{rng.choice(_OPEN_TIMER)} for the {label}", "timer", {"label": label})
    return Utterance(rng.choice(_OPEN_TIMER), "timer")


def noise(rng: random.Random) -> Utterance:
    """Nothing, a sound, words without sense, or a wish that no tool fulfils."""
    kind = rng.random()
    if kind < 0.15:
        text = rng.choice(_NO_WORDS)
    elif kind < 0.55:
        salad = (rng.choice(_SALAD) if rng.random() < 0.7 else words.invented_word(rng) for _ in range(9))
        text = " ".join(list(salad)[: rng.choice((1, 2, 3, 4, 5, 7, 9))])
    else:
        one, two, three = (rng.choice(words.COMMON_WORDS) for _ in range(3))
        text = rng.choice(
            (
                f"can you {one} the {two}",
                f"what is a {one} {two}",
                f"tell me about the {one} {two}",
                f"tell me about {one}",
                f"i want to {one} my {two}",
                f"why is the {one} {two}",
                f"how do i {one} a {two}",
                f"where can i {one} {two}",
                f"please {one} my {two} {three}",
                f"i need a {one}",
                f"who is {words.invented_name(rng)}",
                f"find {words.invented_name(rng)}",
                f"my {one} is {two}",
            )
        )
    return Utterance(text, "unknown")
