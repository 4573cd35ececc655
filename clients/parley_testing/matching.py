"""Texts as words that can be compared: without case, punctuation, and the many ways to write a number.

"It's at 7:30 p.m." and "it's at seven thirty pm" are the same words. Numbers that follow each other are one
(``730``), so that it does not matter how a year, a time or a telephone number is grouped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from parley.protocol import ToolRequest, ToolRun
from parley.spoken import ORDINALS, SMALL, TENS, say_number
from parley_testing.scenario import Alternatives, ExpectedCall

_SCALES = {"hundred": 100, "thousand": 1_000, "million": 1_000_000, "billion": 1_000_000_000}
_VALUES = {word: number for number, word in enumerate(SMALL)} | TENS
_CARDINALS = {ordinal: word for ordinal, number in ORDINALS.items() for word in say_number(number)} | {
    f"{scale}th": scale for scale in _SCALES
}
_REWRITTEN = (
    (re.compile(r"[\u2018\u2019\u02bc`]"), "'"),
    (re.compile(r"(?<=\d),(?=\d{3}\b)"), ""),
    (re.compile(r"\b([ap])\.\s?m\b\.?"), r"\1m"),
    (re.compile(r"\$\s?(\d+(?:\.\d+)?)"), r"\1 dollars"),
    (re.compile(r"%"), " percent "),
    (re.compile(r"°\s?c\b"), " degrees celsius "),
    (re.compile(r"°\s?f\b"), " degrees fahrenheit "),
    (re.compile(r"°"), " degrees "),
    (re.compile(r"&"), " and "),
    (re.compile(r"(\d):00\b"), r"\1"),
    (re.compile(r"(\d)(?:st|nd|rd)\b"), r"\1th"),  # of all ordinals, as of the words
    (re.compile(r"\bo'clock\b"), " "),
    (re.compile(r"\b(to)-(day|morrow|night)\b|\b(good)-(bye)\b"), r"\1\2\3\4"),
    (re.compile(r"\b(col|fav|neighb)our"), r"\1or"),
)
_TOKEN = re.compile(r"\d+(?:\.\d+)?(?:th)?(?![^\W\d_])|\d+(?:\.\d+)?|[^\W\d_]+(?:'[^\W\d_]+)*")
_JOINS = re.compile(r"\s+|[-\u2010-\u2013:]")
_LISTS = re.compile(r",\s*")
_HYPHEN = re.compile(r"(?<=[^\W\d_])-(?=[^\W\d_])")  # recognisers write "half-past" and "half past"
_LONGEST_WHOLE = 2
_FILLERS = frozenset("um uh er erm ah hm hmm mm mhm".split())
_TWENTY, _HUNDRED = 20, 100


@dataclass(frozen=True)
class _Token:
    text: str
    gap: str
    """What stands before it."""

    @property
    def is_number(self) -> bool:
        return self.text.isdecimal()


def plain_words(text: str) -> list[str]:
    """The words of a text; numbers in figures."""
    return [token.text for token in _joined(_in_figures(_tokens(text)))]


def counted_words(text: str) -> list[str]:
    """The same to count errors in: without fillers, and of long numbers every figure is a word."""
    return [
        part
        for word in plain_words(text)
        if word not in _FILLERS
        for part in (word if word.isdecimal() and len(word) > _LONGEST_WHOLE else [word])
    ]


def pattern_of(phrase: str) -> re.Pattern[str] | None:
    """The regular expression that is written as ``/…/``; None: the phrase is words.

    Raises:
        re.error: it is none.
    """
    is_pattern = len(phrase) > 2 and phrase.startswith("/") and phrase.endswith("/")
    return re.compile(phrase[1:-1], re.IGNORECASE) if is_pattern else None


def mentions(text: str, phrase: str) -> bool:
    """Whether the words of ``phrase`` stand in ``text``, side by side; ``scatter*``: also longer ones.

    A phrase ``/…/`` is a regular expression that is searched in the text as it is written.
    """
    if (pattern := pattern_of(phrase)) is not None:
        return pattern.search(text) is not None
    given, wanted = plain_words(text), plain_words(phrase)
    *whole, last = wanted
    open_end = phrase.rstrip().endswith("*")
    for at in range(len(given) - len(wanted) + 1):
        final = given[at + len(whole)]
        if given[at : at + len(whole)] == whole and (final.startswith(last) if open_end else final == last):
            return True
    return False


def _tokens(text: str) -> list[_Token]:
    text = text.casefold()
    for pattern, replacement in _REWRITTEN:
        text = pattern.sub(replacement, text)
    tokens, done = [], 0
    for match in _TOKEN.finditer(text):
        tokens.append(_Token(match[0], text[done : match.start()]))
        done = match.end()
    return tokens


def _in_figures(tokens: list[_Token]) -> list[_Token]:
    """With figures for the words of numbers: "one hundred and five" is 105, "fourteenth" 14th."""
    found: list[_Token] = []
    at = 0
    while at < len(tokens):
        length, value = _number_at(tokens, at)
        if length:
            found.append(_Token(value, tokens[at].gap))
        else:
            found.append(tokens[at])
        at += max(1, length)
    return found


def _number_at(tokens: list[_Token], at: int) -> tuple[int, str]:
    """How many tokens the number at a place has, 0 if there is none, and its figures."""
    number = _Number()
    end = at
    while end < len(tokens) and (end == at or _JOINS.fullmatch(tokens[end].gap)):
        word, after = tokens[end].text, tokens[end + 1].text if end + 1 < len(tokens) else ""
        linked = (word == "a" and end == at and after in _SCALES) or (
            word == "and" and end > at and tokens[end - 1].text in _SCALES and _VALUES.get(after, 0) > 0
        )
        if linked and word == "a":
            number.add_word("one")
        elif not linked and not number.add_word(_CARDINALS.get(word, word)):
            break
        end += 1
        if word in _CARDINALS:
            return end - at, f"{number.value}th"
    return end - at, str(number.value)


class _Number:
    """A number, word by word."""

    def __init__(self) -> None:
        self._total = 0  # of thousands and more
        self._group = 0
        self._least = 1_000  # what is added to the group has to be less
        self._empty = True

    @property
    def value(self) -> int:
        return self._total + self._group

    def add_word(self, word: str) -> bool:
        """Add a word, if it belongs to the number; returns whether it does."""
        scale, value = _SCALES.get(word), _VALUES.get(word)
        if scale is not None and self._group:
            if scale == _HUNDRED:
                self._group, self._least = self._group * scale, scale
            else:
                self._total, self._group, self._least = self._total + self._group * scale, 0, 1_000
            return True
        if value is None or value >= self._least or (value == 0 and not self._empty):
            return False
        # After "twenty" a unit can follow, after a unit or a teen nothing.
        self._group, self._least = self._group + value, 10 if value >= _TWENTY else 0
        self._empty = False
        return True


def _joined(tokens: list[_Token]) -> list[_Token]:
    """With numbers that follow each other as one, and "oh" between them as 0."""
    joined: list[_Token] = []
    for index, token in enumerate(tokens):
        before = joined[-1] if joined else None
        if before is not None and before.is_number:
            following = tokens[index + 1] if index + 1 < len(tokens) else None
            if token.text in ("oh", "o") and following is not None and following.is_number:
                token = _Token("0", token.gap)  # noqa: PLW2901
            single = len(token.text) == 1 and len(tokens[index - 1].text) == 1
            if token.is_number and (_JOINS.fullmatch(token.gap) or (single and _LISTS.fullmatch(token.gap))):
                joined[-1] = _Token(before.text + token.text, before.gap)
                continue
        joined.append(token)
    return joined


def lacking(wanted: tuple[Alternatives, ...], text: str) -> list[str]:
    """Which of the things that have to be in a text are not, whichever of its wordings one has."""
    return [
        " | ".join(phrases) for phrases in wanted if not any(mentions(text, phrase) for phrase in phrases)
    ]


def present(unwanted: tuple[Alternatives, ...], text: str) -> list[str]:
    """Which of the things that must not be in a text are."""
    return [phrase for phrases in unwanted for phrase in phrases if mentions(text, phrase)]


def call_matches(expected: ExpectedCall, request: ToolRequest | ToolRun) -> bool:
    """Whether a call has this name and these arguments; neither case, hyphens nor ``"10"`` for 10 matter."""
    wanted = {name: value for name, value in expected.arguments.items() if value is not None}
    given = {name: value for name, value in request.arguments.items() if value is not None}
    names_match = wanted.keys() <= given.keys() if expected.is_partial else wanted.keys() == given.keys()
    return (
        expected.name == request.name
        and names_match
        and all(_value_matches(value, given[name]) for name, value in wanted.items())
    )


def calls_match(expected: Sequence[ExpectedCall], calls: Sequence[ToolRequest | ToolRun]) -> bool:
    """Whether these are the calls, in their order, and no others."""
    return len(calls) == len(expected) and all(map(call_matches, expected, calls))


def _value_matches(wanted: Any, given: Any) -> bool:
    heard = _HYPHEN.sub(" ", str(given))
    if isinstance(wanted, re.Pattern):
        return any(map(wanted.fullmatch, (str(given), heard)))
    return _HYPHEN.sub(" ", str(wanted)).casefold() == heard.casefold()
