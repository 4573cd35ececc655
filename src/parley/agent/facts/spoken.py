"""English figures among words: numbers with their units, prices, times and dates."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import TypeAlias

from parley.agent.facts.fact import Fact, amount, day_of, fact, plain_number, time_of
from parley.agent.facts.numbers import NUMBER_WORDS, Number, number_at, ordinal_at
from parley.agent.facts.words import (
    CLOCK_BEFORE,
    COMMON_CAPITALS,
    COUNTED,
    FUNCTION_WORDS,
    HARD_UNITS,
    MEASURE_BEFORE,
    MONEY,
    MONTHS,
    ORDINAL_USES,
    WEEKDAYS,
)
from parley.agent.facts.written import half_of
from parley.asr.itn.tokens import Token
from parley.spoken import ORDINALS

_Found: TypeAlias = tuple[Sequence[Fact], int]
"""Facts, and the token after them."""
_Tokens: TypeAlias = Sequence[Token]
_ITEMS = re.compile(r",\s*(?:and |or )?|\s(?:and|or)\s")
_LIST_MARK = re.compile(r"[.)] ")
_SENTENCE_END = re.compile(r"[.!?](?:\s|$)")
_FRACTIONS = {
    "half an hour": (Decimal("0.5"), "hour"),
    "quarter of an hour": (Decimal("0.25"), "hour"),
    "half price": (Decimal(50), "percent"),
    "an hour and a half": (Decimal("1.5"), "hour"),
    "an hour and a quarter": (Decimal("1.25"), "hour"),
}
_QUARTERS = ("quarters", "of", "an", "hour")
_LABELS = frozenset("number room table gate platform floor line question".split())
"""After these "one" is a number."""
_MOST_COUNTED = 10
_LONGEST_PREFIX = 4
"""Letters before the number of a code."""


_STARTS = frozenset(
    ("a", "an", "just", "per", "once", "twice", "half", "quarter", "noon", "midday", "midnight", *MONTHS)
).union(NUMBER_WORDS, ORDINALS, *([day, f"{day}s", f"{day}'s"] for day in WEEKDAYS))


def read_spoken(text: str, tokens: _Tokens, at: int, *, starts: bool) -> _Found | None:
    """The figure that begins at a token. ``starts``: the token begins a sentence."""
    found = _idiom(tokens, at) or _clock(tokens, at) or _calendar(tokens, at, starts=starts)
    if found is not None:
        return found
    ordinal = ordinal_at(tokens, at)
    if ordinal is not None:
        number, end = ordinal
        if tokens[at].word.isalpha() and _is_step(tokens, at, end):
            return (), end
        return [fact("number", said(tokens, at, end), {f"o{number}"}, {f"{number}"})], end
    value = number_at(tokens, at)
    if value is None:
        return None
    is_item = value.written and starts and value.end < len(tokens)
    if is_item and _LIST_MARK.match(tokens[value.end].gap):  # "1. First, ..."
        return (), value.end
    return _number(text, tokens, at, value)


def may_start(token: Token) -> bool:
    """Whether a figure may begin with a token."""
    return token.word in _STARTS or token.raw[0].isdecimal()


def said(tokens: _Tokens, at: int, end: int) -> str:
    """The words from a token on."""
    return " ".join(token.raw for token in tokens[at:end])


def _word(tokens: _Tokens, at: int) -> str:
    """The word there, if only space parts it from the one before; else empty."""
    return tokens[at].word if 0 <= at < len(tokens) and tokens[at].close else ""


def _before(tokens: _Tokens, at: int) -> str:
    return tokens[at - 1].word if at and tokens[at].close else ""


def _words(tokens: _Tokens, at: int, count: int) -> tuple[str, ...]:
    return tuple(_word(tokens, index) for index in range(at, at + count))


def _noun(tokens: _Tokens, at: int) -> str:
    """What a number before this token counts; empty: nothing."""
    word = _word(tokens, at)
    if word in COMMON_CAPITALS and _word(tokens, at + 1) in MONEY:  # "British pounds"
        return _word(tokens, at + 1)
    is_noun = word[:1].isalpha() and word not in FUNCTION_WORDS and word not in WEEKDAYS
    return word if is_noun and word not in NUMBER_WORDS else ""


# --- what is no plain number -----------------------------------------------------------------


def _idiom(tokens: _Tokens, at: int) -> _Found | None:
    """Such as "one moment", "that one", "half an hour", "twice a day"."""
    word, following = tokens[at].word, _word(tokens, at + 1)
    if word == "one":
        is_wait = following in ("moment", "second", "minute") and _word(tokens, at + 2) in ("", "please")
        is_figure = following in HARD_UNITS or following in NUMBER_WORDS or following in ("point", "and")
        is_figure = is_figure or _before(tokens, at) in _LABELS
        return None if is_figure and not is_wait else ((), at + 1 + is_wait)
    is_wait = word in ("a", "just") and not _noun(tokens, at + 2)
    if following == "second" and (is_wait or word == "per"):
        return (), at + 2
    for phrase, (value, unit) in _FRACTIONS.items():
        length = phrase.count(" ") + 1
        if word == phrase.partition(" ")[0] and said(tokens, at, at + length).lower() == phrase:
            return [amount(phrase, (value,), unit)], at + length
    if (word, following) == ("an", "hour"):
        is_rate = _before(tokens, at) in HARD_UNITS
        return ((), at + 2) if is_rate else ([amount("an hour", (Decimal(1),), "hour")], at + 2)
    if word in ("once", "twice") and following in ("a", "daily", "weekly", "per", "every", "each"):
        return [amount(word, (Decimal(2 if word == "twice" else 1),), "times")], at + 1
    return None


def _clock(tokens: _Tokens, at: int) -> _Found | None:
    """Such as "half past seven", "quarter to eight", "ten past six", "half seven", "noon"."""
    word = tokens[at].word
    if word in ("noon", "midday", "midnight"):
        return [time_of(word, 12, 0, "a" if word == "midnight" else "p")], at + 1
    minutes, end = {"half": (30, at + 1), "quarter": (15, at + 1)}.get(word, (0, at))
    if not minutes:
        number = number_at(tokens, at)
        if number is None or number.values[0] not in (5, 10, 20, 25) or _before(tokens, at) == "from":
            return None
        minutes, end = int(number.values[0]), number.end
        end += _word(tokens, end) == "minutes"
    link = _word(tokens, end)
    behind = end + (link in ("past", "to"))
    hour = number_at(tokens, behind) if _word(tokens, behind) else None
    if hour is None or hour.values[0] not in range(1, 13) or len(hour.values) > 1:
        return None
    # "Five to ten people" is a range.
    if (behind == end and word != "half") or (word not in ("half", "quarter") and _noun(tokens, hour.end)):
        return None
    clock = (int(hour.values[0]) + 23, 60 - minutes) if link == "to" else (int(hour.values[0]), minutes)
    half = half_of(" ".join(_words(tokens, hour.end, 3)))
    return [time_of(said(tokens, at, hour.end), clock[0] % 24, clock[1], half)], hour.end


def _calendar(tokens: _Tokens, at: int, *, starts: bool) -> _Found | None:
    if month := _month(tokens, at):
        return _after_month(tokens, at, month, starts=starts)
    day, end = _day_at(tokens, at)
    named = end + (_word(tokens, end) == "of")
    if day and _word(tokens, named) and (month := _month(tokens, named)):
        return _date(tokens, at, named + 1, month, day), named + 1
    weekday = _weekday(tokens[at])
    return None if weekday is None else ([fact("date", tokens[at].raw, {f"W{weekday}"})], at + 1)


def _after_month(tokens: _Tokens, at: int, month: int, *, starts: bool) -> _Found | None:
    begin = at + 1 + (_word(tokens, at + 1) == "the")
    day, end = _day_at(tokens, begin) if _word(tokens, begin) else (0, begin)
    if day:
        return _date(tokens, at, end, month, day), end
    token = tokens[at]
    if token.word in ("may", "march") and (starts or token.raw[0].islower()):
        return (), at + 1  # verbs
    return [fact("date", token.raw, {f"M{month}"})], at + 1


def _date(tokens: _Tokens, at: int, end: int, month: int, day: int) -> Sequence[Fact]:
    """A date; also one that there is not, which no source gives."""
    text = said(tokens, at, end)
    return day_of(text, month, day) or [fact("date", text, {f"D{month}-{day}"})]


def _day_at(tokens: _Tokens, at: int) -> tuple[int, int]:
    """The day of a month, as ordinal or cardinal number, and the token after it; 0: there is none."""
    if ordinal := ordinal_at(tokens, at):
        return ordinal
    number = number_at(tokens, at)
    return (int(number.values[0]), number.end) if number and number.values[0] in range(1, 32) else (0, at)


def _month(tokens: _Tokens, at: int) -> int | None:
    token = tokens[at]
    return MONTHS.get(token.word) if len(token.raw) > 3 or token.raw[0].isupper() else None


def _weekday(token: Token) -> int | None:
    word = token.word.removesuffix("'s")
    word = word.removesuffix("s") if word.endswith("days") else word
    # "Sat" and "sun" are words, too.
    return WEEKDAYS.get(word) if word.endswith("day") or token.raw[0].isupper() else None


def _is_step(tokens: _Tokens, at: int, end: int) -> bool:
    """Whether an ordinal only puts things in an order: "first, ...", "the second one", "the third step"."""
    following = _word(tokens, end)
    if following in ("floor", "of", *MONTHS):
        return False
    is_listed = not following and end < len(tokens) and tokens[end].gap.startswith(",")
    return tokens[at].word == "first" or following in ORDINAL_USES or (is_listed and not _before(tokens, at))


# --- numbers ---------------------------------------------------------------------------------


def _number(text: str, tokens: _Tokens, at: int, number: Number) -> _Found:
    end, noun = number.end, _noun(tokens, number.end)
    unit = HARD_UNITS.get(noun or _unit_of_range(tokens, at, end), "")
    if (
        unit == "times"
        and _noun(tokens, end + 1) == ""
        and _word(tokens, end + 1) not in ("a", "per", "each", "every")
    ):
        unit = ""  # "three times: six, seven and eight"
    if _words(tokens, end, 4) == _QUARTERS:
        return [amount(said(tokens, at, end + 4), [value / 4 for value in number.values], "hour")], end + 4
    if unit and noun in MONEY:
        return _price(tokens, at, number, unit)
    if unit:
        values: Sequence[Decimal] = number.values
        after = end + bool(noun)
        if _words(tokens, after, 3) == ("and", "a", "half"):
            values, after = (values[0] + Decimal("0.5"),), after + 3
        elif unit == "hour" and len(values) == 1:
            values, after = _with_minutes(tokens, after, values[0])
        return [amount(said(tokens, at, after), values, unit)], after
    if _is_count(text, tokens, at, number):
        return (), end
    return _hour(tokens, at, number) or _plain(tokens, at, number, noun)


def _hour(tokens: _Tokens, at: int, number: Number) -> _Found | None:
    """Such as "seven o'clock", "7 in the evening", "at seven", "from seven to ten"."""
    end, value = number.end, number.values[0]
    clock = number.clock or ((int(value), 0) if value in range(1, 25) and len(number.values) == 1 else None)
    if clock is None:
        return None
    is_hour = _word(tokens, end) == "o'clock"
    end += is_hour
    half = half_of(" ".join(_words(tokens, end, 3)))
    text = said(tokens, at, end)
    if is_hour or half:
        return [time_of(text, *clock, half)], end + (_word(tokens, end) in ("am", "pm"))
    before = _before(tokens, at)
    to_hour = before in ("to", "and") and at > 2 and tokens[at - 3].word in ("from", "between")
    if (before not in CLOCK_BEFORE and not to_hour) or _noun(tokens, end):
        return None
    time = time_of(text, *clock, digits=number.written and number.clock is not None)
    plain = plain_number(text, number.values, "")
    return [fact("time", text, time.needs, time.gives | plain.gives)], end


def _plain(tokens: _Tokens, at: int, number: Number, noun: str) -> _Found:
    text, before, value = said(tokens, at, number.end), _before(tokens, at), number.values[0]
    is_measure = before in MEASURE_BEFORE or value != int(value)
    plain = plain_number(text, number.values, noun, measure=is_measure, price=before != "than")
    if before.isalpha() and len(before) <= _LONGEST_PREFIX and number.written:  # "LB 7740"
        code = {f"c:{before}{''.join(filter(str.isdecimal, text))}"}
        needs = plain.needs | code if tokens[at - 1].raw.isupper() else plain.needs
        plain = Fact("number", text, needs, plain.gives | code)
    clock = number.clock or ((int(value), 0) if value in range(1, 25) and not noun else None)
    if clock is None:
        return [plain], number.end
    time = time_of(text, *clock)
    # "For seven at eight": people.
    is_party = before == "for" and _word(tokens, number.end) in ("at", "on", "tonight", "tomorrow")
    gives = plain.gives if is_party else plain.gives | time.gives
    return [Fact("number", text, plain.needs | time.needs, gives)], number.end


def _price(tokens: _Tokens, at: int, number: Number, unit: str) -> _Found:
    """An amount of money, with the hundredths behind it: "five euros fifty", "four dollars and ten cents"."""
    end, values = number.end + 1, number.values
    behind = end + (_word(tokens, end) == "and")
    rest = number_at(tokens, behind) if unit != "cent" and _word(tokens, behind) else None
    if rest is not None and rest.values[0] in range(100):
        is_cents = MONEY.get(_word(tokens, rest.end)) == "cent"
        if is_cents or (behind == end and not _noun(tokens, rest.end)):
            values, end = (values[0] + rest.values[0] / 100,), rest.end + is_cents
    return [amount(said(tokens, at, end), values, unit, kind="price")], end


def _with_minutes(tokens: _Tokens, at: int, hours: Decimal) -> tuple[Sequence[Decimal], int]:
    """The hours of "two hours and twenty minutes", behind the "hours"."""
    begin = at + (_word(tokens, at) == "and")
    minutes = number_at(tokens, begin) if _word(tokens, begin) else None
    if minutes is None or HARD_UNITS.get(_word(tokens, minutes.end)) != "minute":
        return (hours,), at
    return (hours + minutes.values[0] / 60,), minutes.end + 1


def _unit_of_range(tokens: _Tokens, at: int, end: int) -> str:
    """The unit of "two to three hours" and of "between two and three hours", for the "two"."""
    links = ("to", "until", "or", "and") if _before(tokens, at) == "between" else ("to", "until", "or")
    if _word(tokens, end) not in links or not _word(tokens, end + 1):
        return ""
    upper = number_at(tokens, end + 1)
    return _noun(tokens, upper.end) if upper else ""


def _is_count(text: str, tokens: _Tokens, at: int, number: Number) -> bool:
    """Whether a small number counts what is listed, or names a step: "three options", "step two"."""
    end, value = number.end, number.values[0]
    if value > _MOST_COUNTED or number.clock:
        return False
    if (
        _word(tokens, end) in COUNTED
        or _word(tokens, end + 1) in COUNTED
        or _before(tokens, at) in ("step", "option")
    ):
        return True
    # "Two models, the N200 and the N300": exactly as many as follow.
    listed = end + 1 if _noun(tokens, end) else end
    if listed >= len(tokens) or not tokens[listed].gap.lstrip().startswith((",", ":")):
        return False
    sentence = _SENTENCE_END.split(text[tokens[listed].start :], maxsplit=1)[0]
    return len(_ITEMS.split(sentence)) == value
