"""What every synthesizer asks of its text."""

from __future__ import annotations

import unicodedata


def plain_text(text: str) -> str:
    """``text`` with a space for every control character, of the same length.

    espeak-ng reads embedded commands after U+0001 and ends at U+0000; nothing is said for any of them.
    """
    return "".join(" " if unicodedata.category(char) in ("Cc", "Cs") else char for char in text)


def has_words(text: str) -> bool:
    """Whether there is a letter or digit of any script: without one the agent speaks no segment of a text."""
    return any(char.isalnum() for char in text)


def is_speakable(text: str) -> bool:
    """Whether there is anything but space and punctuation."""
    return any(unicodedata.category(char)[0] in "LNSM" for char in text)
