"""Times and days as callers say them."""

from __future__ import annotations

from datetime import date, time

import pytest

from parley_client.spoken import read_day, read_time, say_time

EVENING = (time(17), time(23))
OFFICE = (time(8), time(17))
SUNDAY = date(2026, 11, 29)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("half past seven", time(19, 30)),
        ("half seven", time(19, 30)),
        ("7:30", time(19, 30)),
        ("07:30", time(7, 30)),
        ("19:30", time(19, 30)),
        ("7:30 p.m.", time(19, 30)),
        ("seven thirty", time(19, 30)),
        ("about seven o'clock", time(19)),
        ("seven", time(19)),
        ("at 7pm sharp", time(19)),
        ("a quarter to eight", time(19, 45)),
        ("quarter past six in the evening", time(18, 15)),
        ("ten past nine", time(21, 10)),
        ("twenty five to nine", time(20, 35)),
        ("seven oh five", time(19, 5)),
        ("nineteen thirty", time(19, 30)),
        ("twenty one fifteen", time(21, 15)),
        ("eight in the morning", time(8)),
        ("twelve", time(12)),
        ("12:15 am", time(0, 15)),
        ("noon", time(12)),
        ("midnight", time(0)),
    ],
)
def test_time_of_words_or_figures_is_the_one_that_makes_sense(text, meant):
    assert read_time(text, *EVENING) == meant


@pytest.mark.parametrize(
    ("text", "meant"),
    [("nine", time(9)), ("half past three", time(15, 30)), ("quarter to one", time(12, 45))],
)
def test_time_in_the_morning_or_afternoon_follows_the_hours(text, meant):
    assert read_time(text, *OFFICE) == meant


@pytest.mark.parametrize(
    ("when", "said"),
    [(time(19, 30), "7:30 pm"), (time(8), "8 am"), (time(0, 5), "12:05 am"), (time(12), "12 pm")],
)
def test_time_is_said_in_figures(when, said):
    assert say_time(when) == said
    assert read_time(said) == when


@pytest.mark.parametrize("text", ["", "soon", "25:00", "7:75", "1930", "half past", "quarter to"])
def test_what_is_no_time_is_refused_with_what_to_ask(text):
    with pytest.raises(ValueError, match="is no time; ask for the time"):
        read_time(text)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("today", SUNDAY),
        ("tonight", SUNDAY),
        ("tomorrow evening", date(2026, 11, 30)),
        ("the day after tomorrow", date(2026, 12, 1)),
        ("on Friday", date(2026, 12, 4)),
        ("next Sunday", date(2026, 12, 6)),
        ("December 5th", date(2026, 12, 5)),
        ("the twenty first of December", date(2026, 12, 21)),
        ("the third of January", date(2027, 1, 3)),
        ("2026-12-05", date(2026, 12, 5)),
    ],
)
def test_day_of_words_or_figures(text, meant):
    assert read_day(text, SUNDAY) == meant


@pytest.mark.parametrize(
    "text",
    ["", "soon", "the fifth", "February 30", "in December", "May 32", "May I give you 4915112345678?"],
)
def test_what_is_no_day_is_refused_with_what_to_ask(text):
    with pytest.raises(ValueError, match="is no day; ask for the day"):
        read_day(text, SUNDAY)
