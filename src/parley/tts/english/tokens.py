"""A normalized text as words, marks, and characters that cannot be read."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from parley.spoken import SMALL, say_number
from parley.tts.normalization.normalizer import WrittenWord

# What Unicode does not take apart into a letter and an accent.
_LATIN = dict(
    zip(
        "ßæœøłđðþıħŋəʻʼ",
        "ss ae oe o l d d th i h ng e ' '".split(),
        strict=True,
    )
)
_CYRILLIC = dict(
    zip(
        "абвгдеёжзийклмнопрстуфхцчшщъыьэюяіїєґ",
        "a b v g d e yo zh z i y k l m n o p r s t u f kh ts ch sh shch | i | e yu ya i yi ye g".split(),
        strict=True,
    )
)
_GREEK = dict(
    zip(
        "αβγδεζηθικλμνξοπρσςτυφχψω",
        "a v g d e z i th i k l m n x o p r s s t i f ch ps o".split(),
        strict=True,
    )
)
_TABLE = {**_LATIN, **_CYRILLIC, **_GREEK}
_SILENT_LETTERS = "|"
_APOSTROPHES = "\u2018\u2019\u02bc\u0060\u00b4\u2032"

_SCALES = ((10**9, "billion"), (10**6, "million"), (10**3, "thousand"), (100, "hundred"))
_LONGEST = 12
"""Figures of a number; longer ones are read figure by figure, as are those that begin with zero."""
PAUSES = frozenset(".,!?;:…—")
SENTENCE_ENDS = frozenset(".!?…")
OPENING, CLOSING = frozenset("“("), frozenset("”)")
_PIECE = re.compile(
    r"(?P<initials>(?:[A-Za-z]\.){2,})"
    r"|(?P<word>'?[A-Za-z]+(?:'[A-Za-z]+)*)"
    r"|(?P<figures>[0-9]+)"
    r"|(?P<dots>\.{2,})"
    r"|(?P<dashes>-{2,})"
    r"|(?P<other>.)",
    re.DOTALL,
)
# "PDFs" is one word; "GitHub", "iPhone", "OpenAI" and "HTMLElement" are two.
_INITIALS_PLURAL = re.compile(r"[A-Z]{2,}s")
_CASE = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|'[a-z]+")
_CONTRACTION = re.compile(r"(?i)'(?:s|t|ll|re|ve|d|m|em|clock|all)(?:'|$)")
_AROUND = ".,!?;:\"'()[]{}“”…—"
# What is written differently and means the same, or nothing.
_SAME = dict(zip("\u2013\u2014\u2015。、«»[]{}„\u201c\u201d|", "———.,“”()()““”,", strict=True))
_SILENT = frozenset(("", "-", "/"))
# Said between letters, and between figures.
_INSIDE = {".": ("dot", "point"), "/": ("slash", "slash"), "-": ("", ""), ":": ("", "")}
_SYMBOLS = {
    "@": "at",
    "&": "and",
    "%": "percent",
    "+": "plus",
    "=": "equals",
    "#": "hash",
    "$": "dollars",
    "€": "euros",
    "£": "pounds",
    "¥": "yen",
    "°": "degrees",
    "_": "underscore",
    "<": "less than",
    ">": "greater than",
    "×": "times",
    "÷": "divided by",
    "©": "copyright",
    "®": "registered",
}
Piece = tuple[Literal["word", "mark", "lost"], str]


def in_latin(text: str) -> str:
    """``text`` with the letters a-z for all that have an equivalent; other characters stay as they are."""
    composed = unicodedata.normalize("NFKC", text.translate(dict.fromkeys(map(ord, _APOSTROPHES), "'")))
    return "".join(map(_letter, composed))


def _letter(character: str) -> str:
    if character < "\u0080":
        return character
    for candidate in (character.lower(), unicodedata.normalize("NFD", character.lower())[0]):
        known = _TABLE.get(candidate) or (candidate if "a" <= candidate <= "z" else None)
        if known is not None:
            known = known.replace(_SILENT_LETTERS, "")
            return known.capitalize() if character.isupper() else known
    return "" if unicodedata.category(character) == "Mn" else character


def in_words(figures: str) -> list[str]:
    """The words for a run of decimal digits."""
    if len(figures) > _LONGEST or (len(figures) > 1 and figures[0] == "0"):
        return [SMALL[int(figure)] for figure in figures]
    return _cardinal(int(figures))


def _cardinal(number: int) -> list[str]:
    for scale, name in _SCALES:
        if number >= scale:
            rest = number % scale
            return [*_cardinal(number // scale), name, *(_cardinal(rest) if rest else [])]
    return say_number(number)


_SAME |= dict.fromkeys("¿¡'\\*~^\u2022\u200b\u00ad\ufeff", "")


@dataclass(frozen=True)
class TextToken:
    """A word, a mark, or a character that cannot be read."""

    kind: Literal["word", "mark", "lost"]
    text: str
    written: WrittenWord
    """The word of the original text that it belongs to."""


def tokens_of(words: tuple[WrittenWord, ...], is_word: Callable[[str], bool]) -> list[TextToken]:
    """Split the words of a whole text.

    ``is_word``: whether a dictionary has a word as it is spelled; such words stay whole.
    """
    tokens = []
    for written in words:
        chunks = written.spoken.split()
        for number, chunk in enumerate(chunks):
            last = written is words[-1] and number == len(chunks) - 1
            pieces = _Chunk(_readable(chunk, is_word), is_word, last=last).pieces()
            tokens += [TextToken(kind, text, written) for kind, text in pieces]
    return tokens


def _readable(chunk: str, is_word: Callable[[str], bool]) -> str:
    """With the letters a-z alone, except in words that the dictionary has with their accents: "résumé"."""
    core = chunk.strip(_AROUND)
    if core.isascii() or not is_word(core.lower()):
        return in_latin(chunk)
    return chunk.replace(core, core.lower())


class _Chunk:
    """The text between two spaces."""

    def __init__(self, text: str, is_word: Callable[[str], bool], *, last: bool) -> None:
        self._text = text
        self._is_word = is_word
        self._last = last

    def pieces(self) -> Iterator[Piece]:
        core = self._text.strip(_AROUND)
        begin = self._text.find(core)
        plain = core.isascii() and core.isalpha()
        if core and not plain and self._is_word(core):  # "Wi-Fi", "rock'n'roll"
            yield from self._parts(self._text[:begin], 0)
            yield "word", core
            yield from self._parts(self._text[begin + len(core) :], begin + len(core))
        else:
            yield from self._parts(self._text, 0)

    def _parts(self, text: str, begin: int) -> Iterator[Piece]:
        for match in _PIECE.finditer(text):
            found, end = match[0], begin + match.end()
            if match["initials"]:
                yield "word", found.replace(".", "").upper()
                if self._last and end == len(self._text):
                    yield "mark", "."
            elif match["word"]:
                yield from (("word", part) for part in self._words(found))
            elif match["figures"]:
                yield from (("word", part) for part in in_words(found))
            elif match["dots"]:
                yield "mark", "…"
            elif match["dashes"]:
                yield "mark", "—"
            else:
                yield from self._other(found, begin + match.start())

    def _words(self, word: str) -> list[str]:
        if word[0] == "'" and not self._is_word(word.lower()):
            word = word[1:]
        if self._is_word(word) or _CONTRACTION.search(word):
            return [word]
        parts: list[str] = []
        for part in word.split("'"):  # "O'Brien"
            cased = part[1:].islower() or part.isupper() or part.islower() or _INITIALS_PLURAL.fullmatch(part)
            whole = cased or self._is_word(part) or self._is_word(part.lower())
            parts += [part] if whole else _CASE.findall(part)
        return [part for part in parts if part]

    def _other(self, character: str, at: int) -> Iterator[Piece]:
        before, after = self._text[at - 1 : at], self._text[at + 1 : at + 2]
        character = _SAME.get(character, character)
        if before.isalnum() and after.isalnum() and character in _INSIDE:
            between_figures = before.isdigit() and after.isdigit()
            yield from (("word", word) for word in _INSIDE[character][between_figures].split())
        elif character == "-" and self._text == "-":
            yield "mark", "—"
        elif character == '"':
            yield "mark", "“" if after.isalnum() or not before else "”"
        elif character in PAUSES or character in OPENING or character in CLOSING:
            yield "mark", character
        elif character in _SYMBOLS:
            yield from (("word", word) for word in _SYMBOLS[character].split())
        elif character not in _SILENT and character.isprintable():
            yield "lost", character
