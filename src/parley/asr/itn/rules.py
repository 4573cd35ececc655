"""Which rules a language has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from parley.asr.itn.english.addresses import write_addresses
from parley.asr.itn.english.numbers import write_digits, write_spelling
from parley.asr.itn.tokens import tokens_of

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
