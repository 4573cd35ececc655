"""A fact, in a form in which those that mean the same are equal.

A fact has keys. One that is to be spoken *needs* one of its keys, a source *gives* all that follow from it:
"half past seven" needs ``t7:30``, and "19:30" gives ``t7:30`` and ``t7:30p``.

| key | |
|---|---|
| ``4.5``, ``4.5/euro``, ``4.5/soft``, ``4.5/?`` | a number; with its unit; with another noun; with neither |
| ``123/digits`` | a part of a code or of a telephone number |
| ``t7:30``, ``t7:30p`` | a time of twelve hours; with its half of the day |
| ``m120`` | minutes |
| ``D3-5``, ``M3``, ``W0``, ``o5`` | month and day; a month; a day of the week, from Monday; an ordinal |
| ``w:rossi`` | a word |
| ``c:ab123``, ``p:4930123`` | a code; a telephone number |
| ``a:info@example.com`` | an e-mail or web address |
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, TypeAlias

from parley.agent.facts.words import MONEY

FactKind: TypeAlias = Literal["number", "time", "date", "price", "name", "code", "address"]
BARE, SOFT, DIGITS = "?", "soft", "digits"
"""Tags of numbers without a noun, with one that is no unit, and of parts of codes and telephone numbers."""
_LEAST_PART = 100
"""The least number that may be part of a code or of a telephone number said in pieces."""
_MOST_FIGURES = 15
_MINUTES = {"minute": 1, "hour": 60, "day": 1_440, "week": 10_080}


@dataclass(frozen=True)
class Fact:
    """A figure or a name in a text."""

    kind: FactKind
    text: str
    needs: frozenset[str]
    """A source must have one of these."""
    gives: frozenset[str]
    """What a source that says it has."""


def fact(kind: FactKind, text: str, needs: Iterable[str], gives: Iterable[str] = ()) -> Fact:
    """A fact that gives at least what it needs."""
    needed = frozenset(needs)
    return Fact(kind, text, needed, needed.union(gives))


def written(value: Decimal) -> str:
    """A number as a key has it, with five decimals at most."""
    # Decimals are rounded to 28 figures.
    return f"{value:f}" if value.adjusted() > _MOST_FIGURES else f"{round(value, 5).normalize():f}"


def amount(text: str, values: Sequence[Decimal], unit: str, *, kind: FactKind = "number") -> Fact:
    """A number with a unit: a source has the same, or the number without a noun."""
    keys = [written(value) for value in values]
    needs = {f"{key}/{tag}" for key in keys for tag in (unit, BARE)}
    gives = {*keys, *(f"{key}/{unit}" for key in keys)}
    if unit in _MINUTES:
        minutes = [written(value * _MINUTES[unit]) for value in values]
        needs |= {f"m{one}" for one in minutes} | {f"{one}/{BARE}" for one in minutes}
        gives |= {f"m{one}" for one in minutes}
    elif unit == "cent":
        parts = {f"{written(value / 100)}/{money}" for value in values for money in set(MONEY.values())}
        needs, gives = needs | parts, gives | parts
    return Fact(kind, text, frozenset(needs), frozenset(gives))


def plain_number(
    text: str, values: Sequence[Decimal], noun: str, *, measure: bool = False, price: bool = False
) -> Fact:
    """A number without a unit. ``measure``: it may be of any unit; ``price``: of money."""
    keys = [written(value) for value in values]
    gives = {*keys, *(f"{key}/{SOFT if noun else BARE}" for key in keys)}
    whole = values[0]
    if not noun and whole in range(1, 32):
        gives.add(f"o{int(whole)}")
    tags = {SOFT, BARE, *(MONEY.values() if price and not noun else ())}
    if not noun and whole >= _LEAST_PART:
        tags.add(DIGITS)
    needs = keys if measure and not noun else [f"{key}/{tag}" for key in keys for tag in tags]
    return Fact("number", text, frozenset(needs), frozenset(gives))


def part_keys(figures: Iterable[str], tag: str = DIGITS) -> set[str]:
    """What figures of a code or of a telephone number give."""
    keys = {written(Decimal(one)) for one in figures}
    return keys | {f"{key}/{tag}" for key in keys}


def time_of(text: str, hour: int, minute: int, half: str = "", *, digits: bool = False) -> Fact:
    """A time. ``half``: ``a``, ``p``, or empty. ``digits``: written so that hours may be of twenty-four."""
    if not half and digits and (hour >= 12 or hour == 0 or text.startswith("0")):
        half = "p" if 12 <= hour < 24 else "a"
    key = f"t{hour % 12}:{minute:02}"
    gives = {key, f"{key}{half}"} if half else {f"{key}a", f"{key}p"}
    return fact("time", text, {f"{key}{half}"}, gives)


def day_of(text: str, month: int, day: int, year: int | None = None) -> list[Fact] | None:
    """A date, and its year; None: there is no such day."""
    try:
        weekday = dt.date(year or 2024, month, day).weekday()
    except ValueError:
        return None
    gives = {f"M{month}", f"o{day}"}
    if year is None:
        return [fact("date", text, {f"D{month}-{day}"}, gives)]
    date = fact("date", text, {f"D{month}-{day}"}, {*gives, f"W{weekday}"})
    return [date, fact("number", f"{year}", {f"{year}"}, {f"{year}/{BARE}"})]
