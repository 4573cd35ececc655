"""Corrections of a value: they change only the part that they name."""

from __future__ import annotations

import re

from parley.agent.collecting.checks import places_of, write
from parley.agent.collecting.reading import MAX_TEXT, Doubt, has_letters, in_form
from parley.agent.collecting.spelling import Spelled, sound_alike, spell
from parley.protocol import CollectField

_ORDINALS = {
    word: index
    for index, word in enumerate(
        "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()
    )
} | {"last": -1}
_NUMBERED = re.compile(r"\b(\d{1,2})(?:st|nd|rd|th)\b")
_NOT_BUT = re.compile(
    r"\bnot (?:an? |the )?(?P<wrong>.+?)(?:,|\.| but| it'?s| that'?s)+ (?:an? )?(?P<right>.+)$", re.IGNORECASE
)
_RIGHT_NOT = re.compile(
    r"^(?:no|it'?s|that'?s|,|\.|\s)*(?P<right>.+?)[,.]? (?:and )?not (?:an? )?(?P<wrong>.+)$", re.IGNORECASE
)
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
    if field.kind in ("date", "time", "text", "choice"):
        return _answer(doubt, text)
    letters = has_letters(field)
    plain, mask = value, field.pattern
    if field.kind in ("code", "number", "phone"):
        plain = "".join(one for one in value if one.isalnum() or one in "+.")
    for changed in _changes(plain, text, doubt, letters=letters):
        if field.kind in ("name", "email"):
            return changed.lower() if field.kind == "email" else changed.title()
        form = write(changed, mask) if mask and len(changed) == len(places_of(mask)) else in_form(field, changed)
        if form is not None:
            return form
    return None


def _answer(doubt: Doubt | None, text: str) -> str | None:
    """Which of two values was meant; only where whole values were asked."""
    if doubt is None:
        return None
    low = text.lower()
    for one, other in ((doubt.one, doubt.other), (doubt.other, doubt.one)):
        if one.lower() in low and other.lower() not in low:
            return one
    if re.search(r"\b(first|former)\b", low):
        return doubt.one
    return doubt.other if re.search(r"\b(second|latter|last|other)\b", low) else None


def _changes(value: str, text: str, doubt: Doubt | None, *, letters: bool) -> list[str]:
    """What the text may make of the value, the likeliest first."""
    found: list[str] = []
    if doubt is not None and (answer := _answered(value, text, doubt, letters=letters)):
        found.append(answer)
    upper = value.upper()
    for form in (_NOT_BUT, _RIGHT_NOT):
        if match := form.search(text):
            wrong = spell(match["wrong"], letters=letters).text
            right = spell(match["right"], letters=letters).text
            if wrong and right and upper.count(wrong) == 1:
                at = upper.index(wrong)
                found.append(value[:at] + right + value[at + len(wrong) :])
    if match := _END.search(text):
        right = spell(match["right"], letters=letters).text
        if 0 < len(right) < len(value):
            first = match["side"].lower() == "first"
            found.append(right + value[len(right) :] if first else value[: -len(right)] + right)
    if (match := _PLACE.search(text)) and (place := _place(match["place"], len(value))) is not None:
        right = spell(match["right"], letters=letters)
        if len(right.groups) == 1 and len(right.text) == 1:
            found.append(_put(value, place, right.text))
    if not found and (place_text := _one(spell(text, letters=letters))):
        alike = [
            index for index, one in enumerate(upper) if one != place_text and sound_alike(one, place_text)
        ]
        if len(alike) == 1:
            found.append(_put(value, alike[0], place_text))
    return found


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
    numbered = _NUMBERED.fullmatch(word)
    index = int(numbered[1]) - 1 if numbered else _ORDINALS.get(word.lower())
    if index is None:
        return None
    index = count - 1 if index < 0 else index
    return index if index < count else None


def _put(value: str, place: int, character: str) -> str:
    return value[:place] + character + value[place + 1 :]
