"""Letters of other alphabets, written with a-z."""

from __future__ import annotations

import unicodedata

# What Unicode does not take apart into a letter and an accent.
_LATIN = dict(
    zip(
        "ßæœøłđðþıħŋəʻʼ",
        "ss ae oe o l d d th i h ng e ' '".split(),
        strict=True,
    )
)
_CYRILLIC = dict(
    zip(
        "абвгдеёжзийклмнопрстуфхцчшщъыьэюяіїєґ",
        "a b v g d e yo zh z i y k l m n o p r s t u f kh ts ch sh shch | i | e yu ya i yi ye g".split(),
        strict=True,
    )
)
_GREEK = dict(
    zip(
        "αβγδεζηθικλμνξοπρσςτυφχψω",
        "a v g d e z i th i k l m n x o p r s s t i f ch ps o".split(),
        strict=True,
    )
)
_TABLE = {**_LATIN, **_CYRILLIC, **_GREEK}
_SILENT = "|"
_APOSTROPHES = "\u2018\u2019\u02bc\u0060\u00b4\u2032"


def in_latin(text: str) -> str:
    """``text`` with the letters a-z for all that have an equivalent; other characters stay as they are."""
    composed = unicodedata.normalize("NFKC", text.translate(dict.fromkeys(map(ord, _APOSTROPHES), "'")))
    return "".join(map(_letter, composed))


def _letter(character: str) -> str:
    if character < "\u0080":
        return character
    for candidate in (character.lower(), unicodedata.normalize("NFD", character.lower())[0]):
        known = _TABLE.get(candidate) or (candidate if "a" <= candidate <= "z" else None)
        if known is not None:
            known = known.replace(_SILENT, "")
            return known.capitalize() if character.isupper() else known
    return "" if unicodedata.category(character) == "Mn" else character
