"""What callers say that the recogniser's grammar lacks: half questions, answers to questions, noise."""

from __future__ import annotations

import random
from typing import Literal

from tiny import domain, words
from tiny.domain import TEXTS, Utterance

NEAR_DAYS = ("today", "tomorrow", "tonight")


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
    return Utterance(rng.choice(TEXTS["confirmations"]), "small_talk")


def open_question(rng: random.Random) -> Utterance:
    """A request that lacks what its tool needs."""
    kind = rng.random()
    if kind < 0.5:
        if rng.random() < 0.35:
            day = rng.choice(domain.DAYS)
            when = day if day in NEAR_DAYS else f"on {day}"
            text = rng.choice(("what's the weather", "what will the weather be", "how is the weather"))
            return Utterance(f"{text} {when}", "weather", {"day": day})
        return Utterance(rng.choice(TEXTS["open_weather"]), "weather")
    if kind < 0.75:
        return Utterance(rng.choice(TEXTS["open_time"]), "time")
    if rng.random() < 0.4:
        label = rng.choice(domain.LABELS)
        return Utterance(f"{rng.choice(TEXTS['open_timer'])} for the {label}", "timer", {"label": label})
    return Utterance(rng.choice(TEXTS["open_timer"]), "timer")


def noise(rng: random.Random) -> Utterance:
    """Nothing, a sound, words without sense, or a wish that no tool fulfils."""
    kind = rng.random()
    if kind < 0.15:
        text = rng.choice(TEXTS["no_words"])
    elif kind < 0.55:
        salad = (rng.choice(_SALAD) if rng.random() < 0.7 else words.invented_word(rng) for _ in range(9))
        text = " ".join(list(salad)[: rng.choice((1, 2, 3, 4, 5, 7, 9))])
    else:
        one, two, three = (rng.choice(words.COMMON_WORDS) for _ in range(3))
        who, whom = words.invented_name(rng), words.invented_name(rng)
        text = rng.choice(TEXTS["noise"]).format(one=one, two=two, three=three, who=who, whom=whom)
    return Utterance(text, "unknown")
