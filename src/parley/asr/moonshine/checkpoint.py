"""A folder with Moonshine's networks and its vocabulary.

===========================  ============================================================
``encoder_model.ort``        audio to one vector for each 24 ms
``decoder_model_merged.ort`` these vectors and the tokens so far to the next token
``tokenizer.bin``            every token's bytes by its id, each with its length before it
===========================  ============================================================
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from parley.errors import ModelLoadingError

DEFAULT = "moonshine-tiny-en"
ENCODER, DECODER, TOKENIZER = "encoder_model.ort", "decoder_model_merged.ort", "tokenizer.bin"
FILES = (ENCODER, DECODER, TOKENIZER)
START, END = 1, 2
"""Ids of the tokens before and after a text; no id up to ``END`` is a part of it."""
_WORD_MARK = "\N{LOWER ONE EIGHTH BLOCK}"
_LONG = 128
"""Lengths from here on take two bytes, the lower one first."""


@dataclass(frozen=True)
class Vocabulary:
    """What the tokens stand for."""

    pieces: tuple[bytes, ...]
    """By id. A piece may be a part of a character."""

    @property
    def spelled(self) -> tuple[str, ...]:
        """The pieces as text, with ``▁`` before a word; those that are no text by themselves are empty."""
        return tuple(
            "" if number <= END else _decoded(piece) or "" for number, piece in enumerate(self.pieces)
        )

    def text(self, ids: Iterable[int]) -> str:
        """What tokens say, with single spaces; bytes that are no character are left out."""
        raw = b"".join(self.pieces[token] for token in ids if token > END)
        return " ".join(raw.decode(errors="ignore").replace(_WORD_MARK, " ").split())


def read_vocabulary(file: Path) -> Vocabulary:
    """Read ``tokenizer.bin``.

    Raises:
        ModelLoadingError: it is not one.
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ModelLoadingError(f"{file} cannot be read: {error}") from error
    pieces: list[bytes] = []
    at = 0
    try:
        while at < len(content):
            length, at = content[at], at + 1
            if length >= _LONG:
                length, at = length - _LONG + _LONG * content[at], at + 1
            if at + length > len(content):
                raise IndexError  # noqa: TRY301 - the file ends within a piece, as it may within a length
            pieces.append(content[at : at + length])
            at += length
    except IndexError:
        raise ModelLoadingError(f"{file} ends within token {len(pieces)}") from None
    if len(pieces) <= END + 1:
        raise ModelLoadingError(f"{file} has {len(pieces)} tokens, and so no text")
    return Vocabulary(tuple(pieces))


def _decoded(piece: bytes) -> str | None:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return None
