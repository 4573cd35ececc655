"""What a text must be like that is spoken, or answered as if it had been."""

from __future__ import annotations

from parley.errors import InvalidMessageError
from parley.tts.plain_text import has_words

MAX_SPOKEN = 4_000
"""Characters of what is said at once."""


def check_spoken(text: str, name: str, most: int = MAX_SPOKEN) -> None:
    """Refuse a text that cannot be said.

    Args:
        text: to be said.
        name: of the field that holds it.
        most: characters that it may have.

    Raises:
        InvalidMessageError: it has no words, or is too long.
    """
    if not has_words(text):
        raise InvalidMessageError(f"{name} has no words")
    if len(text) > most:
        raise InvalidMessageError(f"{name} has {len(text)} characters; at most {most} are allowed")
