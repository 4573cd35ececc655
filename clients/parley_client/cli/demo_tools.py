"""Three tools to try the agent with."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Annotated
from zoneinfo import ZoneInfo

from parley_client.tools import tool

_ZONES = {
    "amsterdam": "Europe/Amsterdam",
    "athens": "Europe/Athens",
    "berlin": "Europe/Berlin",
    "boston": "America/New_York",
    "cairo": "Africa/Cairo",
    "chicago": "America/Chicago",
    "dallas": "America/Chicago",
    "delhi": "Asia/Kolkata",
    "denver": "America/Denver",
    "dublin": "Europe/Dublin",
    "geneva": "Europe/Zurich",
    "havana": "America/Havana",
    "helsinki": "Europe/Helsinki",
    "lima": "America/Lima",
    "lisbon": "Europe/Lisbon",
    "london": "Europe/London",
    "madrid": "Europe/Madrid",
    "miami": "America/New_York",
    "milan": "Europe/Rome",
    "nairobi": "Africa/Nairobi",
    "new york": "America/New_York",
    "oslo": "Europe/Oslo",
    "paris": "Europe/Paris",
    "prague": "Europe/Prague",
    "rome": "Europe/Rome",
    "san francisco": "America/Los_Angeles",
    "seattle": "America/Los_Angeles",
    "seoul": "Asia/Seoul",
    "stockholm": "Europe/Stockholm",
    "sydney": "Australia/Sydney",
    "tokyo": "Asia/Tokyo",
    "toronto": "America/Toronto",
    "vienna": "Europe/Vienna",
    "warsaw": "Europe/Warsaw",
}
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


@tool
def get_time(city: Annotated[str, "The name of the city."]) -> dict[str, str]:
    """Get the time in a city."""
    zone = _ZONES.get(city.lower())
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
