"""What says whether a code can be right: check digits and masks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

PLACES = _LETTER, _DIGIT, _EITHER = "A", "9", "?"
"""Of a mask, which stand for letters, digits and either."""
_BASE_36 = 36


def has_digits_alone(code: str) -> bool:
    """Whether all of it are digits of ASCII; other digits of Unicode are in no code."""
    return code.isascii() and code.isdecimal()


def luhn(code: str) -> bool:
    """Numbers of payment cards and the like."""
    if not has_digits_alone(code) or len(code) < 2:
        return False
    doubled = [int(digit) * (1 + index % 2) for index, digit in enumerate(reversed(code))]
    return sum(one // 10 + one % 10 for one in doubled) % 10 == 0


def iban(code: str) -> bool:
    """Numbers of bank accounts: ISO 13616."""
    if not (15 <= len(code) <= 34 and code.isascii() and code.isalnum() and code[:2].isalpha()):
        return False
    return int("".join(str(int(one, _BASE_36)) for one in code[4:] + code[:4])) % 97 == 1


def isbn(code: str) -> bool:
    """Books: ISBN-10 or ISBN-13."""
    if len(code) == 10 and has_digits_alone(code.removesuffix("X")):
        digits = [10 if one == "X" else int(one) for one in code]
        return sum(weight * digit for weight, digit in zip(range(10, 0, -1), digits, strict=True)) % 11 == 0
    return len(code) == 13 and code[:3] in ("978", "979") and ean(code)


def ean(code: str) -> bool:
    """Articles: EAN-8, UPC-A or EAN-13."""
    if len(code) not in (8, 12, 13) or not has_digits_alone(code):
        return False
    return sum(int(digit) * (1 + 2 * (index % 2)) for index, digit in enumerate(reversed(code))) % 10 == 0


CHECKS: Mapping[str, Callable[[str], bool]] = {"luhn": luhn, "iban": iban, "isbn": isbn, "ean": ean}
"""By the name in :attr:`parley.protocol.CollectField.check`."""


def places_of(mask: str) -> str:
    """The places of a mask that a user says: without the punctuation, which is only written."""
    return "".join(one for one in mask if one.isalnum() or one == _EITHER)


def fits(character: str, place: str) -> bool:
    """Whether a letter or digit can stand at a place of a mask."""
    if place == _LETTER:
        return character.isalpha()
    if place == _DIGIT:
        return has_digits_alone(character)
    return place == _EITHER or character == place.upper()


def write(code: str, mask: str) -> str | None:
    """The code with the punctuation of a mask; None: it does not fit."""
    places = places_of(mask)
    if len(code) != len(places) or not all(map(fits, code, places)):
        return None
    said = iter(code)
    return "".join(next(said) if one.isalnum() or one == _EITHER else one for one in mask)
