"""Sentences as they are written in scenarios: words, and in brackets what comes between them.

``set a timer for [700] ten minutes``     700 ms of silence
``i need [um] [500] a timer``             a filler, then 500 ms of silence
``what's the weather [cough] in paris``   a sound
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from simulate.errors import ScenarioError

FILLERS = frozenset(("um", "uh", "er", "hm", "well", "so"))
LONGEST_PAUSE_MS = 10_000
_TOKEN = re.compile(r"\[([^\[\]]*)\]|([^\s\[\]]+)")


@dataclass(frozen=True)
class Pause:
    """Silence inside a sentence."""

    ms: int


@dataclass(frozen=True)
class Filler:
    """A word that only fills a pause; it is spoken by itself."""

    word: str


@dataclass(frozen=True)
class InnerSound:
    """A sound of :mod:`simulate.sounds`."""

    name: str


Insert = Pause | Filler | InnerSound


@dataclass(frozen=True)
class Sentence:
    """Words, and what is put between them."""

    words: tuple[str, ...]
    inserts: tuple[tuple[int, Insert], ...] = ()
    """Each with the index of the word that it comes before; the number of words: at the end."""

    @property
    def text(self) -> str:
        """What is synthesised as one sentence."""
        return " ".join(self.words)

    @property
    def pauses(self) -> tuple[int, ...]:
        """Lengths of the silences between the sentence's first sound and its last (milliseconds)."""
        return tuple(insert.ms for _, insert in self.inserts if isinstance(insert, Pause))


def parse_sentence(written: str, sounds: frozenset[str]) -> Sentence:
    """Read a sentence.

    Args:
        written: as above.
        sounds: names of the sounds there are.

    Raises:
        ScenarioError: no words, or something in brackets that is none of the above.
    """
    words: list[str] = []
    inserts: list[tuple[int, Insert]] = []
    if _TOKEN.sub("", written).strip():
        raise ScenarioError(f"{written!r}: a bracket is not closed")
    for match in _TOKEN.finditer(written):
        inner, word = match.groups()
        if word is not None:
            words.append(word)
        else:
            inserts.append((len(words), _insert(inner.strip(), written, sounds)))
    if not words:
        raise ScenarioError(f"{written!r}: no words")
    if inserts and isinstance(inserts[0][1], Pause) and inserts[0][0] == 0:
        raise ScenarioError(f"{written!r}: begins with a pause; say when it begins with `at` instead")
    if inserts and isinstance(inserts[-1][1], Pause) and inserts[-1][0] == len(words):
        raise ScenarioError(f"{written!r}: ends with a pause, which nobody can hear")
    return Sentence(tuple(words), tuple(inserts))


def _insert(inner: str, written: str, sounds: frozenset[str]) -> Insert:
    if inner.isdecimal():
        if not 0 < int(inner) <= LONGEST_PAUSE_MS:
            raise ScenarioError(f"{written!r}: a pause has 1 to {LONGEST_PAUSE_MS} ms, not {inner}")
        return Pause(int(inner))
    if inner in FILLERS:
        return Filler(inner)
    if inner in sounds:
        return InnerSound(inner)
    known = ", ".join(sorted(FILLERS | sounds))
    raise ScenarioError(f"{written!r}: [{inner}] is neither milliseconds nor one of {known}")
