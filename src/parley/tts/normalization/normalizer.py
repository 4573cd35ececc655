"""Written text to spoken text, in the languages for which there is a grammar."""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from parley.tts.normalization.alignment import WrittenWord, align
from parley.tts.plain_text import plain_text

Grammar: TypeAlias = Callable[[str], str]
"""Writes out what is written in figures, signs and abbreviations."""

# "[laugh]", "[clear throat]": something that a model is to do rather than to say.
_TAG = re.compile(r"\[[^\W\d_][^\W\d_ -]*(?:[ -][^\W\d_]+)*\]")
# Letters and plain punctuation, with no full stop but at the end: nothing to write out.
_PLAIN = re.compile(r"(?:[^\W\d_]|[\s,;:!?'\"()\-\u2010-\u2015\u2018-\u201d\u2026])*(?:\.+\s*)?")
# Some grammars leave one.
_SPACE_BEFORE_MARK = re.compile(r"(?<!\s)\s+(?=[.,;:!?](?:\s|$))")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SpokenText:
    """What is to be said."""

    text: str
    """May be empty."""
    words: tuple[WrittenWord, ...]
    """All words of the written text, in order."""


class TextNormalizer:
    """See the package.

    Args:
        grammars: by language ("en"); text of other languages passes unchanged.
        tags: whether the voice knows tags such as ``[laugh]``; else they are left out.
    """

    def __init__(self, grammars: Mapping[str, Grammar], *, tags: bool) -> None:
        self._grammars = dict(grammars)
        self._tags = tags

    def normalize(self, text: str, language: str) -> SpokenText:
        """The text to say for ``text``; takes milliseconds, and must not run in two threads at once."""
        return self._written_out(text, self._grammars.get(language, str))

    def unchanged(self, text: str) -> SpokenText:
        """The text as it is written, but for tags and what cannot be said; takes no time."""
        return self._written_out(text, str)

    def _written_out(self, text: str, grammar: Grammar) -> SpokenText:
        clean = plain_text(text)
        parts: list[str] = []
        end = 0
        for tag in _TAG.finditer(clean):
            parts.append(_apply(grammar, clean[end : tag.start()]))
            if self._tags:
                parts.append(tag[0])
            end = tag.end()
        parts.append(_apply(grammar, clean[end:]))
        # Emoji that no grammar has turned into words are not said.
        said = "".join(char for char in " ".join(parts) if not _is_emoji(char))
        spoken = " ".join(said.split())
        return SpokenText(spoken, align(clean, spoken))


def _is_emoji(character: str) -> bool:
    return character in "\ufe0f\u200d" or unicodedata.category(character) == "So"


def _apply(grammar: Grammar, text: str) -> str:
    if _PLAIN.fullmatch(text):
        return text
    try:
        return _SPACE_BEFORE_MARK.sub("", grammar(text))
    except Exception as error:  # noqa: BLE001 - said as it is written, and logged
        # Without its words, which may be the user's.
        _log.error("a text of %d characters could not be normalised: %s", len(text), type(error).__name__)
        return text
