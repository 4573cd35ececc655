"""What the words of a turn say about whether it is over.

A text is looked at from its end: "set a timer for" needs something more, "yes" does not. Most texts say
nothing either way. The words of each language are in ``cues.toml``; a language that is not there has no cues.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from parley.protocol import TurnCue

FILE = Path(__file__).with_name("cues.toml")

# Recognisers also write the typographic apostrophe and dashes.
_APOSTROPHE = "\N{RIGHT SINGLE QUOTATION MARK}"
# A time, a date, a price and a large number are one word: no figures that are said one after the other.
_WORD = re.compile(r"\d+(?:[:/]\d+)+|\d{1,3}(?:,\d{3})+(?:\.\d+)?|(?<![\w'@.+-])[\w'@.+-]*\w[\w'@+-]*")
_OPEN = re.compile(r"(?:[,;:…-]|\.\.\.|\N{EN DASH}|\N{EM DASH})$")
_LETTERS = re.compile(r"[^\W\d_](?:-[^\W\d_])*")
_ADDRESS = re.compile(r"@[\w-]+(\.[\w-]+)+$")


class Cue(NamedTuple):
    """What a text's end says, and by which words."""

    kind: TurnCue
    words: str
    finished: bool = False


def find_cue(text: str, language: str) -> Cue | None:
    """The strongest cue of a text: one that something is missing comes before one that nothing is.

    Args:
        text: the user's turn so far, as the recogniser writes it, with or without punctuation.
        language: primary language ("en").
    """
    rules = _rules().get(language)
    words = _WORD.findall(text.lower().replace(_APOSTROPHE, "'"))
    if rules is None or not words:
        return None
    if found := _OPEN.search(text.rstrip()):
        return rules.unfinished(words, open_end=True) or Cue("punctuation", found[0])
    asked = text.rstrip().endswith("?")
    if cue := rules.complete(words) or rules.unfinished(words, asked=asked):
        return cue
    return Cue("question", "?", finished=True) if asked else None


class Rules:
    """The cues of one language."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self._complete = _phrases(table["complete"])
        self._endings: tuple[tuple[TurnCue, Sequence[Sequence[str]]], ...] = (
            ("filler", _phrases(table["fillers"])),
            ("conjunction", _phrases(table["conjunctions"])),
            ("determiner", _phrases(table["determiners"])),
            ("opening", _phrases(table["openings"])),
        )
        self._closings = _phrases(table["closings"])
        self._being = frozenset(table["being"])
        self._being_after = frozenset(table["being_after"])
        self._beginnings = _phrases(table["beginnings"])
        self._leads = frozenset(table["leads"])
        self._prepositions = _phrases(table["prepositions"])
        self._question_words = frozenset(table["question_words"])
        self._asking = _phrases(table["asking"])
        self._question_endings = _phrases(table["question_endings"])
        self._question_prepositions = {ending[-1] for ending in self._question_endings}
        digits, spelling, email = table["digits"], table["spelling"], table["email"]
        self._counted = _phrases(table["counts"]["before"])
        self._counts = frozenset(table["counts"]["words"])
        self._digits: Mapping[str, int] = digits["words"]
        self._repeats: Mapping[str, int] = digits["repeats"]
        self._pairs = frozenset(digits["pairs"])
        self._zero: str = digits["zero"]
        self._digit_run: int = digits["run"]
        self._digit_lengths: Sequence[int] = digits["lengths"]
        self._digit_names = [(name.split(), lengths) for name, lengths in digits["named"].items()]
        self._letter_run: int = spelling["run"]
        self._letter_names = _phrases(spelling["named"])
        self._spelled = _phrases(spelling["spelled"])
        self._separators = _phrases(spelling["separators"])
        self._email_names = _phrases(email["named"])
        self._at: str = email["at"]
        self._dot: str = email["dot"]

    def complete(self, words: Sequence[str]) -> Cue | None:
        """Whether the whole turn is a phrase to which nothing needs to be added."""
        # Recognisers that write punctuation write "bye-bye".
        if " ".join(words).replace("-", " ").split() in self._complete:
            return Cue("phrase", " ".join(words), finished=True)
        return None

    def unfinished(self, words: Sequence[str], *, asked: bool = False, open_end: bool = False) -> Cue | None:
        """Whether something is missing.

        Args:
            words: of the text.
            asked: a question mark follows ("is it?").
            open_end: a comma or the like follows ("tell me what,").
        """
        if _ending(words, self._closings):
            return None
        cue = self._in_email(words) or self._in_digits(words) or self._in_spelling(words, asked=asked)
        cue = cue or self._in_count(words) or (None if asked else self._at_beginning(words))
        if cue:
            return cue
        for kind, phrases in self._endings:
            if (phrase := _ending(words, phrases)) and not (kind == "opening" and self._asks_within(words)):
                return Cue(kind, phrase)
        if open_end and words[-1] in self._question_words:
            return Cue("opening", words[-1])
        phrase = _ending(words, self._prepositions)
        return Cue("preposition", phrase) if phrase and not self._ends_question(words, phrase) else None

    def _ends_question(self, words: Sequence[str], preposition: str) -> bool:
        """Whether the preposition belongs to the question word at the beginning."""
        first = next((word for word in words if word not in self._leads), "")
        if first not in self._question_words:
            return False
        return preposition not in self._question_prepositions or bool(_ending(words, self._question_endings))

    def _at_beginning(self, words: Sequence[str]) -> Cue | None:
        """Whether the turn has hardly begun, or ends before the noun or adjective after "is"."""
        first = next((at for at, word in enumerate(words) if word not in self._leads), len(words))
        if list(words[first:]) in self._beginnings:
            return Cue("opening", " ".join(words[first:]))
        if words[-1] in self._being and (len(words) < 2 or words[-2] not in self._being_after):
            return None if self._asks_within(words) else Cue("opening", words[-1])
        return None

    def _asks_within(self, words: Sequence[str]) -> bool:
        """Whether an embedded question ends with its verb: "do you know what the time is"."""
        asked = max((at for at, word in enumerate(words) if word in self._question_words), default=0)
        before = [word for word in words[:asked] if word not in self._leads]
        named = words[asked + 1 : -1]
        embedded = words[-1] in self._being and named and named[0] not in self._being
        return bool(embedded and _ending(before, self._asking))

    def _in_count(self, words: Sequence[str]) -> Cue | None:
        """Whether a number was said, but not of what."""
        first = len(words)
        while first and (words[first - 1] in self._counts or words[first - 1].isdecimal()):
            first -= 1
        if first < len(words) and _ending(words[:first], self._counted):
            return Cue("digits", " ".join(words[first:]))
        return None

    def _in_digits(self, words: Sequence[str]) -> Cue | None:
        if words[-1] in self._repeats:
            return Cue("digits", words[-1])
        named = next((entry for entry in self._digit_names if _contains(words, entry[0])), None)
        begin = _position(words, named[0]) + len(named[0]) if named else 0
        count, first = self._count_digits(words, begin)
        lengths, least = named[1] if named else self._digit_lengths, 1
        if not named:
            zero = self._begins_with_zero(words[first:])
            # A number that begins with a zero is rather one of a telephone than a year or a code.
            lengths = [length for length in lengths if not zero or length > 4]
            least = 2 if zero else self._least_digits(words, first)
        # More digits than any number has are none of ours to wait for.
        if least <= count < max(lengths) and count not in lengths:
            return Cue("digits", " ".join(words[first:]))
        return None

    def _count_digits(self, words: Sequence[str], begin: int) -> tuple[int, int]:
        """How many digits end the words, none of them before ``begin``, and the place of the first."""
        count, first, single = 0, len(words), False
        while first > begin:
            word = words[first - 1]
            if single and word in self._repeats:
                length, single = self._repeats[word] - 1, False
            elif begin and word.split("-")[0] in self._pairs:
                length, single = (1 if single and "-" not in word else 2), False  # "twenty one" are two
            else:
                length = self._digits_in(word)
                single = length == 1
            if not length:
                break
            count, first = count + length, first - 1
        return count, first

    def _begins_with_zero(self, said: Sequence[str]) -> bool:
        return bool(said) and (said[0] == self._zero or (said[0][0] == "0" and "." not in said[0]))

    def _least_digits(self, words: Sequence[str], first: int) -> int:
        """How many digits, from the first on, are a number in progress."""
        # A single "911" in a sentence is no run.
        return self._digit_run if len(words) - first > 1 or first == 0 else max(self._digit_lengths)

    def _digits_in(self, word: str) -> int:
        """How many digits a word stands for."""
        digits = re.sub(r"[-.]", "", word)
        return len(digits) if digits.isdecimal() else self._digits.get(word, 0)

    def _in_spelling(self, words: Sequence[str], *, asked: bool) -> Cue | None:
        if separator := _ending(words, self._separators):
            return Cue("spelling", separator)
        count, first = 0, len(words)
        while first and _LETTERS.fullmatch(letters := words[first - 1].strip(".")):
            count, first = count + len(letters.split("-")), first - 1
        named = any(_contains(words[:first], name) for name in self._letter_names)
        if count >= (1 if named else self._letter_run):
            return Cue("spelling", " ".join(words[first:]))
        if asked or not self._question_words.isdisjoint(words):
            return None
        spelled = _ending(words, self._spelled) or _ending(words[:-1], self._spelled)
        return Cue("spelling", spelled) if spelled else None

    def _in_email(self, words: Sequence[str]) -> Cue | None:
        """Whether an address was begun that has no host, or a host without its top domain."""
        begun = [name for name in self._email_names if _contains(words, name)]
        if not begun or _ADDRESS.search(words[-1]):
            return None
        starts = (_position(words, name) + len(name) for name in begun)
        address = words[max(starts) :]
        if self._at in address[:-1]:
            host = address[address.index(self._at) + 1 :]
            if (self._dot in host[:-1] and host[-1] != self._dot) or "." in host[-1].strip("."):
                return None
        return Cue("email", " ".join(address or begun[0]))


@cache
def _rules() -> Mapping[str, Rules]:
    with FILE.open("rb") as file:
        return {language: Rules(table) for language, table in tomllib.load(file).items()}


def _phrases(entries: Iterable[str]) -> Sequence[list[str]]:
    """The words of each entry, the longest entries first."""
    return sorted((entry.split() for entry in entries), key=len, reverse=True)


def _ending(words: Sequence[str], phrases: Sequence[Sequence[str]]) -> str:
    """The phrase that ends ``words``; empty: none does."""
    for phrase in phrases:
        if list(words[-len(phrase) :]) == phrase:
            return " ".join(phrase)
    return ""


def _position(words: Sequence[str], phrase: Sequence[str]) -> int:
    """Where ``phrase`` is last found in ``words``; -1: nowhere."""
    starts = range(len(words) - len(phrase), -1, -1)
    return next((start for start in starts if list(words[start : start + len(phrase)]) == list(phrase)), -1)


def _contains(words: Sequence[str], phrase: Sequence[str]) -> bool:
    return _position(words, phrase) >= 0
