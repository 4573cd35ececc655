"""Words that are said letter by letter: "that's spelled j o h n" becomes "that's spelled john"."""

from __future__ import annotations

from collections.abc import Sequence

from parley.asr.written.english.units import Unit, letter_at
from parley.asr.written.tokens import Replacement, Token, replace, tokens_of

_CUES = frozenset("spelled spelt spells spell spelling".split())
_NAMES = frozenset(("name", "surname", "username"))
_LINKS = frozenset(("is", "it", "as", "like", "it's", "that's"))
_WORDS = frozenset(("a", "i"))
"""Letters that are words as well."""
_SHORTEST = 2
_SHORTEST_NAME = 3


def write_spelling(text: str) -> str:
    """Join the letters where something says that they spell a word."""
    tokens = tokens_of(text)
    found: list[Replacement] = []
    at = 0
    while at < len(tokens):
        run = _run_at(tokens, at)
        if run and len("".join(one.text for one in run)) >= _shortest(tokens, at, run):
            written = "".join(one.text for one in run)
            upper = tokens[at].raw[:1].isupper()
            found.append(Replacement(at, run[-1].end, written.capitalize() if upper else written))
        at = run[-1].end if run else at + 1
    return replace(text, tokens, (one for one in found if one.end > one.first)) if found else text


def _run_at(tokens: Sequence[Token], first: int) -> list[Unit]:
    run: list[Unit] = []
    at = first
    while at < len(tokens) and (at == first or tokens[at].near) and (unit := letter_at(tokens, at)):
        run.append(unit)
        at = unit.end
    # "spelled a n n a i think"
    while run and _is_word(tokens, run[-1].end - 1):
        run.pop()
    return run


def _is_word(tokens: Sequence[Token], at: int) -> bool:
    """Whether this letter begins what is said next."""
    return at + 1 < len(tokens) and tokens[at].word == "i" and tokens[at + 1].close


def _shortest(tokens: Sequence[Token], at: int, run: Sequence[Unit]) -> int:
    """How many letters it takes here to be a word that is spelled."""
    never = len(tokens) + sum(len(one.text) for one in run) + 1
    examples = sum(tokens[one.end - 1].word != one.text and len(tokens[one.end - 1].word) > 2 for one in run)
    if examples >= _SHORTEST:
        return _SHORTEST
    while at and tokens[at - 1].word in _LINKS:
        at -= 1
        if at and tokens[at - 1].word in _NAMES:
            return _SHORTEST_NAME
    return _SHORTEST if at and tokens[at - 1].word in _CUES else never
