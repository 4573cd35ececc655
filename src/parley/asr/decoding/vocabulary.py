"""The tokens of a model, and the texts that they make."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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

    def pieces_of(self, ids: Sequence[int]) -> list[bytes | None]:
        """What each of a text's tokens stands for; None: it is no part of the text."""
        return [None if token in self.control else self.pieces[token] for token in ids]

    def text(self, ids: Iterable[int]) -> str:
        """What tokens say, with single spaces; bytes that are no character are left out."""
        return text_of_pieces(self.pieces_of(list(ids)))


def text_of_pieces(pieces: Iterable[bytes | None]) -> str:
    """What pieces say, with single spaces; bytes that are no character are left out."""
    raw = b"".join(piece for piece in pieces if piece)
    return " ".join(raw.decode(errors="ignore").replace(WORD_MARK, " ").split())


def _decoded(piece: bytes) -> str | None:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return None
