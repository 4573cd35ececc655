"""Figures that are said one after the other: telephone numbers, codes, card numbers.

"five five five, one two one two" becomes ``5551212``; so does "five five five twelve twelve". Numbers with
a value ("ten minutes", "twenty five", "three hundred") stay words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parley.asr.written.english.units import is_oh, number_at
from parley.asr.written.tokens import Replacement, Token, replace, tokens_of

_RUN = 3
"""So many figures are a number that is spelled out."""
_TELEPHONE = 7
"""So many may have numbers of two figures in between ("twelve twelve")."""
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
    """What of a run is to be written."""
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
