"""Comparisons of what was said with what was understood."""

from __future__ import annotations

from typing import Any

from parley.protocol import ToolRequest
from simulate.plain_words import counted_words, mentions
from simulate.scenario import Alternatives, ExpectedCall


def word_errors(said: str, heard: str) -> tuple[int, int]:
    """Words that were left out, put in or exchanged, and how many were said."""
    wanted, given = counted_words(said), counted_words(heard)
    row = list(range(len(given) + 1))
    for count, word in enumerate(wanted, 1):
        diagonal, row[0] = row[0], count
        for index, other in enumerate(given, 1):
            diagonal, row[index] = (
                row[index],
                min(row[index] + 1, row[index - 1] + 1, diagonal + (word != other)),
            )
    return row[-1], len(wanted)


def lacking(wanted: tuple[Alternatives, ...], text: str) -> list[str]:
    """Which of the things that have to be in a text are not, whichever of its wordings one has."""
    return [
        " | ".join(phrases) for phrases in wanted if not any(mentions(text, phrase) for phrase in phrases)
    ]


def call_matches(expected: ExpectedCall, request: ToolRequest) -> bool:
    """Whether a call has this name and exactly these arguments; case does not matter, nor ``"10"`` for 10."""
    return expected.name == request.name and _plain(expected.arguments) == _plain(request.arguments)


def _plain(arguments: dict[str, Any]) -> dict[str, str]:
    return {name: str(value).casefold() for name, value in arguments.items() if value is not None}
