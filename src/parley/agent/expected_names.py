"""Names that the user may say, from the texts of a session: the recogniser favours them.

A name is a word with a capital that its place does not explain, and that is nowhere in the texts in lower
case. Of English texts only: other languages write other words with capitals too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from parley.agent.facts.checking import lines_of
from parley.agent.facts.extraction import COMMON_ENDINGS
from parley.agent.facts.words import COMMON_CAPITALS, COMMON_FIRST, FUNCTION_WORDS, MONTHS, WEEKDAYS
from parley.protocol import Start, Tool

MOST_NAMES = 50
_MOST_READ = 20_000
"""Characters."""
_SHORTEST, _LONGEST = 3, 24
_TITLE = 6
"""Words that a title has at most; what is longer is read as a sentence."""
_WORD = re.compile(r"[A-Za-z]+(?:['\u2019-][A-Za-z]+)*")
_WITHIN = re.compile(r"[\w,;)'\"] ")
"""Before a word that begins no sentence."""
_COMMON = COMMON_CAPITALS | COMMON_FIRST | FUNCTION_WORDS | MONTHS.keys() | WEEKDAYS.keys()


class ExpectedNames:
    """The names of one session; without ``enabled`` there are none."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._read: tuple[str, Sequence[Tool]] | None = None
        self._names: Sequence[str] = ()

    def find(self, start: Start, prompt: str, tools: Sequence[Tool], results: Iterable[str]) -> Sequence[str]:
        """The names in results of tools, and in the other texts, which are read when they have changed."""
        if not self._enabled:
            return ()
        if (prompt, tools) != self._read:
            self._read, self._names = (prompt, tools), names_of(start, prompt, tools)
        newest = names_in((), (line for result in results for line in lines_of(result)))
        return (*newest, *self._names)


def names_in(sentences: Iterable[str], titles: Iterable[str]) -> list[str]:
    """The names of texts, each once: at most :data:`MOST_NAMES`, the first ones.

    Args:
        sentences: texts in which the first word of a sentence has a capital.
        titles: texts that may be names themselves.
    """
    names: dict[str, None] = {}
    ordinary: set[str] = set(_COMMON)
    left = _MOST_READ
    for text, is_title in chain(((one, True) for one in titles), ((one, False) for one in sentences)):
        words = list(_WORD.finditer(text[:left]))
        for word in words:
            name = word[0].replace("\u2019", "'").removesuffix("'s")
            if name.islower():
                ordinary.add(name)
            elif name[0].isupper() and not name.isupper() and _SHORTEST <= len(name) <= _LONGEST:
                is_within = _WITHIN.fullmatch(text[max(word.start() - 2, 0) : word.start()])
                if is_within or (is_title and len(words) <= _TITLE and not name.endswith(COMMON_ENDINGS)):
                    names.setdefault(name)
        left = max(left - len(text), 0)
    return [name for name in names if name.lower() not in ordinary][:MOST_NAMES]


def names_of(start: Start, prompt: str, tools: Sequence[Tool]) -> list[str]:
    """The names in what a session begins with."""
    steps = (step.instructions for step in start.steps)
    values = (value for one in start.collect for value in one.values)
    transfers = (target.name for target in start.ending.transfers)
    return names_in(
        (prompt, start.greeting or "", *steps, *(tool.description for tool in tools)),
        (*values, *transfers, *(value for tool in tools for value in _choices(tool.parameters))),
    )


def _choices(schema: Any) -> Iterator[str]:
    """The values that a JSON schema names."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield from (value for value in part.get("enum", ()) if isinstance(value, str))
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
