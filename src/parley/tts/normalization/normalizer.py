"""Written text to spoken text, in the languages for which there is a grammar, with both aligned by words."""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TypeAlias

from parley.tts.text import plain_text, split_text

_WORD = re.compile(r"\S+")
_NOT_LETTERS = re.compile(r"\W+")
# A figure is said as a word of its own, a sign as a short one.
_LETTERS_OF_FIGURE = 5
_LETTERS_OF_SIGN = 3

_CHARACTERS_AT_ONCE = 250
_FIGURES_AT_ONCE = 32
"""Figures and signs of a part: each takes the grammars milliseconds."""
_PLAIN_MARKS = frozenset(".,;:!?'\"")

Grammar: TypeAlias = Callable[[str], str]
"""Writes out figures, signs and abbreviations."""
# What a model is to do rather than to say; the words of other brackets are said.
_TAG = re.compile(
    r"\[(?:clear throat|clears throat|sigh|sighs|shush|cough|coughs|groan|groans|sniff|sniffs|gasp|gasps|"
    r"chuckle|chuckles|laugh|laughs|laughter)\]",
    re.IGNORECASE,
)
# Signs of other fonts that mean the same.
_SAME = {ord(sign): "-" for sign in "\u2212\ufe63\uff0d"}
# Letters and plain punctuation, with no full stop but at the end: nothing to write out.
_PLAIN = re.compile(r"(?:[^\W\d_]|[\s,;:!?'\"()\-\u2010-\u2015\u2018-\u201d\u2026])*(?:\.+\s*)?")
_ROMAN = re.compile(r"\b[IVX]{2,}\b")
# Some grammars leave one.
_SPACE_BEFORE_MARK = re.compile(r"(?<!\s)\s+(?=[.,;:!?](?:\s|$))")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WrittenWord:
    """A word of the written text, as separated by white space."""

    start: int
    end: int
    """Half-open span of characters in the written text."""
    spoken: str
    """Its words as they are spoken; may be several, or none."""


def parts_of(text: str) -> Iterator[str]:
    """Cut a text into what is normalised at once, so that other texts wait for little: short, of few figures.

    A word is cut only where it alone has too many. The concatenated parts are the text.
    """
    for part in split_text(text, _CHARACTERS_AT_ONCE):
        begin = space = figures = 0
        for index, char in enumerate(part):
            figures += _is_figure(char)
            if figures > _FIGURES_AT_ONCE:
                end = space if space > begin else index
                yield part[begin:end]
                begin, figures = end, sum(map(_is_figure, part[end : index + 1]))
            if char.isspace():
                space = index
        yield part[begin:]


def _is_figure(char: str) -> bool:
    return not (char.isalpha() or char.isspace() or char in _PLAIN_MARKS)


def align(written: str, spoken: str) -> tuple[WrittenWord, ...]:
    """Assign every spoken word to a written one, in order.

    Words that are the same in both texts belong together. Between them, the spoken words are
    shared out by the estimated length of the written ones.
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
    """``count`` in proportion to ``lengths``, in order."""
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


@dataclass(frozen=True)
class SpokenText:
    """A text as it is spoken; may be empty."""

    text: str
    words: tuple[WrittenWord, ...]
    """All words of the written text, in order."""


def join_parts(parts: Sequence[tuple[str, SpokenText]]) -> SpokenText:
    """A whole text, from its parts and how they are spoken."""
    words: list[WrittenWord] = []
    offset = 0
    for written, spoken in parts:
        words += [WrittenWord(word.start + offset, word.end + offset, word.spoken) for word in spoken.words]
        offset += len(written)
    return SpokenText(" ".join(spoken.text for _, spoken in parts if spoken.text), tuple(words))


class TextNormalizer:
    """See the package.

    Args:
        grammars: by language ("en"); text of other languages passes unchanged.
        tags: whether the voice supports tags such as ``[laugh]``; else they are left out.
    """

    def __init__(self, grammars: Mapping[str, Grammar], *, tags: bool) -> None:
        self._grammars = dict(grammars)
        self._tags = tags

    def normalize(self, text: str, language: str) -> SpokenText:
        """The spoken form of ``text``; takes milliseconds, and must not run in two threads at once."""
        return self._written_out(text, self._grammars.get(language, str))

    def unchanged(self, text: str) -> SpokenText:
        """The text as written, without tags and unspeakable characters; takes no time."""
        return self._written_out(text, str)

    def _written_out(self, text: str, grammar: Grammar) -> SpokenText:
        clean = plain_text(text).translate(_SAME)
        parts: list[str] = []
        end = 0
        for tag in _TAG.finditer(clean):
            parts.append(_apply(grammar, clean[end : tag.start()]))
            if self._tags:
                parts.append(tag[0])
            end = tag.end()
        parts.append(_apply(grammar, clean[end:]))
        # Emoji that no grammar has turned into words are not said.
        said = "".join(char for char in " ".join(parts) if not _is_emoji(char))
        spoken = " ".join(said.split())
        return SpokenText(spoken, align(clean, spoken))


def _is_emoji(character: str) -> bool:
    return character in "\ufe0f\u200d" or unicodedata.category(character) == "So"


def _apply(grammar: Grammar, text: str) -> str:
    has_number = _ROMAN.search(text) or any(unicodedata.category(char) == "No" for char in text)
    if _PLAIN.fullmatch(text) and not has_number:
        return _SPACE_BEFORE_MARK.sub("", text)
    try:
        return _SPACE_BEFORE_MARK.sub("", grammar(text))
    except Exception as error:  # noqa: BLE001 - said as it is written, and logged
        # Without its words, which may be the user's.
        _log.error("a text of %d characters could not be normalised: %s", len(text), type(error).__name__)
        return text
