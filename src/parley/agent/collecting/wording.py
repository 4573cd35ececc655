"""What the agent says while it collects a value: fixed texts, in English."""

from __future__ import annotations

import re

from parley.agent.collecting.reading import Doubt
from parley.agent.collecting.spelling import WORDS
from parley.protocol import CollectField
from parley.spoken import ORDINALS, say_date, say_time_of

LANGUAGE = "en"
"""The language of the texts, and of what is read."""
_WORD_OF = {letter: "X-ray" if word == "xray" else word.capitalize() for word, letter in WORDS.items()}
_DIGITS = "zero one two three four five six seven eight nine".split()
_SIGNS = {"@": "at", ".": "dot", "_": "underscore", "-": "dash", "+": "plus"}
_GROUP = 3
_YES = frozenset("yes yeah yep yup yea correct right exactly sure ok okay perfect fine absolutely".split())
_NO = frozenset("no nope nah wrong incorrect not isn't false".split())
_BEFORE_YES = frozenset("that's it's that it all".split())
_OTHER = frozenset("but what how when where why who which can do does are".split())
_LONGEST_YES = 5
_WORDS = re.compile(r"[a-z']+|\d+")
_EMAIL_PARTS = re.compile(r"[a-z]+|\d|[@._+-]")


def label(field: CollectField) -> str:
    """What the agent calls the field."""
    return field.label or field.name.replace("_", " ")


def ask(field: CollectField) -> str:
    """Ask for the value."""
    if field.kind == "name":
        return f"What is your {label(field)}? Please spell it too."
    return f"What is your {label(field)}?"


def ask_again(field: CollectField, heard: str, *, last: bool) -> str:
    """Ask once more.

    Args:
        field: whose value.
        heard: letters and digits so far, which are no possible value; empty: none.
        last: whether it is the last time.
    """
    if field.kind in ("phone", "number") or (heard.isdecimal() and field.kind == "code"):
        keys = " You can also use the keys of your phone." if last else ""
        return f"I did not get the {label(field)}. Please say it again slowly, one digit at a time.{keys}"
    if field.kind in ("code", "email", "name"):
        return f"I did not get the {label(field)}. Please spell it with words, like B as in Bravo."
    return f"I did not get the {label(field)}. Please say it again."


def ask_part(field: CollectField, value: str, doubt: Doubt) -> str:
    """Ask for a doubtful part alone."""
    if doubt.place < 0:
        return f"Did you mean {say(field, doubt.one)} or {say(field, doubt.other)}?"
    plain = "".join(one for one in value if one.isalnum())
    place = sum(one.isalnum() for one in value[: doubt.place])
    digits = (doubt.one + doubt.other).isdecimal() and plain.isdecimal()
    what = "digit" if digits else "letter" if plain.isalpha() else "character"
    ordinal = next((word for word, number in ORDINALS.items() if number == place + 1), "last")
    return f"Was the {ordinal} {what} {_character(doubt.one)} or {_character(doubt.other)}?"


def ask_wrong(field: CollectField) -> str:
    """The user says that the value is wrong."""
    return f"Sorry. What is the right {label(field)}, or which part of it is wrong?"


def read_back(field: CollectField, value: str) -> str:
    """Ask whether the value is right."""
    return f"I have {say(field, value)}. Is that right?"


def say(field: CollectField, value: str) -> str:
    """A value so that a voice says each letter and digit of it."""
    match field.kind:
        case "phone" | "code":
            return _spelled(value)
        case "name":
            return f"{value}, spelled {_letters(value.rpartition(' ')[2])}"
        case "email":
            return _email(value)
        case "date":
            return say_date(value)
        case "time":
            return say_time_of(value)
        case _:
            return value


def is_yes(text: str) -> bool:
    """Whether the user agrees."""
    words = _WORDS.findall(text.lower())
    beginning = words[:3] if words and words[0] in _BEFORE_YES else words[:1]
    agrees = bool(_YES & set(beginning)) and not (_NO | _OTHER) & set(words)
    return agrees and len(words) <= _LONGEST_YES and not text.rstrip().endswith("?")


def is_no(text: str) -> bool:
    """Whether the user says that something is wrong."""
    return bool(_NO & set(_WORDS.findall(text.lower())))


def _character(one: str) -> str:
    if one.upper() in _WORD_OF:
        return f"{one.upper()} as in {_WORD_OF[one.upper()]}"
    return " ".join(_DIGITS[int(digit)] for digit in one) if one.isdecimal() else _SIGNS.get(one, one)


def _spelled(value: str) -> str:
    """Digits in words and groups, letters with a word of the spelling alphabet."""
    parts: list[str] = []
    run = ""
    for one in (*value, ""):
        if one and one in "0123456789":
            run += one
            continue
        while run:
            size = len(run) if len(run) <= _GROUP + 1 else _GROUP
            parts.append(" ".join(_DIGITS[int(digit)] for digit in run[:size]))
            run = run[size:]
        if one.strip():
            parts.append(_character(one))
    return ", ".join(parts)


def _letters(value: str) -> str:
    return ", ".join(one.upper() for one in value if one.isalpha())


def _email(value: str) -> str:
    name, _, host = value.partition("@")
    words = _EMAIL_PARTS.findall(f"{name}@{host}")
    return " ".join(_DIGITS[int(one)] if one.isdecimal() else _SIGNS.get(one, one) for one in words)
