"""Three tools to try the agent with."""

from __future__ import annotations

import hashlib
from datetime import datetime
from functools import cache
from typing import Annotated
from zoneinfo import ZoneInfo, available_timezones

from parley_client.tools import tool

_OTHERS = {
    "boston": "America/New_York",
    "dallas": "America/Chicago",
    "delhi": "Asia/Kolkata",
    "geneva": "Europe/Zurich",
    "miami": "America/New_York",
    "milan": "Europe/Rome",
    "san francisco": "America/Los_Angeles",
    "seattle": "America/Los_Angeles",
}
"""Cities after which no time zone is named."""
_SKIES = ("sunny", "cloudy", "rainy", "windy", "foggy", "snowy")


@tool
def get_weather(
    city: Annotated[str, "The name of the city."],
    day: Annotated[str | None, "The day, if it is not now."] = None,
) -> dict[str, int | str]:
    """Get the weather in a city.

    Sample data, not a forecast: computed from the names, so that the same question always has
    the same answer.
    """
    digest = hashlib.sha256(f"{city.lower()}/{(day or 'now').lower()}".encode()).digest()
    sky = _SKIES[digest[0] % len(_SKIES)]
    temperature = -(digest[1] % 9) if sky == "snowy" else 4 + digest[1] % 27
    return {"temperature": temperature, "sky": sky}


@cache
def _zones() -> dict[str, str]:
    """The time zones of cities, by their names in small letters."""
    named = {
        zone.rpartition("/")[2].replace("_", " ").lower(): zone for zone in sorted(available_timezones())
    }
    return named | _OTHERS


@tool
def get_time(city: Annotated[str, "The name of the city."]) -> dict[str, str]:
    """Get the time in a city."""
    zone = _zones().get(city.lower())
    if zone is None:
        raise LookupError("unknown city")
    return {"time": f"{datetime.now(ZoneInfo(zone)):%H:%M}"}


@tool
def set_timer(
    minutes: Annotated[int, "How many minutes."],
    label: Annotated[str | None, "What the timer is for."] = None,  # noqa: ARG001 - for the model
) -> dict[str, bool]:
    """Start a timer.

    Nothing rings: the sample tool only checks the duration and says that it agrees.
    """
    if not 0 < minutes <= 24 * 60:
        raise ValueError("a timer runs for 1 to 1440 minutes")
    return {"ok": True}


DEMO_TOOLS = (get_weather, get_time, set_timer)
