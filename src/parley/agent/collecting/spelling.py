"""Letters and digits as users say them, each with what it may be mistaken for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from heapq import heappop, heappush
from typing import TypeAlias

from parley.agent.collecting.checks import has_digits_alone

_ALPHABET = (
    "alpha bravo charlie delta echo foxtrot golf hotel india juliet kilo lima mike november oscar papa "
    "quebec romeo sierra tango uniform victor whiskey xray yankee zulu"
).split()
_NAMES = {
    "A": "ay eh alfa", "B": "bee be", "C": "see sea cee", "D": "dee", "E": "ee", "F": "ef eff", "G": "gee",
    "H": "aitch haitch", "I": "eye aye", "J": "jay juliett", "K": "kay okay", "L": "el ell", "M": "em",
    "N": "en and", "P": "pee pea", "Q": "queue cue", "R": "are ar", "S": "ess", "T": "tee tea",
    "U": "you ewe", "V": "vee", "W": "whisky", "X": "ex", "Y": "why wye", "Z": "zed zee",
}  # fmt: skip
WORDS: dict[str, str] = {word: word[0].upper() for word in _ALPHABET}
"""Words of the spelling alphabet, and the letters for which they stand."""
AS_IN = tuple(f"as in {word.capitalize()}" for word in _ALPHABET)
"""What recognisers are to expect where a value is spelled with words."""
LETTERS = {name: letter for letter, names in _NAMES.items() for name in names.split()}
"""Names of letters as recognisers write them."""
_DIGITS = {
    word: str(digit)
    for digit, words in enumerate(
        (
            "zero oh nought", "one won", "two to too", "three", "four for or", "five", "six", "seven",
            "eight ate", "nine niner",
        )
    )
    for word in words.split()
}  # fmt: skip
_WORDS_OF_NUMBERS = frozenset({"to", "too", "for", "or", "won", "ate", "oh"})
"""Digits only beside other digits: they are words too."""
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
    "a an and ah again all check code digit digits dash er erm for hello hi hyphen i i'm id is it it's its "
    "letter letters mine my no number of okay please phone plate space so spelled that that's the then this "
    "uh um was well with yeah yes yep number's sure right point reference booking order card account "
    "customer ticket postcode zip serial slash thanks".split()
)
_AS_IN = frozenset({"as", "has", "for", "in", "like"})
_IGNORED = _FILLERS | _TIMES.keys() | _AS_IN
_LINK = re.compile(r"(?:as|has|is|was) (?:an?|in|and)|for|like|as|in")
"""What stands between a letter and the word that names it."""
_MOST_LINKS = 3
SIGNS = {"at": "@", "dot": ".", "period": ".", "underscore": "_", "dash": "-", "hyphen": "-", "plus": "+"}
_KNOWN = _IGNORED | _DIGITS.keys() | LETTERS.keys() | SIGNS.keys()
_CONFUSED = ("BCDEGPTVZ3", "AHJK8", "FSX6", "MN", "IY5", "QU2", "59", "19", "O0", "LO", "1I")
SOUNDS = {
    one: sum(1 << bit for bit, alike in enumerate(_CONFUSED) if one in alike) for one in "".join(_CONFUSED)
}
"""Of letters and digits a bit for each set of those that sound alike."""
_COST = 2.5
"""Of a letter or digit that sounds like the one that was written, in nepers, where the recogniser is sure."""
_COST_OF_NOTHING = 1.0
"""Of "and" as a word between letters, not as an N."""
_TOKEN = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*|\d+|\+|&")
_MOST_TRIED = 16_000
"""Changes of single places that are tried: with every hypothesis, one for each place."""
_MOST_GROUPS = 64
_LOW = 0.4
_LONGEST_RUN = 6
"""Letters that the recogniser writes together, in capitals."""
_LEAST_NEAR = 4
_NEAR = 0.72
"""Similarity (:mod:`difflib`) from which a word is taken for one of the spelling alphabet."""
_LONGEST_WORD = 9
"""Letters of a word of the spelling alphabet that was written as two."""
_MOST_OPTIONS = 4
_WITH_WORDS = 3
"""Words of the alphabet from which on each letter has one: single ones are parts of what was misheard."""
_COST_OF_FILLER = 0.1
_COST_OF_REST = 1.0
_COST_OF_LETTER_LEFT_OUT = 1.2
_COST_OF_WORD_ALONE = 0.3
_COST_OF_WORD_OF_OTHER_LETTER = 1.5
_COST_OF_UNKNOWN_WORD = 0.8
_COST_OF_MISHEARD_LINK = 0.7
_BESIDE_DIGITS = re.compile(r"\b[A-Za-z]{1,4}(?=\d)|(?<=\d)[A-Za-z]{1,4}\b")


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
    named: bool = False
    """Whether words name all letters: single ones are left out."""

    @property
    def text(self) -> str:
        """The likeliest."""
        return "".join(group.best for group in self.groups)

    @property
    def with_words(self) -> bool:
        """Whether words name its letters."""
        return sum(group.sure and group.best.isalpha() for group in self.groups) > 1


def sound_alike(one: str, other: str) -> bool:
    """Whether a letter or digit may be mistaken for another."""
    return SOUNDS.get(one, 0) & SOUNDS.get(other, 0) != 0


def spell(text: str, *, letters: bool, confidence: float = 1.0, named: bool = False) -> Spelled:
    """Read a text as letters and digits, or as digits alone.

    Args:
        text: as the recogniser writes it; of a long one, the beginning.
        letters: whether letters may be meant.
        confidence: of the recogniser, 0-1: what sounds alike costs less if it is low.
        named: whether words name all letters, where the text is a part of another.
    """
    cost = _COST * min(1.0, _LOW + confidence)
    if letters:
        text = _BESIDE_DIGITS.sub(lambda found: found[0].upper(), text)
    tokens = _TOKEN.findall(text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'"))[: 4 * _MOST_GROUPS]
    near = [_near_word(token.lower()) if letters else "" for token in tokens]
    named = named or sum(map(bool, near)) >= _WITH_WORDS
    return _Reader(tokens, near, letters, cost, named).align()


def hypotheses(*spelled: Spelled) -> Iterator[tuple[str, float]]:
    """What several readings of one text may mean, the likeliest first, each text once; at most some thousand.

    The first reading is the recogniser's own; each further one is less likely.
    """
    heap: list[tuple[float, int, int, tuple[int, ...], int]] = []
    readings = [one.groups for one in spelled]
    base = [0.0, *(0.5 + 0.5 * rank for rank in range(1, len(readings)))]
    for number, groups in enumerate(readings):
        if groups:
            heappush(heap, (base[number], number, 0, (0,) * len(groups), 0))
    seen: set[str] = set()
    for _ in range(_MOST_TRIED // max(1, *map(len, readings))):
        if not heap:
            return
        cost, number, first, before, changed = heappop(heap)
        groups = readings[number]
        choice = (*before[:first], changed, *before[first + 1 :])  # here, as most are never popped
        text = "".join(group.options[index][0] for group, index in zip(groups, choice, strict=True))
        if text not in seen:
            seen.add(text)
            yield text, cost
        for place in range(first, len(groups)):
            options, index = groups[place].options, choice[place]
            if index + 1 < len(options):
                more = options[index + 1][1] - options[index][1]
                heappush(heap, (cost + more, number, place, choice, index + 1))


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
    total = {text: (0.8 * costs.get(text, worst) + others.get(text, worst)) for text in {**others, **costs}}
    best = min(total.values())
    return Group(tuple(sorted(((text, cost - best) for text, cost in total.items()), key=lambda it: it[1])))


_Step: TypeAlias = tuple[list[Group], int, float]
"""What tokens are read as, the next token, and the cost."""


@dataclass(frozen=True)
class _Reader:
    """Reads tokens; each rule returns the groups at a place and the next token."""

    tokens: Sequence[str]
    near: Sequence[str]
    """For each token the letter that it names as a word of the spelling alphabet; empty: none."""
    letters: bool
    cost: float
    named: bool

    def align(self) -> Spelled:
        """The cheapest reading of all tokens."""
        ways: dict[int, tuple[float, tuple[Group, ...], tuple[str, ...]]] = {0: (0.0, (), ())}
        for at, token in enumerate(self.tokens):
            if at not in ways:
                continue
            so_far, groups, rest = ways[at]
            if len(groups) == _MOST_GROUPS:
                return Spelled(groups, rest, self.named)
            for found, end, cost in self._steps(at, begun=bool(groups)):
                if end not in ways or so_far + cost < ways[end][0]:
                    left = () if found or token.lower() in _IGNORED else (token,)
                    ways[end] = so_far + cost, (*groups, *found)[:_MOST_GROUPS], (*rest, *left)
        return Spelled(*ways[len(self.tokens)][1:], self.named)

    def _steps(self, at: int, *, begun: bool) -> list[_Step]:
        """What the tokens at a place may be."""
        word, found = self.word(at), self.read(at, begun=begun)
        steps = [*self._named(at), *self._named_times(at)] if self.letters else []
        if found is not None:
            lone = self.named and not any(group.sure or group.best.isdecimal() for group in found[0])
            steps.append((*found, 2 * _COST_OF_LETTER_LEFT_OUT if lone else 0.0))
        if self.named or not steps:
            is_letter = len(word) == 1 or word in LETTERS
            cost = _COST_OF_FILLER if word in _IGNORED else _COST_OF_REST
            steps.append(([], at + 1, _COST_OF_LETTER_LEFT_OUT if is_letter else cost))
        return steps

    def word(self, at: int) -> str:
        return self.tokens[at].lower() if at < len(self.tokens) else ""

    def read(self, at: int, *, begun: bool) -> tuple[list[Group], int] | None:
        found = self._double_u(at) if self.letters else self._plus(at, begun=begun)
        found = found or self._repeated(at, begun=begun) or self._digits(at)
        return found or (self._letter(at, begun=begun) if self.letters else None)

    def _plus(self, at: int, *, begun: bool) -> tuple[list[Group], int] | None:
        is_plus = self.word(at) in ("+", "plus") and not begun
        return ([self._sure("+")], at + 1) if is_plus else None

    def _double_u(self, at: int) -> tuple[list[Group], int] | None:
        is_w = self.word(at) == "double" and self.word(at + 1) in ("u", "you")
        return ([self._one("W")], at + 2) if is_w else None

    def _repeated(self, at: int, *, begun: bool) -> tuple[list[Group], int] | None:
        times, after = _TIMES.get(self.word(at)), self.word(at + 1)
        # Of many in a row, each would be read again for each one before it.
        is_chain = after in _TIMES and self.word(at + 2) in _TIMES
        found = self.read(at + 1, begun=begun) if times and after and not is_chain else None
        if times is None or found is None:
            return None
        groups, end = found
        return ([groups[0]] * times + groups[1:] if len(groups[0].best) == 1 else groups), end

    def _digits(self, at: int) -> tuple[list[Group], int] | None:
        word, after = self.word(at), self.word(at + 1)
        if has_digits_alone(word):
            return self._written(word), at + 1
        if word in _TEENS:
            return [self._ten(_TEENS[word])], at + 1
        if word in _TENS:
            ten, unit = _TENS[word], "" if after in _WORDS_OF_NUMBERS else _DIGITS.get(after, "")
            if unit and unit != "0":
                return [Group(((ten[0] + unit, 0.0), (ten + unit, self.cost)))], at + 2
            return [self._ten(ten)], at + 1
        is_word = word in _WORDS_OF_NUMBERS and not self._is_number(at)
        return None if word not in _DIGITS or is_word else self._digit(at)

    def _digit(self, at: int) -> tuple[list[Group], int]:
        word, after = self.word(at), self.word(at + 1)
        if after in _ZEROS and _DIGITS[word] != "0":
            return [Group(((_DIGITS[word] + _ZEROS[after], 0.0),))], at + 2
        return [self._one(_DIGITS[word])], at + 1

    def _letter(self, at: int, *, begun: bool) -> tuple[list[Group], int] | None:
        raw, word = self.tokens[at], self.word(at)
        if not raw.isascii() or not raw.isalpha():
            return None
        alone = begun or len(self.tokens) == 1
        if len(raw) == 1 and (raw.isupper() or word not in "ai" or alone):
            return [self._one(word.upper())], at + 1
        if raw.isupper() and 1 < len(raw) <= _LONGEST_RUN and word not in _FILLERS:
            return [self._one(letter) for letter in raw], at + 1
        if word == "and" and begun:
            said, *others = self._one("N").options
            return [Group((said, ("", _COST_OF_NOTHING), *others))], at + 1
        if word in LETTERS and (alone or word not in _FILLERS):
            return [self._one(LETTERS[word])], at + 1
        return None

    def _named(self, at: int) -> Iterator[_Step]:
        """Letters that a word names: "M as in Mike", "B for Bertha", "Mike"."""
        word, second = self.word(at), self.word(at + 1)
        if self.near[at]:
            yield [self._sure(self.near[at])], at + 1, _COST_OF_WORD_ALONE
        elif second and len(word + second) <= _LONGEST_WORD and not self.near[at + 1]:
            both = _near_word(word + second)
            yield from [([self._sure(both)], at + 2, _COST_OF_WORD_ALONE)] if both else ()
        letter = word.upper() if len(word) == 1 and word.isalpha() else LETTERS.get(word, "")
        if not letter and word not in _DIGITS and word != "0":
            return
        ends = range(at + 1, min(at + _MOST_LINKS + 2, len(self.tokens)))
        for end in [end for end in ends if len(self.tokens[end]) > 1]:
            word, links = self.word(end), [one.lower() for one in self.tokens[at + 1 : end]]
            is_link = _LINK.fullmatch(" ".join(links)) is not None
            cost = _COST_OF_MISHEARD_LINK * sum(one not in _IGNORED for one in links)
            if self.near[end] and (letter or is_link):
                alike = self.near[end] == letter or not letter
                cost += 0.0 if alike else _COST_OF_WORD_ALONE if is_link else _COST_OF_WORD_OF_OTHER_LETTER
                yield [self._fused(letter, word)], end + 1, cost
                return
            begins = len(links) == 1 and word[:1].upper() == letter
            if (is_link or begins) and word.isalpha() and word not in _KNOWN:
                yield [self._fused(letter, word)], end + 1, cost + _COST_OF_UNKNOWN_WORD

    def _named_times(self, at: int) -> Iterator[_Step]:
        """Letters that are said several times and named once: "double M as in Mike"."""
        times = _TIMES.get(self.word(at), 0) if at + 1 < len(self.tokens) else 0
        for (group,), end, cost in self._named(at + 1) if times else ():
            is_w = group.best == "W" and self._double_u(at) is not None
            yield [group] * (1 if is_w else times), end, cost

    def _fused(self, letter: str, word: str) -> Group:
        """A letter and the word that names it: either may be misheard, an exact code word rarely is."""
        named, like = _near_word(word), _similarities(word)
        costs = {}
        for one in like:
            of_word = self.cost * (
                0.0 if one == named else 0.2 if one == word[0].upper() else 2.4 - 1.6 * like[one]
            )
            alike = not letter or one == letter
            far = 1.0 if named or sound_alike(one, letter) else 2.0
            costs[one] = of_word + self.cost * (0.0 if alike else far)
        options = sorted(costs.items(), key=lambda it: it[1])[:_MOST_OPTIONS]
        return Group(tuple((one, cost - options[0][1]) for one, cost in options), sure=True)

    def _sure(self, one: str) -> Group:
        return Group(((one, 0.0),), sure=True)

    def _is_number(self, at: int) -> bool:
        """Whether digits stand beside a word that is one only there; beside "or", three."""
        words = [self.word(at + step) if at + step >= 0 else "" for step in (-1, 1, -2, 2)]
        near = [one.isdecimal() or one in _DIGITS.keys() - _WORDS_OF_NUMBERS for one in words]
        is_or = self.word(at) == "or"
        return all(near[:2]) and any(near[2:]) if is_or else any(near[:2]) or not self.letters

    def _written(self, digits: str) -> list[Group]:
        """Digits that the recogniser has written in one piece."""
        if len(digits) == 2 and digits != "10" and (digits[0] == "1" or digits[1] == "0"):
            return [self._ten(digits)]
        return [self._one(one) for one in digits[:_MOST_GROUPS]]

    def _ten(self, number: str) -> Group:
        """A number of two digits, which may be another one: fifteen and fifty."""
        tens, unit = number[0], number[1]
        other = (
            f"{unit}0" if tens == "1" and unit >= "3" else f"1{tens}" if unit == "0" and tens >= "3" else ""
        )
        return Group(((number, 0.0), *([(other, self.cost / 2)] if other else [])))

    def _one(self, one: str) -> Group:
        others = {
            other
            for alike in _CONFUSED
            if one in alike
            for other in alike
            if self.letters or other.isdecimal()
        }
        return Group(((one, 0.0), *((other, self.cost) for other in sorted(others - {one}))))


@lru_cache(maxsize=1_024)
def _similarities(word: str) -> dict[str, float]:
    """How like a word is to that of the spelling alphabet for each letter, 0-1."""
    matcher = SequenceMatcher(b=word, autojunk=False)
    found = {}
    for one, letter in WORDS.items():
        matcher.set_seq1(one)
        found[letter] = matcher.ratio() if matcher.quick_ratio() > 0.3 else 0.0
    return found


def _near_word(word: str) -> str:
    """The letter of the word of the spelling alphabet that this is, or nearly is; empty: none."""
    if word in WORDS:
        return WORDS[word]
    if len(word) < _LEAST_NEAR or word in _FILLERS:
        return ""
    nearest, likeness = max(_similarities(word).items(), key=lambda it: it[1])
    return nearest if likeness >= _NEAR else ""
