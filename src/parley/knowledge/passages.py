"""What a search in the documents of an agent returns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

_WORD = re.compile(r"\w+")
_MOST_WORDS = 64
_COMMON = frozenset(
    """a about all also am an and any are as at be been but by can could did do does for from get give go good
    had has have hello help her hey hi him his how i if in into is it its just know let like may me mhm might
    mine my need no not now of off oh ok okay on one or our out please right say see she should so some sorry
    sure take tell than thank thanks that the their them then there these they this those to too uh um up us
    very want was we well were what when where which who whose why will with would
    yeah yes you your yours""".split()
)
"""English words that say nothing about the subject of a question."""


@dataclass(frozen=True)
class Passage:
    """A piece of a document."""

    file: str
    """The path below the folder of agents, or below the folder of an absolute pattern."""
    heading: str
    """Titles of the sections around it, outermost first, joined with " > "; empty: there are none."""
    text: str
    score: float
    """0 to 1, where 1 is the first place in every ranking."""


class KnowledgeSearch(Protocol):
    """Finds passages: the border between sessions and indexes."""

    async def search(self, query: str) -> Sequence[Passage]:
        """The best passages, best first; empty: there are none.

        Raises:
            ParleyError: the search failed.
        """
        ...


def content_words(text: str) -> list[str]:
    """The words of a text that may say what it is about: lower-case, once each, in order, at most 64."""
    words = dict.fromkeys(word for word in _WORD.findall(text.lower()) if word not in _COMMON)
    return [word for word in words if len(word) > 1 or word.isdigit()][-_MOST_WORDS:]
