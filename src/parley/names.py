"""Suggestions for names that are misspelt, or of what is not there."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Sequence

from parley.errors import InvalidMessageError

_CLOSE = 0.6
"""Least similarity, 0 to 1, of a name that is suggested."""
_LONGEST = 64
"""Characters of a name that are compared; the comparison takes the product of both lengths."""


def suggest_name(name: str, known: Iterable[str], *, prefix: str = "", close: float = _CLOSE) -> str:
    """`` (did you mean NAME?)`` with the nearest known name behind ``prefix``; empty: none is near."""
    found = difflib.get_close_matches(name[:_LONGEST], list(known), n=1, cutoff=close)
    return f" (did you mean {prefix}{found[0]}?)" if found else ""


def check_names(names: Sequence[str], field: str, what: str) -> None:
    """Refuse a name that two entries of a list of options have.

    Raises:
        InvalidMessageError: the text names the field of the second.
    """
    for number, name in enumerate(names):
        if names.index(name) < number:
            raise InvalidMessageError(f"{field}[{number}].name: there are two {what} {name!r}")


def check_known(name: str, known: Collection[str], problem: str) -> None:
    """Refuse a name that is none of ``known``; ``problem``, with the field, comes before it in the text.

    Raises:
        InvalidMessageError: it is none.
    """
    if name not in known:
        raise InvalidMessageError(f"{problem} {name!r}{suggest_name(name, known)}")


def nearest_first(name: str, known: Iterable[str]) -> list[str]:
    """The known names, those first that are spelt most like ``name``."""
    name = name[:_LONGEST]
    return sorted(known, key=lambda other: -difflib.SequenceMatcher(None, name, other).ratio())
