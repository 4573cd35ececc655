"""The facts of a text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence

from parley.agent.facts.fact import BARE, Fact, fact, part_keys
from parley.agent.facts.numbers import NUMBER_WORDS
from parley.agent.facts.spoken import may_start, read_spoken
from parley.agent.facts.words import (
    COMMON_CAPITALS,
    COMMON_FIRST,
    FIGURE_WORDS,
    FUNCTION_WORDS,
    LETTERED,
    MONEY,
    NAME_VERBS,
)
from parley.agent.facts.written import numbers_in, spelled_keys, take_written
from parley.asr.itn import inverse_normalizer
from parley.asr.itn.tokens import Token, tokens_of

_SIGNS = {"€": "euro", "$": "dollar", "£": "pound", "¥": "yen", "₹": "rupee"}
_SIGN = f"[{''.join(map(re.escape, _SIGNS))}]"
_SPACES = re.compile(r"[\u00a0\u2009\u202f]")
_HOURS = r"\d{1,2}(?:[:.]\d\d)?(?: ?[ap]m)?"
_REWRITES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\b([ap])\.\s?m\b\.?", re.IGNORECASE), r"\1m"),
    (re.compile(r"(?<=\d),(?=\d{3}(?!\d))"), ""),
    (re.compile(r"(?<=\d),(?=\d{1,2}(?!\d))"), "."),
    (re.compile(r"(?<=\d) ?%|\bper cent\b"), " percent"),
    (re.compile(r"(?<=\d) ?°(?: ?[CF]\b)?"), " degrees"),
    # Ranges: not the parts of a telephone number or a date.
    (
        re.compile(rf"(?<![\w:./-])({_HOURS}) ?[\u2013\u2014-] ?(?={_HOURS}(?![\w/-]))", re.IGNORECASE),
        r"\1 until ",
    ),
)
_AMOUNT = re.compile(rf"({_SIGN}) ?(\d+(?:\.\d+)?)|(?<!\d)(\d+(?:\.\d+)?) ?({_SIGN})")
_FIGURE = r"(?:\d|[a-z]|oh|zero|one|two|three|four|five|six|seven|eight|nine|double|triple)"
_SAID = re.compile(rf"\b{_FIGURE}[ ,.-]+{_FIGURE}\b|\b(?:dot|period|spel[lt]\w*)\b", re.IGNORECASE)
"""Where there may be figures, letters or addresses that are said one after the other."""
_HYPHEN = re.compile(r"(?<=[^\W\d_])-(?=[^\W\d_])|(?<=\d)-(?=[a-z]{3,})")
_LETTERS_BEGUN = re.compile(r",?(?:[A-Z](?: ,|[ .-]))*(?!I\b)[A-Z](?![\w'])")
"""At the end of a text that is read backwards: letters that are spelled, and may go on."""
_SENTENCE = re.compile(r"[.!?:\u2026\n*\u2022\"\u201c(]")
_DIGITS = re.compile(r"[0-9]+")
_SPACED = re.compile(r"\S+")
_WORD = re.compile(r"[^\W_]+")
_NO_NAMES = COMMON_CAPITALS.union(MONEY)
COMMON_ENDINGS = tuple("ly ing ness ment able ible ful less ies ers ed ion ions ity".split())
_MOST_AT_ONCE = 1_000
"""Characters of a source that are read at once."""


def facts_of(text: str, language: str, *, begins: bool = True) -> list[Fact]:
    """The facts of a text that is to be spoken; spoken digits and addresses are written first.

    Args:
        text: about a sentence.
        language: primary language; in others than English only addresses and what is in digits is found.
        begins: whether the text begins a sentence.
    """
    if language != "en" or _SAID.search(text):
        text = inverse_normalizer(language)(text)
    text = _rewritten(text)
    facts, text = take_written(text)
    if language != "en":
        return [*facts, *numbers_in(text)]
    text = _HYPHEN.sub(" ", text)
    tokens = tokens_of(text)
    at = 0
    while at < len(tokens):
        starts = bool(_SENTENCE.search(tokens[at].gap)) if at else begins and ";" not in tokens[at].gap
        found = read_spoken(text, tokens, at, starts=starts) if may_start(tokens[at]) else None
        found = found or _other(tokens, at, starts=starts)
        facts += found[0]
        at = found[1]
    return facts


def keys_of(piece: str, language: str) -> set[str]:
    """What a piece of a source gives: of its facts, and of each of its words."""
    keys = {f"w:{fold(word)}" for word in _WORD.findall(piece)}
    keys.update(spelled_keys(piece))
    return keys.union(*(one.gives for one in facts_of(piece, language)))


def before_figure(segment: str) -> int:
    """Where the figure begins with which a text breaks off; its length: there is none, or only that."""
    begin = len(segment)
    if (letters := _LETTERS_BEGUN.match(segment[::-1])) is not None:
        return begin - letters.end() or begin
    if not segment[-1:].isalnum():
        return begin
    has_number = False
    for match in reversed(list(_SPACED.finditer(segment))):
        word = match[0].lower()
        is_number = any(map(str.isdecimal, word)) or word.partition("-")[0] in NUMBER_WORDS
        if not (is_number or word in FIGURE_WORDS):
            break
        has_number, begin = has_number or is_number or word in ("half", "quarter"), match.start()
    return begin if has_number and begin else len(segment)


def fold(word: str) -> str:
    """A word without case and accents."""
    plain = (char for char in unicodedata.normalize("NFKD", word) if not unicodedata.combining(char))
    return "".join(plain).casefold()


def pieces_of(text: str) -> Iterator[str]:
    """The lines of a source, and parts of those that are long.

    Each is read in about two milliseconds; one of numbers alone, such as "5-6 5-6", takes some twenty.
    """
    for line in text.splitlines():
        begin = 0
        while len(line) - begin > _MOST_AT_ONCE:
            space = line.rfind(" ", begin, begin + _MOST_AT_ONCE)
            end = space if space > begin else begin + _MOST_AT_ONCE
            yield line[begin:end]
            begin = end
        yield line[begin:]


def _rewritten(text: str) -> str:
    text = _SPACES.sub(" ", text).replace("\u2019", "'")
    for found, wanted in _REWRITES:
        text = found.sub(wanted, text)
    return _AMOUNT.sub(lambda match: f"{match[2] or match[3]} {_SIGNS[match[1] or match[4]]}", text)


def _other(tokens: Sequence[Token], at: int, *, starts: bool) -> tuple[Sequence[Fact], int]:
    """Figures in no form that is known, and names: capitals that neither place nor meaning explain."""
    raw = tokens[at].raw
    if any(char.isnumeric() for char in raw):
        parts = part_keys(_DIGITS.findall(raw), BARE)  # "1:4", "24/7"
        return [fact("code", raw, {f"c:{''.join(filter(str.isalnum, raw)).casefold()}"}, parts)], at + 1
    word = raw.removesuffix("'s").removesuffix("'")
    stem = word.partition("'")[0].lower()
    if len(word) == 1 and word.isupper() and word not in "AI" and at and tokens[at].close:
        label = tokens[at - 1].word
        if label in LETTERED:  # "room K"
            return [fact("code", f"{tokens[at - 1].raw} {word}", {f"w:{fold(word)}"})], at + 1
    if not word[0].isupper() or len(word) == 1 or stem in _NO_NAMES or word.lower() in _NO_NAMES:
        return (), at + 1
    if starts and not _is_name_first(tokens, at, stem):
        return (), at + 1
    # Of several parts, as of "Jean/Luc", the longest; it may be a plural.
    key = max((f"w:{fold(part)}" for part in _WORD.findall(word)), key=len)
    return [fact("name", word, {key, key.removesuffix("s"), f"{key}s"})], at + 1


def _is_name_first(tokens: Sequence[Token], at: int, word: str) -> bool:
    """Whether the first word of a sentence is a name, although every first word has a capital."""
    following = tokens[at + 1] if at + 1 < len(tokens) and tokens[at + 1].close else None
    if following is None or word in COMMON_FIRST or word in FUNCTION_WORDS or word.endswith(COMMON_ENDINGS):
        return False
    is_proper = following.raw[0].isupper() and not following.raw.isupper()
    is_proper = is_proper and following.word not in COMMON_CAPITALS
    return is_proper or following.word in NAME_VERBS
