"""English words for numbers, times and days, as users say them and language models pass them on to functions.

::

    read_time("half past seven", time(17), time(23))    # 19:30
    read_day("tomorrow", date.today())
"""

from __future__ import annotations

import re
from datetime import date, time, timedelta

SMALL = (
    *(
        "zero",
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
        "twelve",
    ),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
"""The numbers below twenty."""
TENS = {
    word: 10 * number
    for number, word in enumerate("twenty thirty forty fifty sixty seventy eighty ninety".split(), 2)
}
ORDINALS = {
    word: number
    for number, word in enumerate(
        (
            "zeroth first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth "
            "thirteenth fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth"
        ).split()
    )
} | {f"{word[:-1]}ieth": number for word, number in TENS.items()}
_NUMBERS = {word: number for number, word in enumerate(SMALL)} | TENS | {"oh": 0, "o": 0}
_TENS_WORDS = tuple(TENS)
_NOT_SAID = frozenset(
    {
        "a",
        "about",
        "around",
        "at",
        "by",
        "clock",
        "for",
        "hours",
        "in",
        "minute",
        "minutes",
        "on",
        "sharp",
        "the",
    }
)
_MORNING = frozenset({"am", "morning"})
_AFTERNOON = frozenset({"pm", "afternoon", "evening", "tonight", "night"})
_FRACTIONS = {"half": 30, "quarter": 15}
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MONTHS = ("january february march april may june july august september october november december").split()
_LAST_OF_MONTH = 31
_HALF_DAY_MIN = 12 * 60
_DAY_MIN = 24 * 60


def read_time(text: str, earliest: time = time(0), latest: time = time(23, 59)) -> time:
    """The time that English words or figures mean, such as ``quarter to eight`` or ``7:30 pm``.

    Args:
        text: what was said.
        earliest: of the times that make sense. Of the two that ``half past seven`` may mean, the one from
            here to ``latest`` is taken; if both or none is, the first one.
        latest: of the times that make sense.

    Raises:
        ValueError: it is no time; the text asks for one.
    """
    words = _words(re.sub(r"\bo.?clock\b", " ", text.lower()))
    is_morning, is_afternoon = bool(_MORNING & set(words)), bool(_AFTERNOON & set(words))
    words = [word for word in words if word not in _NOT_SAID | _MORNING | _AFTERNOON]
    if words in (["noon"], ["midday"]):
        return time(12)
    if words == ["midnight"]:
        return time(0)
    minutes = _minutes(words)
    if minutes is None:
        raise ValueError(f"{text!r} is no time; ask for the time")
    if is_afternoon and minutes < _HALF_DAY_MIN:
        minutes += _HALF_DAY_MIN
    elif is_morning and minutes >= _HALF_DAY_MIN:
        minutes -= _HALF_DAY_MIN  # 12:15 am
    elif not is_morning and not is_afternoon and minutes < 13 * 60 and not _has_24_hours(text):
        possible = [_clock(minutes), _clock(minutes + _HALF_DAY_MIN)]
        return next((one for one in possible if earliest <= one <= latest), possible[0])
    return _clock(minutes)


def read_day(text: str, today: date) -> date:
    """The day that English words or figures mean, such as ``tomorrow``, ``on Friday`` or ``December 5th``.

    ISO 8601 is read too. A weekday is the next one after ``today``, a date without a year the next one from
    ``today`` on.

    Raises:
        ValueError: it is no day; the text asks for one.
    """
    if iso := re.search(r"\b(\d{4})-(\d{2})-(\d{2})\b", text):
        return date(int(iso[1]), int(iso[2]), int(iso[3]))
    words = _words(text)
    if "tomorrow" in words:
        return today + timedelta(days=2 if "after" in words else 1)
    if {"today", "tonight", "now"} & set(words):
        return today
    for word in words:
        if word.removesuffix("s") in _WEEKDAYS:
            return today + timedelta(
                days=(_WEEKDAYS.index(word.removesuffix("s")) - today.weekday() - 1) % 7 + 1
            )
    month = next((_MONTHS.index(word) + 1 for word in words if word in _MONTHS), None)
    number = _day_of_month(words)
    if month is None or number is None:
        raise ValueError(f"{text!r} is no day; ask for the day")
    try:
        found = date(today.year, month, number)
        return found if found >= today else found.replace(year=today.year + 1)
    except ValueError as error:
        raise ValueError(f"{text!r} is no day; ask for the day") from error


def say_time(when: time) -> str:
    """A time in figures that a voice reads well: ``7:30 pm``, ``8 am``."""
    minutes = f":{when:%M}" if when.minute else ""
    return f"{when.hour % 12 or 12}{minutes} {'am' if when.hour < 12 else 'pm'}"


def say_time_of(value: str) -> str:
    """As :func:`say_time`, of a time as ``HH:MM``."""
    return say_time(time.fromisoformat(value))


def say_date(value: str) -> str:
    """A day as ISO 8601 in words: ``Friday, December 5``."""
    day = date.fromisoformat(value)
    return f"{_WEEKDAYS[day.weekday()].capitalize()}, {_MONTHS[day.month - 1].capitalize()} {day.day}"


def say_number(number: int) -> list[str]:
    """The words of a number below a hundred."""
    if number < len(SMALL):
        return [SMALL[number]]
    tens, ones = divmod(number, 10)
    return [_TENS_WORDS[tens - 2], *([SMALL[ones]] if ones else [])]


def _words(text: str) -> list[str]:
    plain = re.sub(r"\b([ap])\.?\s?m\b\.?", r"\1m", text.lower())
    return re.findall(r"[a-z]+|\d+", re.sub(r"(\d)(st|nd|rd|th)\b", r"\1", plain))


def _number(words: list[str]) -> int | None:
    """The number of words such as ``twenty five``, ``oh five`` or ``25``; None: they are none."""
    values = [int(word) if word.isdecimal() else _NUMBERS.get(word) for word in words]
    match values:
        case [int() as one]:
            return one
        case [0, int() as one] if one < 10:
            return one
        case [int() as tens, int() as one] if tens in TENS.values() and 0 < one < 10:
            return tens + one
    return None


def _minutes(words: list[str]) -> int | None:
    """Minutes after midnight as the words say them; None: they are no time."""
    for joint, sign in (("past", 1), ("after", 1), ("to", -1), ("before", -1)):
        if joint in words:
            before, after = words[: words.index(joint)], words[words.index(joint) + 1 :]
            apart = _FRACTIONS.get(before[0]) if len(before) == 1 else None
            return _sum(_number(after), _number(before) if apart is None else apart, sign)
    if words and words[0] == "half":
        return _sum(_number(words[1:]), 30, 1)
    if (whole := _number(words)) is not None and whole < 24:
        return 60 * whole
    # Four figures in one piece are not a time that is said.
    return next(
        (
            _sum(hour, _number(words[split:]), 1)
            for split in (1, 2)
            if (hour := _number(words[:split])) is not None and _number(words[split:]) is not None
        ),
        None,
    )


def _sum(hour: int | None, minutes: int | None, sign: int) -> int | None:
    if hour is None or minutes is None or not 0 <= hour < 24 or not 0 <= minutes < 60:
        return None
    return (60 * hour + sign * minutes) % _DAY_MIN


def _has_24_hours(text: str) -> bool:
    """Whether the hour has two figures with a zero in front, as only the 24-hour clock writes it."""
    return re.search(r"\b0\d:\d\d", text) is not None


def _clock(minutes: int) -> time:
    return time(minutes // 60 % 24, minutes % 60)


def _day_of_month(words: list[str]) -> int | None:
    for index, word in enumerate(words):
        if word.isdecimal() and len(word) <= len(str(_LAST_OF_MONTH)) and int(word) <= _LAST_OF_MONTH:
            return int(word)
        if word in TENS and index + 1 < len(words) and words[index + 1] in ORDINALS:
            return TENS[word] + ORDINALS[words[index + 1]]
        if word in ORDINALS:
            return ORDINALS[word]
    return None
