"""Facts that are written in a form of their own: addresses, dates, times, telephone numbers and codes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal

from parley.agent.facts.fact import Fact, amount, day_of, fact, part_keys, plain_number, time_of
from parley.agent.facts.words import COMMON_CAPITALS, HARD_UNITS
from parley.asr.itn.english.addresses import DOMAINS

_ADDRESS = re.compile(
    r"(?P<mail>[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+)"
    r"|(?:https?://|(?<![\w-])(?<![\w-]\.))(?:www\.)?(?P<host>(?:[\w-]+\.)+(?P<top>[a-z]{2,}))"
    r"(?P<path>(?:/[\w.~%/?=&#-]*[\w/])?)(?![\w@])",
    re.IGNORECASE,
)
"""RFC 5321 has at most 64 characters before the "@". A host is only looked for from its first label on."""
_STAMP = re.compile(
    r"(?<![\w-])(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d):(\d\d)(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?"
)
_DATE = re.compile(r"(?<![\w./-])(\d{1,2})([./])(\d{1,2})\2(\d{4}|\d\d)(?![\w/]|\.\d)")
_CLOCK = re.compile(
    r"(?<![\w:.,])(\d{1,2})(?:([:.h])(\d\d)(?::\d\d)?)?(?: ?([ap])m)?(?![\w:]|[.,]\d)", re.IGNORECASE
)
_HALF = re.compile(
    r"\A\W*(?:(am\b|in the morning|this morning)|pm\b|in the (?:afternoon|evening)|this (?:afternoon|evening)"
    r"|tonight|at night)",
    re.IGNORECASE,
)
_PHONE = re.compile(r"(?<![\w.:])\+?\(?\d(?:[ ()/-]{0,2}\d){6,19}(?![\w:]|[.,]\d)")
_SPELLED = re.compile(
    r"(?<![\w'])(?<![^\w'][A-Z], )(?<![^\w'][A-Z][ .-])(?<!\A[A-Z], )(?<!\A[A-Z][ .-])"
    r"(?!I \d|A \d)[A-Z](?:(?:, |[ .-])(?:[A-Z]|\d+))*(?:, |[ .-])\d+(?![\w'])"
)
"""It does not begin behind a letter that is spelled: if that letter begins none, the next one does not."""
_LETTERED = re.compile(r"(?<![\w'])[A-Z](?:(?:, |[ .-])[A-Z](?![\w']))+")
_SINGLES = re.compile(r"(?<![\w'])[^\W_](?:[ ,.-]{1,2}[^\W_](?![\w']))+")
_CODE = re.compile(
    r"(?<![\w.,])\d+(?:\.\d+){2,}(?!\w)|"
    r"(?<![\w:.-])(?=[A-Za-z]*-?\d|\d+-?[A-Za-z]|[A-Za-z]+(?:-[A-Za-z\d]+)*-\d)[A-Za-z\d]+(?:-[A-Za-z\d]+)*(?![\w-])"
)
_NO_CODE = re.compile(r"\d+(?:st|nd|rd|th|am|pm)|\d+-[a-z]{3,}|[1-9]\d*|0|[A-Za-z-]+", re.IGNORECASE)
_MEASURE = re.compile(r"\A(\d+)([a-z]{1,4})", re.IGNORECASE)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_DIGITS = re.compile(r"\d+")
_LETTERS = re.compile(r"[a-z]+")
_LONGEST_SPELLED = 64
"""Characters, with what is between them."""


def take_written(text: str) -> tuple[list[Fact], str]:
    """The facts of a text that have a form, and the text with marks in their place."""
    facts: list[Fact] = []

    def take(match: re.Match[str]) -> str:
        found = read(match)
        facts.extend(found or ())
        return match[0] if found is None else ";" * len(match[0])

    for pattern, reader in _FORMS:
        read = reader
        text = pattern.sub(take, text)
    return facts, text


def spelled_keys(text: str) -> Iterator[str]:
    """What single letters and figures in a row give, in either case; "I" or "a" may stand before a code."""
    for match in _SINGLES.finditer(text):
        said = re.sub(r"[\W_]", "", match[0][:_LONGEST_SPELLED]).casefold()
        yield from (f"c:{said[begin:end]}" for begin in (0, 1) for end in range(begin + 2, len(said) + 1))


def half_of(text: str) -> str:
    """The half of the day that a text behind a time says: ``a``, ``p``, or empty."""
    match = _HALF.match(text)
    return "" if match is None else "a" if match[1] else "p"


def numbers_in(text: str) -> Iterator[Fact]:
    """The numbers in digits, in any language."""
    for match in _NUMBER.finditer(text):
        yield plain_number(match[0], (Decimal(match[0]),), "", measure=True)


def _address(match: re.Match[str]) -> Sequence[Fact] | None:
    if match["mail"]:
        return [fact("address", match["mail"], {f"a:{match['mail'].lower()}"})]
    # "done.Thank you" has no host.
    if match["top"].lower() not in DOMAINS or not (match["top"].islower() or "://" in match[0]):
        return None
    host = match["host"].lower()
    return [fact("address", match[0], {f"a:{host}{match['path'].rstrip('/').lower()}"}, {f"a:{host}"})]


def _stamp(match: re.Match[str]) -> Sequence[Fact] | None:
    facts = day_of(match[0][:10], int(match[2]), int(match[3]), int(match[1]))
    if facts is not None and match[4]:
        facts.append(time_of(match[0][11:], int(match[4]), int(match[5]), digits=True))
    return facts


def _date(match: re.Match[str]) -> Sequence[Fact] | None:
    """The day first or, where a slash leaves it open, the month."""
    first, second = int(match[1]), int(match[3])
    year = int(match[4]) + (2000 if len(match[4]) == 2 else 0)
    facts = day_of(match[0], second, first, year)
    other = day_of(match[0], first, second, year) if match[2] == "/" else None
    if facts is None or other is None or first == second:
        return facts or other
    either = fact("date", match[0], facts[0].needs | other[0].needs, facts[0].gives | other[0].gives)
    return [either, *facts[1:]]


def _clock(match: re.Match[str]) -> Sequence[Fact] | None:
    """A time with a colon, or with its half of the day; others are read as numbers."""
    hour, minute, half = int(match[1]), int(match[3] or 0), (match[4] or "").lower()
    if not (half or match[2] in (":", "h")) or hour > 24 or minute > 59:
        return None
    half = half or half_of(match.string[match.end() : match.end() + 20])
    return [time_of(match[0], hour, minute, half, digits=True)]


def _phone(match: re.Match[str]) -> Sequence[Fact] | None:
    groups = _DIGITS.findall(match[0])
    digits = "".join(groups)
    if len(groups) > 2 and len(digits) < 9 and all(len(group) == 2 for group in groups):
        return None  # a list of numbers
    # A country code has one to three figures, a zero may take its place; parts may be said alone.
    forms = {digits.lstrip("0"), *(digits[count:].lstrip("0") for count in (1, 2, 3))}
    for first in range(len(groups)):
        forms.update("".join(groups[first:end]).lstrip("0") for end in range(first + 1, len(groups) + 1))
    gives = {f"p:{form}" for form in forms if len(form) > 5} | part_keys(groups)
    return [fact("code", match[0], {f"p:{digits.lstrip('0')}"}, gives)]


def _spelled(match: re.Match[str]) -> Sequence[Fact] | None:
    return [fact("code", match[0], {f"c:{re.sub(r'[^A-Za-z0-9]', '', match[0]).casefold()}"})]


def _lettered(match: re.Match[str]) -> Sequence[Fact] | None:
    said = re.sub(r"[\W]", "", match[0]).casefold()
    if len(said) == 2 and "," in match[0]:  # "A, B or C"
        return None
    return [] if said in COMMON_CAPITALS else [fact("code", match[0], {f"c:{said}", f"w:{said}"})]


def _code(match: re.Match[str]) -> Sequence[Fact] | None:
    raw = match[0]
    if _NO_CODE.fullmatch(raw):
        return None
    measure = _MEASURE.fullmatch(raw)
    if measure and (unit := HARD_UNITS.get(measure[2].lower())):
        return [amount(raw, (Decimal(measure[1]),), unit)]
    said = re.sub(r"[\W_]", "", raw).casefold()
    # What it is made of may be said alone.
    needs, gives = {f"c:{said}"}, {f"w:{one}" for one in _LETTERS.findall(said)}
    if raw.isdecimal():  # with a zero before it, perhaps the first part of a telephone number
        needs |= part_keys([raw])
    elif "." not in raw:
        gives |= part_keys(_DIGITS.findall(said))
    return [fact("code", raw, needs, gives)]


_FORMS: Sequence[tuple[re.Pattern[str], Callable[[re.Match[str]], Sequence[Fact] | None]]] = (
    (_ADDRESS, _address),
    (_STAMP, _stamp),
    (_DATE, _date),
    (_CLOCK, _clock),
    (_PHONE, _phone),
    (_SPELLED, _spelled),
    (_LETTERED, _lettered),
    (_CODE, _code),
)
