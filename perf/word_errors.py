"""The distance between what was said and what was understood."""

from __future__ import annotations

import re
from collections.abc import Sequence

from parley.turns.interruption import as_said

_WORDS = re.compile(r"[a-z0-9']+")


def spoken_words(text: str) -> list[str]:
    """The words that count: without case, punctuation and dashes, and with figures as words."""
    return as_said(_WORDS.findall(text.lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")))


def word_errors(said: Sequence[str], heard: Sequence[str]) -> int:
    """Words to replace, remove or add to get from one to the other (Levenshtein distance)."""
    row = list(range(len(heard) + 1))
    for i, word in enumerate(said, 1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(heard, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (word != other))
    return row[-1]
