"""What callers say for an argument, and the argument that is meant."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import inflect


@dataclass(frozen=True)
class Value:
    """One filling of a placeholder."""

    spoken: str
    meant: Any

    @property
    def written(self) -> str:
        """As it stands in results and in answers."""
        return self.spoken if isinstance(self.meant, bool) else str(self.meant)


_LISTS: dict[str, list[Any]] = tomllib.loads(Path(__file__).with_name("slots.toml").read_text())


@cache
def _english() -> inflect.engine:
    return inflect.engine()


def words(number: float) -> str:
    """A number as it is spoken."""
    whole = int(number)
    text = str(_english().number_to_words(whole, andword="")).replace(",", "")
    text = text.replace("-", " ")
    return text if number == whole else f"{text} and a half"


def _number(number: float, r: random.Random) -> str:
    plain = str(int(number)) if number == int(number) else str(number)
    return words(number) if r.random() < 0.5 else plain


def _int(r: random.Random, low: float, high: float) -> Value:
    number = r.randint(int(low), int(high))
    return Value(_number(number, r), number)


def _half(r: random.Random, low: float, high: float) -> Value:
    number = r.randint(int(low), int(high)) + (0.5 if r.random() < 0.25 else 0.0)
    return Value(_number(number, r), int(number) if number == int(number) else number)


def _count(r: random.Random, low: float, high: float) -> Value:
    special = [("a dozen", 12), ("half a dozen", 6), ("a couple of", 2), ("a pair of", 2)]
    fitting = [one for one in special if low <= one[1] <= high]
    if fitting and r.random() < 0.2:
        return Value(*r.choice(fitting))
    return _int(r, max(low, 2), max(high, 2))


def _minutes(r: random.Random) -> Value:
    if r.random() < 0.4:
        return Value(*r.choice(_LISTS["minutes"]))
    number = r.choice((2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 18, 20, 22, 25, 30, 35, 40, 45, 50))
    return Value(f"{_number(number, r)} minutes", number)


def _percent(r: random.Random, low: float, high: float) -> Value:
    number = r.randint(int(low), int(high))
    number = number - number % 5 if number > 10 else number
    return Value(f"{_number(number, r)} percent", number)


def _degrees(r: random.Random, low: float, high: float) -> Value:
    value = _half(r, low, high)
    return Value(f"{value.spoken} degrees", value.meant)


def _money(r: random.Random, low: float, high: float) -> Value:
    name = r.choice(("pounds", "euros", "dollars"))
    number = r.randint(int(low), int(high))
    if number > 200 and r.random() < 0.7:
        number -= number % (100 if number > 1000 else 10)
    if r.random() < 0.25:
        cents = r.choice((10, 20, 25, 50, 75, 80, 99))
        amount = round(number + cents / 100, 2)
        spoken = r.choice((f"{amount:.2f} {name}", f"{words(number)} {name} {words(cents)}"))
        return Value(spoken, amount)
    return Value(f"{_number(number, r)} {name}", number)


def _one_by_one(digits: str) -> str:
    return " ".join("oh" if digit == "0" else words(int(digit)) for digit in digits)


def _digits(r: random.Random, size: float) -> Value:
    text = str(r.randint(1, 9)) + "".join(r.choice("0123456789") for _ in range(int(size) - 1))
    return Value(_one_by_one(text) if r.random() < 0.25 else text, text)


def _phone(r: random.Random) -> Value:
    text = "0" + "".join(r.choice("0123456789") for _ in range(r.randint(6, 9)))
    return Value(_one_by_one(text) if r.random() < 0.3 else text, text)


def _code(r: random.Random) -> Value:
    letters = "".join(r.choice("ABCDEFGHKLMNPRSTXZ") for _ in range(r.randint(1, 2)))
    number = r.randint(1, 999)
    text = r.choice((f"{letters}{number}", f"{letters} {number}", f"{letters}-{number}"))
    return Value(text, text)


def _clock(r: random.Random) -> tuple[str, int, int]:
    """A time as it is spoken, its hour of 24 and its minute."""
    if r.random() < 0.08:
        return r.choice((("noon", 12, 0), ("midnight", 0, 0), ("midday", 12, 0)))
    hour, afternoon = r.randint(1, 12), r.random() < 0.55
    half = "pm" if afternoon else "am"
    of_day = hour % 12 + (12 if afternoon else 0)
    part = "in the morning" if not afternoon else "in the afternoon" if hour % 12 < 6 else "in the evening"
    minute = r.choice((5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55))
    return r.choice(
        (
            (f"{hour} {half}", of_day, 0),
            (f"{hour} {half}", of_day, 0),
            (f"{words(hour)} {half}", of_day, 0),
            (f"{words(hour)} {part}", of_day, 0),
            (f"half past {words(hour)} {part}", of_day, 30),
            (f"quarter to {words(hour)} {part}", (of_day - 1) % 24, 45),
            (f"quarter past {words(hour)} {part}", of_day, 15),
            (f"{hour}:{minute:02} {half}", of_day, minute),
            (f"{hour}:{minute:02} {half}", of_day, minute),
        )
    )


def _time(r: random.Random) -> Value:
    hour = r.randint(1, 12)
    loose = (
        words(hour),
        f"{words(hour)} o'clock",
        f"half past {words(hour)}",
        f"quarter to {words(hour)}",
        f"{hour}:{r.choice((15, 20, 30, 45))}",
        str(hour),
        f"{hour} o'clock",
        f"{words(hour)} thirty",
    )
    text = r.choice(loose) if r.random() < 0.5 else _clock(r)[0]
    return Value(text, text)


def _time24(r: random.Random) -> Value:
    spoken, hour, minute = _clock(r)
    return Value(spoken, f"{hour:02}:{minute:02}")


def _hour(r: random.Random, low: float, high: float) -> Value:
    """A time in opening hours, which say whether it is morning or evening."""
    hour, minute = r.randint(int(low), int(high) - 1), r.choice((0, 0, 0, 15, 30, 30, 45))
    plain, after = (hour - 1) % 12 + 1, hour % 12 + 1
    half = "pm" if hour >= 12 else "am"
    name = words(plain)
    spoken = {
        0: (name, f"{name} o'clock", str(plain), f"{plain} {half}", f"{name} {half}"),
        15: (f"quarter past {name}", f"a quarter past {name}", f"{plain}:15", f"{plain}:15 {half}"),
        30: (f"half past {name}", f"half past {name}", f"{name} thirty", f"{plain}:30", f"{plain}:30 {half}"),
        45: (f"quarter to {words(after)}", f"a quarter to {words(after)}", f"{plain}:45"),
    }
    return Value(r.choice(spoken[minute]), f"{hour:02}:{minute:02}")


def _day(r: random.Random) -> Value:
    soon = ("today", "tomorrow", "the day after tomorrow", "tonight", "this weekend")
    day = r.choice(_LISTS["days"])
    text = r.choice(soon) if r.random() < 0.3 else r.choice((day, day, day, f"next {day}", f"this {day}"))
    return Value(text, text)


def _date(r: random.Random) -> Value:
    month, number = r.choice(_LISTS["months"]), r.randint(1, 28)
    ordinal = str(_english().ordinal(number))
    spoken = str(_english().number_to_words(ordinal)).replace("-", " ")
    text = r.choice(
        (
            f"the {spoken} of {month}",
            f"{month} {ordinal}",
            f"the {ordinal} of {month}",
            f"{number} {month}",
            f"{month} {number}",
        )
    )
    return Value(text, text)


def _same(choices: Sequence[str]) -> Callable[[random.Random], Value]:
    def choose(r: random.Random) -> Value:
        text = r.choice(choices)
        return Value(text, text)

    return choose


def _full_name(r: random.Random) -> Value:
    text = f"{r.choice(_LISTS['first'])} {r.choice(_LISTS['last'])}"
    return Value(text, text)


def _contact(r: random.Random) -> Value:
    text = r.choice(
        (
            r.choice(_LISTS["kin"]),
            r.choice(_LISTS["first"]),
            f"{r.choice(_LISTS['first'])} {r.choice(_LISTS['last'])}",
        )
    )
    return Value(text, text)


def _street(r: random.Random) -> Value:
    text = f"{r.randint(1, 180)} {r.choice(_LISTS['streets'])}"
    return Value(text, text)


def _currency(r: random.Random) -> Value:
    return Value(*r.choice(_LISTS["currencies"]))


def _email(r: random.Random) -> Value:
    first, last, domain = (
        r.choice(_LISTS["first"]).lower(),
        r.choice(_LISTS["last"]).lower().replace("'", ""),
        r.choice(_LISTS["domains"]),
    )
    address = r.choice(
        (f"{first}@{domain}", f"{first}.{last}@{domain}", f"{first}{r.randint(1, 99)}@{domain}")
    )
    spoken = address.replace(".", " dot ").replace("@", " at ")
    return Value(spoken if r.random() < 0.7 else address, address)


_KINDS: dict[str, Callable[..., Value]] = {
    "int": _int,
    "number": _half,
    "count": _count,
    "minutes": _minutes,
    "percent": _percent,
    "money": _money,
    "degrees": _degrees,
    "digits": _digits,
    "phone": _phone,
    "code": _code,
    "time": _time,
    "time24": _time24,
    "hour": _hour,
    "day": _day,
    "weekday": _same(_LISTS["days"]),
    "date": _date,
    "month": _same(_LISTS["months"]),
    "year": lambda r: Value(*[str(r.randint(1960, 2030))] * 2),
    "first name": _same(_LISTS["first"]),
    "full name": _full_name,
    "contact": _contact,
    "city": _same(_LISTS["cities"]),
    "country": _same(_LISTS["countries"]),
    "street": _street,
    "language": _same(_LISTS["languages"]),
    "currency": _currency,
    "email": _email,
    "company": _same(_LISTS["companies"]),
}


def fill(slot: str | list[Any], r: random.Random) -> Value:
    """Choose what is said.

    Args:
        slot: a kind with its limits, such as ``"int 1 20"``, or a list of what may be said; a pair in it is
            ``[spoken, meant]``.
        r: chooses.

    Raises:
        KeyError: there is no such kind.
    """
    if isinstance(slot, list):
        chosen = r.choice(slot)
        return Value(*chosen) if isinstance(chosen, list) else Value(chosen, chosen)
    parts = slot.split()
    limits = [float(part) for part in parts if part.lstrip("-").replace(".", "", 1).isdigit()]
    return _KINDS[" ".join(parts[: len(parts) - len(limits)])](r, *limits)
