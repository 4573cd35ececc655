"""English numbers and clock times in words and digits, as the values that they may mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from parley.asr.itn.tokens import Token
from parley.spoken import ORDINALS, SMALL, TENS

_SMALL = {word: number for number, word in enumerate(SMALL)}
_SCALES = {"thousand": 1_000, "million": 1_000_000, "billion": 1_000_000_000}
_ARTICLED = frozenset(("hundred", "dozen", *_SCALES))
"""After "a"."""
_LONGEST_DIGITS = 15
"""A longer one is an identifier."""


@dataclass(frozen=True)
class Number:
    """A number that some tokens stand for."""

    values: tuple[Decimal, ...]
    """What it may mean; "four fifty" is 4.5 or 450."""
    end: int
    """The token after it."""
    clock: tuple[int, int] | None = None
    """Hour and minute that it may mean."""
    written: bool = False
    """Whether it is in digits."""


def number_at(tokens: Sequence[Token], at: int) -> Number | None:
    """The number that begins at a token: "twenty two", "4.50", "seven thirty", "a hundred", "2 million"."""
    first = _digits_at(tokens, at) or _words_at(tokens, at)
    if first is None:
        return None
    first = _with_fraction(tokens, first)
    value = first.values[0]
    if first.written or value != int(value) or not _goes_on(tokens, first.end):
        return first
    is_oh = tokens[first.end].word in ("oh", "o")
    second = _words_at(tokens, first.end + is_oh) if first.end + is_oh < len(tokens) else None
    if second is None or not 0 <= value <= 99:
        return first
    rest = second.values[0]
    if rest != int(rest) or not (1 <= rest <= 9 if is_oh else 10 <= rest <= 99):
        return first
    clock = (int(value), int(rest)) if value <= 24 and rest <= 59 else None
    return Number((value + rest / 100, value * 100 + rest), second.end, clock)


def ordinal_at(tokens: Sequence[Token], at: int) -> tuple[int, int] | None:
    """The ordinal that begins at a token, and the token after it: "third", "3rd", "twenty first"."""
    word = tokens[at].word
    if len(word) <= _LONGEST_DIGITS and word[:-2].isdecimal() and word[-2:] in ("st", "nd", "rd", "th"):
        return int(word[:-2]), at + 1
    if word in ORDINALS:
        return ORDINALS[word], at + 1
    if word in TENS and _goes_on(tokens, at + 1) and 0 < ORDINALS.get(tokens[at + 1].word, 0) < 10:
        return TENS[word] + ORDINALS[tokens[at + 1].word], at + 2
    return None


NUMBER_WORDS = frozenset(("hundred", *_SMALL, *TENS, *_SCALES))


def _goes_on(tokens: Sequence[Token], at: int) -> bool:
    return at < len(tokens) and tokens[at].close


def _digits_at(tokens: Sequence[Token], at: int) -> Number | None:
    raw = tokens[at].raw
    if not raw.replace(".", "", 1).isdecimal() or not raw[0].isdecimal() or len(raw) > _LONGEST_DIGITS:
        return None
    value, end = Decimal(raw), at + 1
    others: tuple[Decimal, ...] = ()
    whole, _, decimals = raw.partition(".")
    clock = None
    if len(decimals) == 3:
        others = (Decimal(whole + decimals),)
    elif len(decimals) == 2 and int(whole) <= 24 and int(decimals) <= 59:
        clock = (int(whole), int(decimals))
    if _goes_on(tokens, end) and (scale := _SCALES.get(tokens[end].word)):
        return Number((value * scale,), end + 1, written=True)
    return Number((value, *others), end, clock, written=True)


def _words_at(tokens: Sequence[Token], at: int) -> Number | None:
    """A cardinal number in words."""
    if tokens[at].word in ("a", "an") and _goes_on(tokens, at + 1) and tokens[at + 1].word in _ARTICLED:
        if tokens[at + 1].word == "dozen":
            return Number((Decimal(12),), at + 2)
        total, part, index = 0, 1, at + 1
    elif tokens[at].word == "hundred" or tokens[at].word in _SCALES:  # "hundred euros"
        total, part, index = 0, 1, at
    else:
        total, (part, index) = 0, _small_at(tokens, at)
        if index == at:
            return None
    while index == at or _goes_on(tokens, index):
        word = tokens[index].word
        if word == "hundred" and 0 < part < 100:
            part, index = part * 100, index + 1
        elif word in _SCALES and part:
            total, part, index = total + part * _SCALES[word], 0, index + 1
        elif tokens[index - 1].word == "hundred" or tokens[index - 1].word in _SCALES:
            more, end = _small_at(tokens, index + (word == "and"))
            if not more:
                break
            part, index = part + more, end
        else:
            break
    return Number((Decimal(total + part),), index)


def _small_at(tokens: Sequence[Token], at: int) -> tuple[int, int]:
    """A number below a hundred, and the token after it; ``at``: there is none."""
    word = tokens[at].word if at < len(tokens) else ""
    if word in TENS:
        ones = _SMALL.get(tokens[at + 1].word, 0) if _goes_on(tokens, at + 1) else 0
        return (TENS[word] + ones, at + 2) if 0 < ones < 10 else (TENS[word], at + 1)
    return (_SMALL[word], at + 1) if word in _SMALL else (0, at)


def _with_fraction(tokens: Sequence[Token], number: Number) -> Number:
    """With "point five" or "and a half" behind it."""
    at, value = number.end, number.values[0]
    words = [token.word for token in tokens[at : at + 3]]
    if not _goes_on(tokens, at):
        return number
    if words == ["and", "a", "half"]:
        return Number((value + Decimal("0.5"),), at + 3, written=number.written)
    if words[0] == "point":
        end = at + 1
        while _goes_on(tokens, end) and _SMALL.get(tokens[end].word, 10) < 10:
            end += 1
        figures = "".join(str(_SMALL[token.word]) for token in tokens[at + 1 : end])
        if figures:
            return Number((value + Decimal(f"0.{figures}"),), end, written=True)
    return number
