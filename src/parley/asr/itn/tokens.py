"""A text as tokens that know where they stand, so that all that is not replaced stays as it was."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_TOKEN = re.compile(r"[\w@+]+(?:['\N{RIGHT SINGLE QUOTATION MARK}.@+/:-]+[\w@+]+)*")
_CLOSE = re.compile(r"\s+")
_NEAR = re.compile(r"\s*[,.;\N{HORIZONTAL ELLIPSIS}]?\s+|-")


@dataclass(frozen=True)
class Token:
    """A word, number or address."""

    raw: str
    start: int
    end: int
    gap: str
    """What stands before it, from the token before on."""

    @property
    def word(self) -> str:
        """The token in lower case, with the plain apostrophe."""
        return self.raw.lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")

    @property
    def close(self) -> bool:
        """Whether only space parts it from the token before."""
        return bool(_CLOSE.fullmatch(self.gap))

    @property
    def near(self) -> bool:
        """Whether it may go on with what the token before began.

        Recognisers put commas and full stops where a speaker only takes breath.
        """
        return bool(_NEAR.fullmatch(self.gap))


@dataclass(frozen=True)
class Replacement:
    """What tokens ``first`` to ``end`` (exclusive) are written as."""

    first: int
    end: int
    written: str


def tokens_of(text: str) -> list[Token]:
    """The tokens of a text, in order."""
    found: list[Token] = []
    end = 0
    for match in _TOKEN.finditer(text):
        found.append(Token(match[0], match.start(), match.end(), text[end : match.start()]))
        end = match.end()
    return found


def replace(text: str, tokens: Sequence[Token], replacements: Iterable[Replacement]) -> str:
    """The text with these replacements, which are in order and do not overlap."""
    pieces: list[str] = []
    end = 0
    for one in replacements:
        pieces += [text[end : tokens[one.first].start], one.written]
        end = tokens[one.end - 1].end
    return "".join([*pieces, text[end:]])
