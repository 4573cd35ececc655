"""What each caller says and gets to hear, and no other caller: so a mix-up of two calls is seen."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

from harness.stats import spoken_words

from parley_client import ToolTable, tool
from parley_client.audio.files import Pcm
from parley_client.cli.demo_tools import get_time, set_timer
from parley_testing.voices import ESPEAK, Line, speak_all

CITIES = (
    "paris toronto stockholm nairobi lisbon chicago vienna sydney "
    "havana berlin seattle dublin helsinki geneva athens miami"
).split()
"""They sound different, and the tiny models have learned them. So many callers are possible at once."""
_SKIES = ("sunny", "cloudy", "rainy", "windy", "foggy", "snowy")
_VOICE = "woman-1"  # that of the recordings which the recogniser's tests use
_COLDEST = 2  # from here on, so many numbers are one word each
_UNITS = ("degree", "degrees")


@dataclass(frozen=True, eq=False)
class Part:
    """One caller's."""

    city: str
    """That it asks about."""
    degrees: int
    """That its own tool answers."""
    sky: str
    question: Pcm
    """The weather there; 16 kHz mono, shape ``[n]``."""
    others: frozenset[str]
    """Cities of other callers."""
    other_degrees: frozenset[str]
    """In words."""

    def tools(self) -> ToolTable:
        """Those that the tiny language model knows; the weather is this caller's everywhere."""

        @tool
        def get_weather(
            city: Annotated[str, "The name of the city."],  # noqa: ARG001 - the callers compare it
            day: Annotated[str | None, "The day, if it is not now."] = None,  # noqa: ARG001
        ) -> dict[str, int | str]:
            """Get the weather in a city."""
            return {"temperature": self.degrees, "sky": self.sky}

        return ToolTable([get_weather, get_time, set_timer])

    def names(self, text: str) -> bool:
        """Whether a text is about this caller's city."""
        return self.city in spoken_words(text)

    def find_foreign_cities(self, text: str) -> list[str]:
        """The cities of other callers in a text."""
        return [word for word in spoken_words(text) if word in self.others]

    def find_foreign(self, text: str) -> list[str]:
        """What of a text belongs to other callers: cities and temperatures."""
        degrees = [f"{one} {unit}" for one, unit in pairwise(spoken_words(text)) if unit in _UNITS]
        return self.find_foreign_cities(text) + [
            one for one in degrees if one.split()[0] in self.other_degrees
        ]


def make_parts(count: int) -> list[Part]:
    """Parts for so many callers, at most as many as there are cities.

    Raises:
        ScenarioError: espeak-ng is missing.
    """
    cities = CITIES[:count]
    lines = {city: Line(f"what's the weather in {city}", _VOICE) for city in cities}
    spoken = speak_all(list(lines.values()), ESPEAK)
    degrees = range(_COLDEST, _COLDEST + len(cities))
    in_words = [spoken_words(str(one))[0] for one in degrees]
    return [
        Part(
            city,
            degrees[number],
            _SKIES[number % len(_SKIES)],
            spoken[lines[city]].samples,
            frozenset(cities) - {city},
            frozenset(in_words) - {in_words[number]},
        )
        for number, city in enumerate(cities)
    ]
