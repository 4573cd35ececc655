"""Corrections of a value: they change only the part that they name."""

from __future__ import annotations

import re

from parley.agent.collecting.checks import places_of, write
from parley.agent.collecting.reading import MAX_TEXT, Doubt, find_like, has_letters, in_form, read_name
from parley.agent.collecting.spelling import Spelled, sound_alike, spell
from parley.protocol import CollectField
from parley.spoken import ORDINALS

_NUMBERED = re.compile(r"\b(\d{1,2})(?:st|nd|rd|th)\b")
_NOT_BUT = re.compile(
    r"\A(?:(?!\bnot ).)*\bnot (?:an? |the )?(?P<wrong>.+?)"
    r"(?:,|\.| but| it'?s| that'?s){1,2} (?:an? )?(?P<right>.+)",
    re.IGNORECASE | re.DOTALL,
)
_RIGHT_NOT = re.compile(
    r"\A(?P<right>.+?)[,.]? (?:and )?not (?:an? )?(?P<wrong>.+)", re.IGNORECASE | re.DOTALL
)
_BEFORE_RIGHT = re.compile(r"\A(?:(?:no|it'?s|that'?s)\b|[,.\s])+", re.IGNORECASE)
_MINUS = r"(?:\bminus\b|(?<!\w)-(?=\d))"
_NOT_MINUS = re.compile(rf"\A(?:(?!{_MINUS}).)*\bnot {_MINUS}(?:(?!{_MINUS}).)*\Z", re.IGNORECASE | re.DOTALL)
"""A sign that is taken back."""
_FIRST = re.compile(r"\b(?:first|former)\b")
_SECOND = re.compile(r"\b(?:second|latter|last|other)\b")
_END = re.compile(
    r"\b(?:the )?(?P<side>first|last)(?: (?:\w+))?(?: (?:digits|letters|numbers|ones|figures|characters))?"
    r"(?: (?:are|should be|were))(?: not)?,? (?P<right>.+)$",
    re.IGNORECASE,
)
_PLACE = re.compile(
    r"\b(?:the )?(?P<place>\w+)(?: (?:letter|digit|number|one|figure|character))?,? (?:is|should be|was|as)"
    r"(?: an?| the (?:letter|number|digit))? (?P<right>.+)$",
    re.IGNORECASE,
)


def correct(field: CollectField, value: str, text: str, doubt: Doubt | None = None) -> str | None:
    """The value with what the user has corrected; None: no part is named, or it is not clear which.

    Args:
        field: whose value.
        value: so far.
        text: what the user says.
        doubt: what was asked.
    """
    text = text[:MAX_TEXT]
    if field.kind == "choice":
        return _answer(doubt, text)
    if field.kind in ("date", "time", "text"):
        return None
    if field.kind == "name" and (renamed := _word_replaced(field, value, text)):
        return renamed
    letters = has_letters(field)
    plain, mask, sign = value, field.pattern, ""
    if field.kind in ("code", "number", "phone"):
        plain = "".join(one for one in value if one.isalnum() or one in "+.")
        is_negative = field.kind == "number" and value.startswith("-") and not _NOT_MINUS.match(text)
        sign = "-" if is_negative else ""
    for changed in _changes(plain, text, doubt, letters=letters):
        if field.kind in ("name", "email"):
            return changed.lower() if field.kind == "email" else changed.title()
        is_whole = mask and len(changed) == len(places_of(mask))
        form = write(changed, mask) if is_whole else in_form(field, sign + changed)
        if form is not None:
            return form
    return None


def _word_replaced(field: CollectField, value: str, text: str) -> str | None:
    """Read "Maria, spelled M, A, R, I, A": the word that is most like it, unless the whole name is."""
    words, new = value.split(), read_name(field, text)
    is_word = new.spelled is not None and " " not in new.value
    at = find_like(["".join(words), *words], new.value) if is_word else None
    return " ".join([*words[: at - 1], new.value, *words[at:]]) if at else None


def _answer(doubt: Doubt | None, text: str) -> str | None:
    """Which of two values was meant; only where whole values were asked."""
    if doubt is None:
        return None
    low = text.lower()
    for one, other in ((doubt.one, doubt.other), (doubt.other, doubt.one)):
        if one.lower() in low and other.lower() not in low:
            return one
    if _FIRST.search(low):
        return doubt.one
    return doubt.other if _SECOND.search(low) else None


def _changes(value: str, text: str, doubt: Doubt | None, *, letters: bool) -> list[str]:
    """What the text may make of the value, the likeliest first."""
    answered = _answered(value, text, doubt, letters=letters) if doubt is not None else None
    found = [
        answered,
        _replaced(_NOT_BUT.match(text), value, letters=letters),
        _replaced(_RIGHT_NOT.match(_BEFORE_RIGHT.sub("", text)), value, letters=letters),
        _end_replaced(_END.search(text), value, letters=letters),
        _place_replaced(_PLACE.search(text), value, letters=letters),
    ]
    named = [one for one in found if one is not None]
    return named or _alike_replaced(value, text, letters=letters)


def _replaced(match: re.Match[str] | None, value: str, *, letters: bool) -> str | None:
    """Read "not fifteen, fifty"."""
    if match is None:
        return None
    wrong, right = (spell(match[name], letters=letters).text for name in ("wrong", "right"))
    at = value.upper().find(wrong)
    once = bool(wrong and right) and value.upper().count(wrong) == 1
    return value[:at] + right + value[at + len(wrong) :] if once else None


def _end_replaced(match: re.Match[str] | None, value: str, *, letters: bool) -> str | None:
    """Read "the last two are four five"."""
    right = spell(match["right"], letters=letters).text if match is not None else ""
    if match is None or not 0 < len(right) < len(value):
        return None
    is_first = match["side"].lower() == "first"
    return right + value[len(right) :] if is_first else value[: -len(right)] + right


def _place_replaced(match: re.Match[str] | None, value: str, *, letters: bool) -> str | None:
    """Read "the third letter is B"."""
    place = _place(match["place"], len(value)) if match is not None else None
    right = _one(spell(match["right"], letters=letters)) if match is not None else ""
    return _put(value, place, right) if place is not None and right else None


def _alike_replaced(value: str, text: str, *, letters: bool) -> list[str]:
    """Read "no, M as in Mike": at the only place where something else may have been understood."""
    right = _one(spell(text, letters=letters))
    places = [index for index, one in enumerate(value.upper()) if one != right and sound_alike(one, right)]
    return [_put(value, places[0], right)] if right and len(places) == 1 else []


def _answered(value: str, text: str, doubt: Doubt, *, letters: bool) -> str | None:
    if doubt.place < 0:
        return _answer(doubt, text)
    if not 0 <= doubt.place < len(value):
        return None
    options = (doubt.one, doubt.other)
    said = {group.best for group in spell(text, letters=letters).groups} & set(options)
    if len(said) == 1:
        return _put(value, doubt.place, said.pop())
    chosen = _answer(Doubt(*options), text) if not said else None
    return _put(value, doubt.place, chosen) if chosen else None


def _one(spelled: Spelled) -> str:
    """The only letter or digit of a text."""
    return spelled.text if len(spelled.groups) == 1 and len(spelled.text) == 1 else ""


def _place(word: str, count: int) -> int | None:
    numbered, word = _NUMBERED.fullmatch(word), word.lower()
    number = int(numbered[1]) if numbered else count if word == "last" else ORDINALS.get(word, 0)
    return number - 1 if 0 < number <= count else None


def _put(value: str, place: int, character: str) -> str:
    return value[:place] + character + value[place + 1 :]
