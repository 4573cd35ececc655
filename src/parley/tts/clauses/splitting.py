"""Cuts a pronounced text where a speaker could pause."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from parley.tts.english.pronouncer import PronouncedWord
from parley.tts.english.tokens import PAUSES, SENTENCE_ENDS

_CONJUNCTIONS = frozenset(
    "and but or so because that which who when while where if than then though although unless until".split()
)
_PREPOSITIONS = frozenset(
    "in on at for with from about into after before between through without by to as during over".split()
)


@dataclass(frozen=True)
class ClauseLimits:
    """Lengths of clauses."""

    words: tuple[tuple[int, int], ...] = ((4, 7), (6, 12), (8, 20))
    """Fewest and most words of the first clause, the second, and all later ones. Each is made while the
    one before it is played.
    """
    rest: int = 3
    """A clause with fewer words is not cut off from the end of the text."""
    phonemes: int = 300
    """Characters of one clause at most, spaces and marks included."""
    by_sentence: bool = False
    """Whether no clause has words of two sentences."""


def split_clauses(
    words: Sequence[PronouncedWord], limits: ClauseLimits | None = None, *, before: int = 0
) -> list[list[PronouncedWord]]:
    """Cut after sentences, else at commas, else before conjunctions, else before prepositions.

    The first clause ends at the first such place that is strong enough, so that it is short; the
    others at the last. Where there is no such place, it is cut between two words.

    ``before``: number of clauses of the text before these words.
    """
    limits = limits or ClauseLimits()
    pieces = [piece for word in words for piece in _pieces(word, limits.phonemes)]
    clauses: list[list[PronouncedWord]] = []
    for sentence in _sentences(pieces) if limits.by_sentence else [pieces]:
        left = sentence
        while left:
            least, most = limits.words[min(before + len(clauses), len(limits.words) - 1)]
            fitting = _fitting(left, limits.phonemes)
            end = len(left)
            if fitting < end or end >= most + limits.rest:
                end = _cut(left, min(least, fitting), min(most, fitting), first=before + len(clauses) == 0)
            clauses.append(left[:end])
            left = left[end:]
    return clauses


def _sentences(words: Sequence[PronouncedWord]) -> list[list[PronouncedWord]]:
    ends = [
        place
        for place in range(1, len(words))
        # "2.0" is said with a full stop, but is no end.
        if not SENTENCE_ENDS.isdisjoint(words[place - 1].after)
        and words[place].start > words[place - 1].start
    ]
    return [list(words[begin:end]) for begin, end in zip([0, *ends], [*ends, len(words)], strict=True)]


def _cut(words: Sequence[PronouncedWord], least: int, most: int, *, first: bool) -> int:
    places = range(least, min(most, len(words) - 1) + 1)
    best = max((_strength(words, place) for place in places), default=0)
    if best == 0:
        return most
    strong = [place for place in places if _strength(words, place) == best]
    return strong[0] if first else strong[-1]


def _strength(words: Sequence[PronouncedWord], place: int) -> int:
    """How well the text can be cut in front of the word at ``place``."""
    after = words[place - 1].after
    if not SENTENCE_ENDS.isdisjoint(after):
        return 4
    if not PAUSES.isdisjoint(after):
        return 3
    if words[place].start == words[place - 1].start:
        return 0  # both are said for one written word, such as a number
    text = words[place].text.lower()
    return 2 if text in _CONJUNCTIONS else int(text in _PREPOSITIONS)


def _fitting(words: Sequence[PronouncedWord], phonemes: int) -> int:
    """How many of the words have no more phonemes together; at least one."""
    length = 0
    for count, word in enumerate(words):
        length += len(word.before) + len(word.phonemes) + len(word.after) + 1
        if length > phonemes and count:
            return count
    return len(words)


def _pieces(word: PronouncedWord, most: int) -> list[PronouncedWord]:
    """The word, or parts of one that alone is too long for a clause."""
    size = most // 2
    if len(word.phonemes) <= size:
        return [word]
    return [
        dataclasses.replace(word, phonemes=word.phonemes[begin : begin + size], before="", after="")
        for begin in range(0, len(word.phonemes), size)
    ]
