"""``tokens.txt``, as sherpa-onnx packs it: a symbol and its id on each line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from parley.asr.decoding.vocabulary import WORD_MARK, Vocabulary
from parley.errors import ModelLoadingError

BLANKS = ("<blk>", "<eps>", "<blank>")
"""Names of the blank, by the program that trained the model."""
_CONTROL = re.compile(r"<[^<>]+>|SIL")
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
# Other spaces, such as the ideographic one, are symbols.
_SPACES = " \t\r"
_LINE = re.compile(r"(?:([^ \t]+)[ \t]+)?([0-9]+)")
# Icefall's alphabet of bytes: printable characters for each, the ASCII ones for themselves.
_BYTE_RANGES = (
    (0x100, 0x11F),
    (0x20, 0x7E),
    (0x120, 0x131),
    (0x134, 0x13E),
    (0x141, 0x148),
    (0x14A, 0x17E),
    (0x180, 0x1A6),
)
_BYTE_ALPHABET: Mapping[str, int] = {
    chr(code): byte
    for byte, code in enumerate(code for first, last in _BYTE_RANGES for code in range(first, last + 1))
}


def read_symbols(file: Path) -> tuple[str, ...]:
    """The symbols by their id.

    Raises:
        ModelLoadingError: the file cannot be read, a line is no symbol and id, or the ids have gaps.
    """
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelLoadingError(f"{file} cannot be read: {error}") from error
    symbols: dict[int, str] = {}
    for line in filter(None, (line.strip(_SPACES) for line in lines)):
        match = _LINE.fullmatch(line)
        if match is None or int(match[2]) in symbols:
            raise ModelLoadingError(f"{file}: {line!r} is not a symbol and an id of its own")
        # A line with nothing but an id is that of the space.
        symbols[int(match[2])] = match[1] or " "
    if sorted(symbols) != list(range(len(symbols))):
        raise ModelLoadingError(f"{file}: the ids of {len(symbols)} symbols are not 0 to {len(symbols) - 1}")
    if not symbols:
        raise ModelLoadingError(f"{file} has no symbols")
    return tuple(symbols[number] for number in range(len(symbols)))


def find_blank(symbols: tuple[str, ...]) -> int:
    """The id of the blank.

    Raises:
        ModelLoadingError: there is none.
    """
    for name in BLANKS:
        if name in symbols:
            return symbols.index(name)
    raise ModelLoadingError(f"the tokens have no blank: none of {', '.join(BLANKS)}")


def to_vocabulary(symbols: tuple[str, ...]) -> Vocabulary:
    """What the symbols stand for: words, characters, or bytes in one of two spellings.

    A vocabulary without small letters writes small ones: it tells none from capitals.
    """
    control = frozenset(
        number
        for number, symbol in enumerate(symbols)
        if _CONTROL.fullmatch(symbol) and not _BYTE.fullmatch(symbol)
    )
    written = [symbol for number, symbol in enumerate(symbols) if number not in control]
    by_bytes = _is_byte_alphabet(written)
    spelled = [symbol for symbol in written if not _BYTE.fullmatch(symbol)]
    lower = not by_bytes and all(symbol == symbol.upper() for symbol in spelled)
    pieces: list[bytes] = []
    for symbol in symbols:
        if match := _BYTE.fullmatch(symbol):
            pieces.append(bytes([int(match[1], 16)]))
        elif by_bytes:
            pieces.append(b"".join(_byte_piece(character) for character in symbol))
        else:
            text = symbol.replace(" ", WORD_MARK)
            pieces.append((text.lower() if lower else text).encode())
    return Vocabulary(tuple(pieces), control)


def _is_byte_alphabet(symbols: list[str]) -> bool:
    """Whether the symbols are spelled in icefall's alphabet of bytes, with one that is not ASCII at least."""
    characters = {character for symbol in symbols for character in symbol if character != WORD_MARK}
    # The last characters of the alphabet stand for the leading bytes of characters; no text has them all.
    return characters <= _BYTE_ALPHABET.keys() and any(ord(character) >= 0x180 for character in characters)


def _byte_piece(character: str) -> bytes:
    if character == WORD_MARK:
        return WORD_MARK.encode()
    byte = _BYTE_ALPHABET.get(character)
    return character.encode() if byte is None else bytes([byte])
