"""English words that distinguish figures and names from other words: ``words.toml``, which explains them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

FILE = Path(__file__).with_name("words.toml")


def _by_name(groups: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {name: unit for unit, names in groups for name in names.split()}


def _numbered(groups: Iterable[str], first: int) -> dict[str, int]:
    return {name: number for number, names in enumerate(groups, first) for name in names.split()}


_read = tomllib.loads(FILE.read_text(encoding="utf-8"))
_lists = {name: frozenset(words.split()) for name, words in _read["lists"].items()}
MONTHS: Mapping[str, int] = _numbered(_read["calendar"]["months"], 1)
WEEKDAYS: Mapping[str, int] = _numbered(_read["calendar"]["weekdays"], 0)
MONEY: Mapping[str, str] = _by_name(_read["money"].items())
HARD_UNITS: Mapping[str, str] = {**MONEY} | _by_name(_read["units"].items())
COUNTED = _lists["counted"]
ORDINAL_USES = _lists["ordinal_uses"]
CLOCK_BEFORE = _lists["clock_before"]
MEASURE_BEFORE = _lists["measure_before"]
FIGURE_WORDS = _lists["figure_words"]
FUNCTION_WORDS = _lists["function_words"]
LETTERED = _lists["lettered"]
COMMON_CAPITALS = _lists["common_capitals"]
NAME_VERBS = _lists["name_verbs"]
COMMON_FIRST = _lists["common_first"]
