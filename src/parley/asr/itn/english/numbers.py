"""Figures that are said one after the other: telephone numbers, codes, card numbers.

"five five five, one two one two" becomes ``5551212``; so does "five five five twelve twelve". Numbers with
a value ("ten minutes", "twenty five", "three hundred") stay words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from parley.asr.itn.tokens import Replacement, Token, replace, tokens_of
from parley.spoken import SMALL, TENS

_RUN = 3
"""A run of this many figures is a number that is spelled out."""
_TELEPHONE = 7
"""A run of this many may contain numbers of two figures ("twelve twelve")."""
_NAMED_RUN = 4
_NAMES = frozenset("number code pin extension zip dial phone telephone account card".split())
_LINKS = frozenset(("is", "it's", "was"))
_DASHES = frozenset(("dash", "hyphen"))
# What comes after these is a fraction, and what comes before those has a value.
_POINT = "point"
_MULTIPLIERS = frozenset("hundred thousand million billion percent".split())
# "No one", "the last one": a word, no figure.
_BEFORE_ONE = frozenset(
    "no some any every each this that which the another last first next only other".split()
)


@dataclass(frozen=True)
class _Figures:
    first: int
    end: int
    text: str
    single: bool

    @property
    def count(self) -> int:
        return sum(character.isdecimal() for character in self.text)


def write_digits(text: str) -> str:
    """Write the numbers that were said figure by figure."""
    tokens = tokens_of(text)
    found: list[Replacement] = []
    at = 0
    while at < len(tokens):
        run = _run_at(tokens, at)
        if run:
            found += _chosen(tokens, run)
        at = run[-1].end if run else at + 1
    return replace(text, tokens, found) if found else text


def _run_at(tokens: Sequence[Token], first: int) -> list[_Figures]:
    """The figures from a token on, with the dashes between them."""
    run: list[_Figures] = []
    at = first
    while at < len(tokens) and (at == first or tokens[at].near):
        unit = number_at(tokens, at)
        if unit:
            run.append(_Figures(at, unit.end, unit.text, unit.single))
        elif tokens[at].word in _DASHES and run and run[-1].text != "-":
            run.append(_Figures(at, at + 1, "-", single=True))
        else:
            break
        at = run[-1].end
    return run


def _chosen(tokens: Sequence[Token], run: list[_Figures]) -> list[Replacement]:
    before = tokens[run[0].first - 1].word if run[0].first else ""
    after = tokens[run[-1].end].word if run[-1].end < len(tokens) else ""
    if _POINT in (before, after):
        return []
    if after in _MULTIPLIERS:
        run = run[:-1]
    total = sum(one.count for one in run)
    singles = sum(one.single for one in run if one.count)
    named = _is_named(tokens, run[0].first) if run else False
    hundreds = any(one.text.endswith("00") and not one.single for one in run)
    whole = (singles >= _RUN and total >= _TELEPHONE) or (named and total >= _NAMED_RUN and not hundreds)
    parts = [run] if whole else _singles(run)
    written = (_write(tokens, part) for part in parts)
    return [one for one in written if one]


def _is_named(tokens: Sequence[Token], at: int) -> bool:
    """Whether the words before say that this is a number that is spelled out."""
    if at and tokens[at - 1].word in _LINKS:
        at -= 1
    return at > 0 and tokens[at - 1].word in _NAMES


def _singles(run: Sequence[_Figures]) -> list[list[_Figures]]:
    """The parts in which every figure was said."""
    parts: list[list[_Figures]] = [[]]
    for one in run:
        if one.single:
            parts[-1].append(one)
        else:
            parts.append([])
    return parts


def _write(tokens: Sequence[Token], part: list[_Figures]) -> Replacement | None:
    part = list(part)
    if part and part[0].first and tokens[part[0].first].word == "one":
        part = part[1:] if tokens[part[0].first - 1].word in _BEFORE_ONE else part
    # "Oh, one two three", "one two three oh wait".
    while part and (part[0].text == "-" or _is_exclamation(tokens, part[0], part[0].end)):
        part = part[1:]
    while part and (part[-1].text == "-" or _goes_on_after_oh(tokens, part[-1])):
        part = part[:-1]
    count = sum(one.count for one in part)
    leading_oh = bool(part) and is_oh(tokens[part[0].first])
    if len(part) < 2 or count < _RUN + leading_oh:
        return None
    first = part[0].first
    sign = ""
    if first and tokens[first - 1].word == "plus" and count >= _TELEPHONE and not _is_sum(tokens, first - 1):
        sign, first = "+", first - 1
    return Replacement(first, part[-1].end, sign + "".join(one.text for one in part))


def _is_exclamation(tokens: Sequence[Token], one: _Figures, following: int) -> bool:
    return is_oh(tokens[one.first]) and following < len(tokens) and not tokens[following].close


def _goes_on_after_oh(tokens: Sequence[Token], one: _Figures) -> bool:
    return is_oh(tokens[one.first]) and one.end < len(tokens) and tokens[one.end].close


def _is_sum(tokens: Sequence[Token], plus: int) -> bool:
    return plus > 0 and any(
        (unit := number_at(tokens, at)) is not None and unit.end == plus
        for at in range(max(plus - 2, 0), plus)
    )


_FIGURES = {word: str(number) for number, word in enumerate(SMALL[:10])}
_ONES = {word: figure for word, figure in _FIGURES.items() if figure != "0"}
_OH = frozenset(("oh", "o"))
_TEENS = {word: str(number) for number, word in enumerate(SMALL[10:], 10)}
_TENS = {word: str(number // 10) for word, number in TENS.items()}
_NUMBERS = _FIGURES.keys() | _OH | _TEENS.keys() | _TENS.keys()
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
    tens, dash, ones = tokens[at].word.partition("-")
    if tens not in _TENS or (dash and ones not in _ONES):
        return None
    end = at + 1
    if not dash and end < len(tokens) and tokens[end].word in _ONES and _goes_with(tokens, end):
        ones, end = tokens[end].word, end + 1
    return Unit(_TENS[tens] + _ONES.get(ones, "0"), end, single=False)


def _goes_with(tokens: Sequence[Token], ones: int) -> bool:
    """Whether ones belong to the tens before them; some recognisers part all words of a number by commas."""
    tens = tokens[ones - 1]
    return tokens[ones].close or (
        tokens[ones].near and tens.near and not tens.close and tokens[ones - 2].word in _NUMBERS
    )


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


_CUES = frozenset("spelled spelt spells spell spelling".split())
_SPELLED = frozenset(("name", "surname", "username"))
_SPELLING_LINKS = frozenset(("is", "it", "as", "like", "it's", "that's"))
_WORDS = frozenset(("a", "i"))
"""Letters that are words as well."""
_SHORTEST = 2
_SHORTEST_NAME = 3


def write_spelling(text: str) -> str:
    """Join the letters where something says that they spell a word."""
    tokens = tokens_of(text)
    found: list[Replacement] = []
    at = 0
    while at < len(tokens):
        run = _letters_at(tokens, at)
        if run and len("".join(one.text for one in run)) >= _shortest(tokens, at, run):
            written = "".join(one.text for one in run)
            upper = tokens[at].raw[:1].isupper()
            found.append(Replacement(at, run[-1].end, written.capitalize() if upper else written))
        at = run[-1].end if run else at + 1
    return replace(text, tokens, (one for one in found if one.end > one.first)) if found else text


def _letters_at(tokens: Sequence[Token], first: int) -> list[Unit]:
    run: list[Unit] = []
    at = first
    while at < len(tokens) and (at == first or tokens[at].near) and (unit := letter_at(tokens, at)):
        run.append(unit)
        at = unit.end
    # "spelled a n n a i think"
    while run and _is_word(tokens, run[-1].end - 1):
        run.pop()
    return run


def _is_word(tokens: Sequence[Token], at: int) -> bool:
    """Whether this letter begins what is said next."""
    return at + 1 < len(tokens) and tokens[at].word == "i" and tokens[at + 1].close


def _shortest(tokens: Sequence[Token], at: int, run: Sequence[Unit]) -> int:
    """How many letters it takes here to be a word that is spelled."""
    never = len(tokens) + sum(len(one.text) for one in run) + 1
    examples = sum(tokens[one.end - 1].word != one.text and len(tokens[one.end - 1].word) > 2 for one in run)
    if examples >= _SHORTEST:
        return _SHORTEST
    while at and tokens[at - 1].word in _SPELLING_LINKS:
        at -= 1
        if at and tokens[at - 1].word in _SPELLED:
            return _SHORTEST_NAME
    return _SHORTEST if at and tokens[at - 1].word in _CUES else never
