"""What callers say that is not a whole request: half questions, bare answers, two things in one breath."""

from __future__ import annotations

import random

from tiny import domain
from tiny.domain import TEXTS


def fragment(rng: random.Random) -> str:
    """A request that lacks its city or duration, or only that."""
    city, day, label = rng.choice(domain.CITIES), rng.choice(domain.DAYS), rng.choice(domain.LABELS)
    when = day if day.startswith("to") else f"on {day}"
    minutes, _ = domain.duration(rng)
    country = rng.choice(domain.COUNTRIES)
    groups = (
        (city, f"in {city}", f"for {city}", f"{city} please", f"in {city} please", f"in {country}"),
        (minutes, f"for {minutes}", f"{minutes} please"),
        (f"and {when}", f"what about {day}", f"how about {day}", day, when),
        (
            *(
                f"{text} {when}"
                for text in ("what's the weather", "how is the weather", "what will the weather be")
            ),
            *TEXTS["open_weather"],
        ),
        TEXTS["open_time"],
        (*TEXTS["open_timer"][:3], f"set a timer for the {label}", f"start a timer for the {label}"),
    )
    return rng.choice(rng.choice(groups))


def joined(rng: random.Random) -> str:
    """A fixed phrase and a request that follows it without a pause."""
    first = rng.choice((*domain.STOP_PHRASES, *domain.SMALL_TALK))
    second = domain.spoken(rng)
    while second.held_out:
        second = domain.spoken(rng)
    return f"{first} {second.text}"
