"""Which spoken words stand for which written ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

_WORD = re.compile(r"\S+")
_NOT_LETTERS = re.compile(r"\W+")
# A figure is said as a word of its own, a sign as a short one.
_LETTERS_OF_FIGURE = 5
_LETTERS_OF_SIGN = 3


@dataclass(frozen=True)
class WrittenWord:
    """A word of the written text, as separated by white space."""

    start: int
    end: int
    """Half-open span of characters in the written text."""
    spoken: str
    """What is said for it; may be several words, or nothing."""


def align(written: str, spoken: str) -> tuple[WrittenWord, ...]:
    """Give every spoken word to a written one, in order.

    Words that are the same in both texts belong together. Between them, the spoken words are
    shared out by how long the written ones look as if they took to say.
    """
    spans = [match.span() for match in _WORD.finditer(written)]
    said = spoken.split()
    keys = [_key(written[start:end]) for start, end in spans]
    counts = [0] * len(spans)
    same = SequenceMatcher(None, keys, [_key(word) for word in said], autojunk=False)
    for kind, first, end, first_said, end_said in same.get_opcodes():
        if kind == "equal":
            begin, shares = first, [1] * (end - first)
        elif first == end:  # said between two words: with the one before it
            begin, shares = max(0, first - 1), [end_said - first_said]
        else:
            looks = [_length(written[start:stop]) for start, stop in spans[first:end]]
            begin, shares = first, _share(end_said - first_said, looks)
        # Without a written word, there is none to give anything to.
        for index, share in zip(range(begin, len(counts)), shares, strict=False):
            counts[index] += share
    words, position = [], 0
    for (start, stop), count in zip(spans, counts, strict=True):
        words.append(WrittenWord(start, stop, " ".join(said[position : position + count])))
        position += count
    return tuple(words)


def _share(count: int, lengths: Sequence[int]) -> list[int]:
    """``count`` things in proportion to ``lengths``, in order."""
    total, before, given = sum(lengths), 0, 0
    shares = []
    for length in lengths:
        before += length
        until = round(count * before / total)
        shares.append(until - given)
        given = until
    return shares


def _length(word: str) -> int:
    figures = sum(character.isdigit() for character in word)
    letters = sum(character.isalpha() for character in word)
    return letters + figures * _LETTERS_OF_FIGURE + (len(word) - letters - figures) * _LETTERS_OF_SIGN


def _key(word: str) -> str:
    """A word without the punctuation around it, in small letters; a word of signs alone stays."""
    return _NOT_LETTERS.sub("", word).lower() or word
