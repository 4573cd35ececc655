"""Letters and digits as users say them, each with what it may be mistaken for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

_ALPHABET = (
    "alpha bravo charlie delta echo foxtrot golf hotel india juliet kilo lima mike november oscar papa quebec "
    "romeo sierra tango uniform victor whiskey xray yankee zulu"
).split()
_NAMES = {
    "A": "ay eh alfa", "B": "bee be", "C": "see sea cee", "D": "dee", "E": "ee", "F": "ef eff", "G": "gee",
    "H": "aitch haitch", "I": "eye aye", "J": "jay juliett", "K": "kay okay", "L": "el ell", "M": "em",
    "N": "en and", "P": "pee pea", "Q": "queue cue", "R": "are ar", "S": "ess", "T": "tee tea",
    "U": "you ewe", "V": "vee", "W": "whisky", "X": "ex", "Y": "why wye", "Z": "zed zee",
}  # fmt: skip
WORDS: dict[str, str] = {word: word[0].upper() for word in _ALPHABET}
"""Words of the spelling alphabet, and the letters for which they stand."""
LETTERS = {name: letter for letter, names in _NAMES.items() for name in names.split()}
"""Names of letters as recognisers write them."""
_DIGITS = {
    word: str(digit)
    for digit, words in enumerate(
        ("zero oh nought", "one won", "two to too", "three", "four for", "five", "six", "seven", "eight ate", "nine niner")
    )
    for word in words.split()
}  # fmt: skip
_WORDS_OF_NUMBERS = frozenset({"to", "too", "for", "won", "ate", "oh"})
"""Digits only between other digits: they are words too."""
_TEENS = {
    word: str(number)
    for number, word in enumerate(
        "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split(), 10
    )
}
_TENS = {
    word: f"{number}0"
    for number, word in enumerate("twenty thirty forty fifty sixty seventy eighty ninety".split(), 2)
}
_TIMES = {"double": 2, "triple": 3, "treble": 3}
_ZEROS = {"hundred": "00", "thousand": "000"}
_FILLERS = frozenset(
    "a an and ah again all check code digit digits dash er er erm for hello hi hyphen i i'm id is it it's its letter "
    "letters mine my no number of okay please phone plate space so spelled that that's the then this uh um was well "
    "with yeah yes yep number's sure right point number reference booking order card account customer "
    "ticket postcode zip serial slash thanks".split()
)
_AS_IN = frozenset({"as", "for", "like"})
_CONFUSED = ("BCDEGPTVZ3", "AHJK8", "FSX6", "MN", "IY5", "QU2", "59", "19", "O0", "LO", "1I")
_COST = 2.5
"""Of a letter or digit that sounds like the one that was written, in nepers, where the recogniser is sure."""
_TOKEN = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*|\d+|\+|&")
_MOST_TRIED = 2_000
_MOST_GROUPS = 64
_LOW = 0.4


@dataclass(frozen=True)
class Group:
    """What was said at one place."""

    options: tuple[tuple[str, float], ...]
    """Letters or digits and their costs, the best first; the costs are of natural logarithms."""
    sure: bool = False
    """Whether a word of the spelling alphabet names it."""

    @property
    def best(self) -> str:
        """The likeliest."""
        return self.options[0][0]


@dataclass(frozen=True)
class Spelled:
    """A text as letters and digits."""

    groups: tuple[Group, ...]
    rest: tuple[str, ...] = ()
    """Words that are neither."""

    @property
    def text(self) -> str:
        """The likeliest."""
        return "".join(group.best for group in self.groups)


def sound_alike(one: str, other: str) -> bool:
    """Whether a letter or digit may be mistaken for another."""
    return any(one in alike and other in alike for alike in _CONFUSED)


def spell(text: str, *, letters: bool, confidence: float = 1.0) -> Spelled:
    """Read a text as letters and digits, or as digits alone.

    Args:
        text: as the recogniser writes it; of a long one, the beginning.
        letters: whether letters may be meant.
        confidence: of the recogniser, 0-1: what sounds alike costs less if it is low.
    """
    cost = _COST * min(1.0, _LOW + confidence)
    groups: list[Group] = []
    rest: list[str] = []
    tokens = _TOKEN.findall(text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'"))[: 4 * _MOST_GROUPS]
    at = 0
    while at < len(tokens) and len(groups) < _MOST_GROUPS:
        found, at_next = _group(tokens, at, letters, cost, begun=bool(groups))
        if found:
            groups += found
        elif tokens[at].lower() not in _FILLERS | _TIMES.keys() | _AS_IN:
            rest.append(tokens[at])
        at = at_next
    return Spelled(tuple(groups), tuple(rest))


def hypotheses(*spelled: Spelled) -> Iterator[tuple[str, float]]:
    """What several readings of one text may mean, the likeliest first, each text once; at most some thousand.

    The first reading is the recogniser's own; each further one is less likely.
    """
    heap: list[tuple[float, int, int, tuple[int, ...]]] = []
    readings = [one.groups for one in spelled]
    base = [0.0, *(0.5 + 0.5 * rank for rank in range(1, len(readings)))]
    for number, groups in enumerate(readings):
        heappush(heap, (base[number], number, 0, (0,) * len(groups)))
    seen: set[str] = set()
    for _ in range(_MOST_TRIED):
        if not heap:
            return
        cost, number, first, choice = heappop(heap)
        groups = readings[number]
        text = "".join(group.options[index][0] for group, index in zip(groups, choice, strict=True))
        if text not in seen:
            seen.add(text)
            yield text, cost
        for place in range(first, len(groups)):
            options, index = groups[place].options, choice[place]
            if index + 1 < len(options):
                more = options[index + 1][1] - options[index][1]
                changed = (*choice[:place], index + 1, *choice[place + 1 :])
                heappush(heap, (cost + more, number, place, changed))


def combine(first: Spelled, second: Spelled) -> Spelled:
    """Two readings of what was said twice; the second alone where their lengths differ."""
    if len(first.groups) != len(second.groups):
        return second
    return Spelled(tuple(map(_combined, first.groups, second.groups)), second.rest)


def _combined(one: Group, other: Group) -> Group:
    if one.sure != other.sure:
        return one if one.sure else other
    costs, others = dict(one.options), dict(other.options)
    worst = _COST + 1.0
    # What was said last counts more: it was said more clearly.
    total = {
        text: (0.8 * costs.get(text, worst) + others.get(text, worst)) for text in {**others, **costs}
    }
    best = min(total.values())
    return Group(tuple(sorted(((text, cost - best) for text, cost in total.items()), key=lambda it: it[1])))


def _group(
    tokens: Sequence[str], at: int, letters: bool, cost: float, *, begun: bool
) -> tuple[list[Group], int]:
    """What begins at a token, and the next token behind it."""
    raw, word = tokens[at], tokens[at].lower()
    after = tokens[at + 1].lower() if at + 1 < len(tokens) else ""
    if letters and word == "double" and after == "u":
        return [_alike("W", letters, cost)], at + 2
    if word in _TIMES and after:
        found, end = _group(tokens, at + 1, letters, cost, begun=begun)
        if len(found) == 1 and len(found[0].best) == 1:
            return found * _TIMES[word], end
        return found, end
    if letters and (named := _named(tokens, at)):
        return [Group(((named[0], 0.0),), sure=True)], named[1]
    if raw.isdecimal():
        return _written(raw, cost), at + 1
    if raw == "+":
        return ([Group((("+", 0.0),), sure=True)], at + 1) if not begun else ([], at + 1)
    if word == "plus" and not letters and not begun:
        return [Group((("+", 0.0),), sure=True)], at + 1
    if word in _DIGITS and (not letters or word not in _WORDS_OF_NUMBERS or _between(tokens, at)):
        digit = _DIGITS[word]
        end = at + 1
        if after in _ZEROS and digit != "0":
            return [Group(((digit + _ZEROS[after], 0.0),))], end + 1
        return [_alike(digit, letters, cost)], end
    if word in _TEENS:
        ten, options = _TEENS[word], []
        if ten[1] >= "3":
            options = [(f"{ten[1]}0", cost / 2)]
        return [Group(((ten, 0.0), *options))], at + 1
    if word in _TENS:
        ten = _TENS[word]
        if after in _DIGITS and _DIGITS[after] != "0" and after not in _WORDS_OF_NUMBERS:
            return [Group(((ten[0] + _DIGITS[after], 0.0), (ten + _DIGITS[after], cost)))], at + 2
        return [Group(((ten, 0.0), *([(f"1{ten[0]}", cost / 2)] if ten > "20" else [])))], at + 1
    if letters:
        if len(raw) == 1 and raw.isascii() and (raw.isupper() or raw not in "ai" or begun):
            return [_alike(raw.upper(), letters, cost)], at + 1
        if raw.isascii() and raw.isupper() and len(raw) <= 6 and raw.lower() not in _FILLERS:
            return [_alike(one, letters, cost) for one in raw], at + 1
        if word in LETTERS and (begun or word not in _FILLERS):
            return [_alike(LETTERS[word], letters, cost)], at + 1
    return [], at + 1


def _named(tokens: Sequence[str], at: int) -> tuple[str, int] | None:
    """A letter that a word names, and the token behind it: "M as in Mike", "B for Bertha", "Mike"."""
    word = tokens[at].lower()
    following = [one.lower() for one in tokens[at + 1 : at + 4]]
    is_letter = len(word) == 1 or word in LETTERS or word in _DIGITS
    if is_letter and following[:2] == ["as", "in"] and len(following) == 3 and following[2].isalpha():
        return following[2][0].upper(), at + 4
    if is_letter and len(following) > 1 and following[0] in ("for", "like") and len(following[1]) > 2:
        as_word = following[1]
        if as_word.isalpha() and as_word not in _DIGITS and as_word not in LETTERS:
            return as_word[0].upper(), at + 3
    return (WORDS[word], at + 1) if word in WORDS else None


def _between(tokens: Sequence[str], at: int) -> bool:
    """Whether digits stand beside a word that is one only there."""
    near = tokens[max(0, at - 1) : at] + tokens[at + 1 : at + 2]
    return any(one.isdecimal() or one.lower() in _DIGITS.keys() - _WORDS_OF_NUMBERS for one in near)


def _written(raw: str, cost: float) -> list[Group]:
    """Digits that the recogniser has written in one piece."""
    if len(raw) == 2 and raw[0] == "1" and raw[1] >= "3":
        return [Group(((raw, 0.0), (f"{raw[1]}0", cost / 2)))]
    if len(raw) == 2 and raw[1] == "0" and raw[0] >= "3":
        return [Group(((raw, 0.0), (f"1{raw[0]}", cost / 2)))]
    return [_alike(one, False, cost) for one in raw]


def _alike(one: str, letters: bool, cost: float) -> Group:
    others = {other for alike in _CONFUSED if one in alike for other in alike if letters or other.isdecimal()}
    return Group(((one, 0.0), *((other, cost) for other in sorted(others - {one}))))
