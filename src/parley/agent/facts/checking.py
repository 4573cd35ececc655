"""What of a text that is to be spoken is in no source of a session."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from parley.agent.facts.extraction import facts_of, keys_of, pieces_of
from parley.agent.facts.fact import SOFT, Fact
from parley.agent.facts.words import HARD_UNITS
from parley.chat import ChatMessage
from parley.tools.base import read_value

_MOST_KEYS = 40_000
"""Of what was said and returned: the oldest texts are forgotten that the present prompt does not have."""
_MOST_WAITING = 500_000
"""Characters of texts that no check has read: prompts have fewer, and the oldest are dropped."""
_LEAST_COUNTED = 100
"""Of the characters of a text that waits."""
_MOST_COUNTED = 10
_LONGEST_SHORT = 3
"""Letters of names of JSON that are units only behind another word: "min" may be a minimum."""


class SessionFacts:
    """The sources of one session.

    What the user has said, what tools have returned, and texts of the client stay known when the history
    forgets them. Instructions and knowledge count for the answers that have them. What the language model has
    written itself, also a summary, is no source.

    Args:
        language: primary language ("en"); in others only digits and addresses are checked.
    """

    def __init__(self, language: str) -> None:
        self._language = language
        self._texts: OrderedDict[str, frozenset[str]] = OrderedDict()
        self._known: Counter[str] = Counter()
        self._count = 0
        self._waiting: dict[str, int] = {}  # oldest first, with what each counts
        self._waiting_size = 0
        self._fixed: dict[str, frozenset[str]] = {}

    def add(self, text: str) -> None:
        """A text of the client, which is read when an answer is checked."""
        self._take_out(text)
        self._waiting[text] = max(len(text), _LEAST_COUNTED)
        self._waiting_size += self._waiting[text]
        while self._waiting_size > _MOST_WAITING and len(self._waiting) > 1:
            self._take_out(next(iter(self._waiting)))

    def _take_out(self, text: str) -> None:
        self._waiting_size -= self._waiting.pop(text, 0)

    async def _keep(self, text: str) -> None:
        if text not in self._texts:
            keys = await self._read(text)
            if text not in self._texts:  # else another answer has read it meanwhile
                self._texts[text] = keys
                self._known.update(keys)
                self._count += len(keys)
        self._texts.move_to_end(text)

    def _forget_oldest(self, needed: Collection[str]) -> None:
        while self._count > _MOST_KEYS and (text := next(iter(self._texts))) not in needed:
            old = self._texts.pop(text)
            self._count -= len(old)
            for key in old:
                self._known[key] -= 1
                if not self._known[key]:
                    del self._known[key]

    async def check(
        self, instructions: str, messages: Iterable[ChatMessage], sources: Sequence[str] = (), draft: str = ""
    ) -> KnownFacts:
        """Read what is new, for one request of the language model.

        Args:
            instructions: the system prompt, without a summary.
            messages: of the conversation; of those of the model only texts of the client count.
            sources: further texts, such as what was found in documents.
            draft: what the user may have said; it is not kept.
        """
        while (text := next(iter(self._waiting), None)) is not None:
            await self._keep(text)
            self._take_out(text)  # only now: a check may be cancelled
        needed = set()
        for message in messages:
            is_own = message.role == "assistant" and message.content not in self._texts
            if not is_own and message.content != draft:
                needed.add(message.content)
                await self._keep(message.content)
        self._forget_oldest(needed)
        fixed: dict[str, frozenset[str]] = {}
        for text in (instructions, *sources, draft):
            fixed[text] = self._fixed.get(text) or await self._read(text)
        self._fixed = fixed
        return KnownFacts(self._language, self._known, tuple(fixed.values()))

    async def _read(self, text: str) -> frozenset[str]:
        """The keys of a source; other tasks run between its pieces."""
        keys: set[str] = set()
        for piece in pieces_of("\n".join(_leaves(read_value(text), keys))):
            keys |= keys_of(piece, self._language)
            await asyncio.sleep(0)
        return frozenset(keys)


class KnownFacts:
    """What one answer may speak of."""

    def __init__(self, language: str, known: Counter[str], fixed: Sequence[frozenset[str]]) -> None:
        self._language = language
        self._known: Mapping[str, int] = known
        self._fixed = fixed

    def find_unknown(self, text: str, *, begins: bool) -> Fact | None:
        """The first figure or name that no source has; ``begins``: whether the text begins a sentence."""
        facts = facts_of(text, self._language, begins=begins)
        return next((one for one in facts if not self._knows(one)), None)

    def _knows(self, one: Fact) -> bool:
        return any(key in self._known or any(key in keys for keys in self._fixed) for key in one.needs)


def lines_of(text: str) -> Iterator[str]:
    """The texts and numbers of a source that may be JSON."""
    return _leaves(read_value(text), set())


def _leaves(value: Any, counts: set[str]) -> Iterator[str]:
    """The texts and numbers of a JSON value, each a line; ``counts`` gets how long its short lists are."""
    if isinstance(value, dict):
        for name, one in value.items():
            words = str(name).replace("_", " ")
            yield words
            unit = words.rpartition(" ")[2].lower()
            is_unit = unit in HARD_UNITS and (" " in words or len(unit) > _LONGEST_SHORT)
            if is_unit and isinstance(one, int | float):
                yield f"{one} {unit}"
            else:
                yield from _leaves(one, counts)
    elif isinstance(value, list):
        if 1 < len(value) <= _MOST_COUNTED:
            counts.add(f"{len(value)}/{SOFT}")
        for one in value:
            yield from _leaves(one, counts)
    elif value is not None:
        yield str(value)
