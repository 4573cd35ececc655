"""The tokens of a model, and the texts that they make."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

WORD_MARK = "\N{LOWER ONE EIGHTH BLOCK}"
"""SentencePiece's mark of the space before a word."""


@dataclass(frozen=True)
class Vocabulary:
    """What the tokens stand for."""

    pieces: tuple[bytes, ...]
    """By id, with :data:`WORD_MARK` for a space. A piece may be a part of a character."""
    control: frozenset[int]
    """Ids of tokens that are no part of a text."""

    @property
    def spelled(self) -> tuple[str, ...]:
        """The pieces as text; those that are no text by themselves are empty."""
        return tuple(
            "" if number in self.control else _decoded(piece) or ""
            for number, piece in enumerate(self.pieces)
        )

    def text(self, ids: Iterable[int]) -> str:
        """What tokens say, with single spaces; bytes that are no character are left out."""
        raw = b"".join(self.pieces[token] for token in ids if token not in self.control)
        return " ".join(raw.decode(errors="ignore").replace(WORD_MARK, " ").split())


def _decoded(piece: bytes) -> str | None:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return None
