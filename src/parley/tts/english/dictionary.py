"""Pronunciations of words, as ``misaki`` publishes them, and the choice between those of one spelling."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from parley.errors import ModelLoadingError

Entry: TypeAlias = str | Mapping[str, str | None]
"""The sounds of a word, or those of each of its parts of speech; ``DEFAULT`` is always there."""

GOLD, SILVER = "us_gold.json", "us_silver.json"
FILES = (GOLD, SILVER)

# What the dictionaries lack and assistants often say.
_OWN: Mapping[str, Entry] = {
    "résumé": "ɹˈɛzəmˌA",
    "JSON": "ʤˈAsən",
    "SQL": "sˈikwəl",
    "GIF": "ɡˈɪf",
    "GUI": "ɡˈui",
    "LLaMA": "lˈɑmə",
    "PhD": "pˌiˌAʧdˈi",
    "WiFi": "wˈIfˌI",
    "iOS": "ˌIˌOˈɛs",
    "vs": "vˈɜɹsəs",
    "Qwen": "kwˈɛn",
    "Mc": "mək",
    "Kubernetes": "kˌubəɹnˈɛɾiz",
    "Nguyen": "nwˈɪn",
    "Niamh": "nˈiv",
    "Saoirse": "sˈɜɹʃə",
    "Siobhan": "ʃəvˈɔn",
    "bass": {"DEFAULT": "bˈAs", "FISH": "bˈæs"},
    "lead": {"DEFAULT": "lˈid", "METAL": "lˈɛd"},
}

_DETERMINERS = frozenset(
    "a an the this these those my your his her its our their some any no each every another whose".split()
)
_PREPOSITIONS = frozenset("of in on for with at from by about under per without into during through".split())
_OBJECTS = frozenset("me it them us him you everything all".split())
_BE = frozenset("is are was were be been being am i'm you're he's she's it's we're they're that's".split())
_HAVE = frozenset(
    "have has had having i've you've we've they've i'd he'd she'd haven't hasn't hadn't".split()
)
_BEFORE_VERB = frozenset(
    "to can could will would shall should may might must do does did don't doesn't didn't can't couldn't "
    "won't wouldn't shouldn't i you we they he she it who please let's let not cannot i'll you'll we'll "
    "they'll he'll she'll it'll i'd you'd we'd they'd let's help helps".split()
)
_SKIPPED = frozenset(
    "always never also just really only often usually sometimes automatically quickly easily still even "
    "immediately simply manually currently probably then".split()
)
_PAST = frozenset("yesterday ago last already once earlier before".split())
_ADJECTIVE = re.compile(
    r".{2,}(?:ive|al|ic|ful|ous|able|ible|less|ary)|new|old|good|great|first|last|next|own|more"
)
_PARTICLES = frozenset("up down out off".split())
_FISH = re.compile(r"fish\w*|lake|striped|sea|caught|catch|largemouth")
_METAL = frozenset("pipe pipes poisoning paint acid".split())
# Default readings that are rarer than another one of the dictionary's.
_USUAL = {"content": "NOUN", "contents": "NOUN", "affect": "VERB", "affects": "VERB"}
# What the guess of a noun would make wrong: "an invalid date", "a closer look", "the upset customer".
_NEVER = {
    "invalid": "NOUN",
    "closer": "NOUN",
    "upset": "NOUN",
    "learned": "ADJ",
    "lunged": "ADJ",
    "overhead": "NOUN",
}


class Dictionary:
    """Looks words up as they are spelled, in the first of several tables that has them."""

    def __init__(self, tables: Sequence[Mapping[str, Entry]]) -> None:
        self._tables = (_OWN, *tables)

    def get(self, word: str) -> Entry | None:
        """The entry of ``word``, in exactly this case."""
        for table in self._tables:
            entry = table.get(word)
            if entry is not None:
                return entry
        return None

    def is_common(self, word: str) -> bool:
        """Whether it is in the first tables, which have no rare words."""
        return any(word in table for table in self._tables[:2])


def load_dictionary(folder: Path) -> Dictionary:
    """Read both of misaki's dictionaries; ModelLoadingError if a file cannot be read."""
    return Dictionary([_read(folder / name) for name in FILES])


def _read(path: Path) -> dict[str, Entry]:
    try:
        with path.open(encoding="utf-8") as file:
            table = json.load(file)
    except (OSError, ValueError) as error:
        raise ModelLoadingError(f"the dictionary {path} cannot be read: {error}") from error
    if not isinstance(table, dict):
        raise ModelLoadingError(f"the dictionary {path} is not a table")
    return table


@dataclass(frozen=True)
class Place:
    """Where a word stands."""

    words: Sequence[str]
    """All of the text, in small letters."""
    index: int
    pauses: frozenset[int]
    """Indices of words that a pause follows."""

    @property
    def last(self) -> bool:
        """Whether a pause or the end follows."""
        return self.index in self.pauses or self.index + 1 == len(self.words)

    @property
    def first(self) -> bool:
        """Whether it begins the text, or follows a pause."""
        return self.index == 0 or self.index - 1 in self.pauses

    @property
    def before(self) -> str:
        """The word before it, without adverbs between; empty after a pause."""
        index = self.index
        while index > 0 and index - 1 not in self.pauses:
            index -= 1
            if self.words[index] not in _SKIPPED:
                return self.words[index]
        return ""

    @property
    def after(self) -> str:
        """The word after it; empty before a pause."""
        return "" if self.last else self.words[self.index + 1]


def choose(entry: Entry, place: Place) -> str | None:
    """The sounds of a word in its place; None: it is to be spelled."""
    if isinstance(entry, str):
        return entry
    word = place.words[place.index]
    for tag in (*_special(word, place), *_parts_of_speech(word, place, entry)):
        if tag in entry and _NEVER.get(word) != tag:
            return entry[tag]
    return entry[_USUAL[word]] if word in _USUAL else entry["DEFAULT"]


def _special(word: str, place: Place) -> list[str]:
    if place.last and word not in ("been", "her", "his", "had"):
        return ["None"]
    if word == "that":
        return ["DT"] if place.first or place.before in _PREPOSITIONS else []
    if word == "used":
        return ["VBD"] if _accustomed(place) else []
    if word == "bass":
        return ["FISH"] if any(_FISH.fullmatch(other) for other in place.words) else []
    if word == "lead":
        return ["METAL"] if place.after in _METAL else []
    return []


def _accustomed(place: Place) -> bool:
    """Whether it is the word of "I used to live here" and "I am used to it", not of "it is used to store"."""
    if place.after != "to":
        return False
    if place.before not in _BE:
        return True
    following = place.words[place.index + 2 : place.index + 3]
    return any(next_ in _DETERMINERS | _OBJECTS or next_.endswith("ing") for next_ in following)


def _parts_of_speech(word: str, place: Place, entry: Mapping[str, str | None]) -> list[str]:
    before, after = place.before, place.after
    if word in ("read", "reread"):
        return _tenses(place)
    if before in _HAVE | _BE:
        return ["VBN", "ADJ"]
    object_follows = after in _DETERMINERS | _OBJECTS and before not in _DETERMINERS | _PREPOSITIONS
    if before in _BEFORE_VERB or object_follows or (word in ("wind", "wound") and after in _PARTICLES):
        return ["VERB", "VBD"]
    if before in _DETERMINERS and "ADJ" in entry and _is_noun_next(after):
        return ["ADJ"]
    if before in _DETERMINERS | _PREPOSITIONS or _ADJECTIVE.fullmatch(before):
        return ["NOUN"]
    return []


def _tenses(place: Place) -> list[str]:
    before = place.before
    if before in _HAVE | _BE:
        return ["VBN"]
    if before in ("he", "she", "it") or (
        before in ("i", "you", "we", "they") and not _PAST.isdisjoint(place.words)
    ):
        return ["VBD"]
    return []


def _is_noun_next(after: str) -> bool:
    return (
        bool(after) and after not in _PREPOSITIONS | _BE | _DETERMINERS and after not in ("and", "or", "to")
    )
