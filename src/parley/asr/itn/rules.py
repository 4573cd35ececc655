"""Which rules a language has."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from parley.asr.itn.english.addresses import write_addresses
from parley.asr.itn.english.numbers import write_digits, write_spelling

_MOST_WORDS = 200


class InverseNormalizer(Protocol):
    """Rewrites what a recogniser wrote; never fails, and does nothing to what it has written itself.

    A text of more than 200 words stays as it is: the rules' time grows with the square of the words that
    they fit, and some look ahead as far as these go.
    """

    def __call__(self, text: str) -> str:
        """The text as a person would write it; the same string if there is nothing to do."""
        ...


# Addresses first: they have digits and spelled letters of their own.
_RULES: dict[str, Sequence[Callable[[str], str]]] = {
    "en": (write_addresses, write_spelling, write_digits),
}


def inverse_normalizer(language: str) -> InverseNormalizer:
    """The rules of a language; those of a language without any return every text as it is.

    Args:
        language: primary language ("en").
    """
    rules = _RULES.get(language, ())

    def write(text: str) -> str:
        if len(tokens_of(text)) > _MOST_WORDS:
            return text
        # What one rule has written may complete what another looks for. Each change makes one token of
        # several, so that this comes to an end.
        while True:
            before = text
            for rule in rules:
                text = rule(text)
            if text == before:
                return text

    return write


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
        """It in lower case, with the plain apostrophe."""
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
