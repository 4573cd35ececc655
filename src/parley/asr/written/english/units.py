"""The smallest things that are spelled out: a figure, a small number, a letter."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from parley.asr.written.tokens import Token

_FIGURES = {
    word: str(n) for n, word in enumerate("zero one two three four five six seven eight nine".split())
}
_ONES = {word: figure for word, figure in _FIGURES.items() if figure != "0"}
_OH = frozenset(("oh", "o"))
_TEENS = {
    word: str(n)
    for n, word in enumerate(
        "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split(), 10
    )
}
_TENS = {
    word: str(n) for n, word in enumerate("twenty thirty forty fifty sixty seventy eighty ninety".split(), 2)
}
_REPEATS = {"double": 2, "triple": 3}
_LETTERS = re.compile(r"[a-z](?:[.-][a-z])*")
_EXAMPLES = (("as", "in"), ("as",), ("for",), ("like",))


class Unit(NamedTuple):
    """What some tokens stand for."""

    text: str
    end: int
    """The token after them."""
    single: bool = True
    """Whether each character was said: not so with "twelve"."""


def number_at(tokens: Sequence[Token], at: int) -> Unit | None:
    """The figures that begin at a token: "five", "oh", "double five", "twelve", "twenty two"."""
    word = tokens[at].word
    if figure := _figure(word):
        return _with_value(tokens, at + 1, figure) or Unit(figure, at + 1)
    if word in _REPEATS:
        return _repeated(tokens, at, _figure)
    if word in _TEENS:
        return Unit(_TEENS[word], at + 1, single=False)
    return _tens_at(tokens, at)


def _with_value(tokens: Sequence[Token], at: int, figure: str) -> Unit | None:
    """What a figure is before "hundred" and "thousand": "eight hundred", "two thousand five"."""
    word = tokens[at].word if at < len(tokens) and tokens[at].close else ""
    if word == "hundred":
        return Unit(figure + "00", at + 1, single=False)
    if word != "thousand":
        return None
    following = at + 2 if at + 1 < len(tokens) and tokens[at + 1].word == "and" else at + 1
    rest = number_at(tokens, following) if following < len(tokens) and tokens[following].close else None
    if rest is None or len(rest.text) > 2 or rest.text == "0":  # a year of this century has two more
        return Unit(figure + "000", at + 1, single=False)
    return Unit(f"{figure}0{rest.text:0>2}", rest.end, single=False)


def _tens_at(tokens: Sequence[Token], at: int) -> Unit | None:
    """Tens, with ones or without: "twenty", "twenty two", "twenty-two"."""
    tens, dash, ones = tokens[at].word.partition("-")
    if tens not in _TENS or (dash and ones not in _ONES):
        return None
    end = at + 1
    if not dash and end < len(tokens) and tokens[end].close and tokens[end].word in _ONES:
        ones, end = tokens[end].word, end + 1
    return Unit(_TENS[tens] + _ONES.get(ones, "0"), end, single=False)


def letter_at(tokens: Sequence[Token], at: int) -> Unit | None:
    """The letters that begin at a token: "j", "j-o-h-n", "double l", "j as in juliet"."""
    word = tokens[at].word
    if word in _REPEATS:
        if word == "double" and at + 1 < len(tokens) and tokens[at + 1].word == "u":
            return Unit("w", at + 2)
        return _repeated(tokens, at, lambda said: said if len(said) == 1 and _LETTERS.fullmatch(said) else "")
    if not _LETTERS.fullmatch(word):
        return None
    if len(word) == 1:
        for said in _EXAMPLES:
            example = at + 1 + len(said)
            if example < len(tokens) and [token.word for token in tokens[at + 1 : example]] == list(said):
                name = tokens[example].word
                return (
                    Unit(word, example + 1) if len(name) > 2 and name.startswith(word) else Unit(word, at + 1)
                )
    return Unit(re.sub(r"[.-]", "", word), at + 1)


def is_oh(token: Token) -> bool:
    """Whether this is a zero in figures only, and something else anywhere else."""
    return token.word in _OH


def _figure(word: str) -> str:
    if len(word) == 1 and word in "0123456789":
        return word
    return "0" if word in _OH else _FIGURES.get(word, "")


def _repeated(tokens: Sequence[Token], at: int, read: Callable[[str], str]) -> Unit | None:
    if at + 1 == len(tokens) or not tokens[at + 1].close:
        return None
    one = read(tokens[at + 1].word)
    return Unit(one * _REPEATS[tokens[at].word], at + 2) if one else None
