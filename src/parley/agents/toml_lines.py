"""In which line of a TOML file a value begins, which ``tomllib`` does not tell."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any, TypeAlias

Path: TypeAlias = tuple[str | int, ...]
"""Keys, and the numbers of items of arrays of tables."""
MAX_PARTS = 32
"""Of a key with dots. The memory that ``tomllib`` takes grows with the square of them."""

# Strings and comments are skipped as a whole; the rest is what ends a key or changes the depth of a value.
# A string that does not end is a token too: otherwise every quote in it may begin a search for another end.
_TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?(?:"{3,5}|\Z)'
    r"|'''.*?(?:'{3,5}|\Z)"
    r'|"(?:\\.|[^"\\\n])*"?'
    r"|'[^'\n]*'?"
    r"|\#[^\n]*"
    r"|[\[\]{}=\n]"
    r"""|[^"'#\[\]{}=\n]+""",
    re.DOTALL,
)


def find_line(text: str, path: Path) -> int:
    """The line, from 1, in which the value at ``path`` begins.

    A value inside another one, such as an item of an array, has the line of the key of that statement. Of a
    path that is not there, the longest part that is counts. 1: nothing of it is there.
    """
    lines = dict(_values(text))
    for length in range(len(path), 0, -1):
        if (line := lines.get(path[:length])) is not None:
            return line
    return 1


def find_long_key(text: str) -> int | None:
    """The line of the first key, or header of a table, with more than :data:`MAX_PARTS` parts.

    The text may be no TOML. Keys in inline tables are not looked at.
    """
    for statement, line in _statements(text):
        if statement.count(".") >= MAX_PARTS:
            bare = (piece for piece in _TOKEN.findall(statement) if piece[0] not in "\"'")
            if sum(piece.count(".") for piece in bare) >= MAX_PARTS:
                return line
    return None


def _values(text: str) -> Iterator[tuple[Path, int]]:
    """All keys and tables, with their lines; the last table of a name has its own."""
    table: Path = ()
    counts: dict[Path, int] = {}
    for statement, line in _statements(text):
        if statement.startswith("["):
            table = _inside(counts, _key(statement.strip("[] \t")))
            if statement.startswith("[["):
                counts[table] = counts.get(table, -1) + 1
                table = (*table, counts[table])
            yield table, line
        else:
            path = (*table, *_key(statement))
            for length in range(len(table) + 1, len(path) + 1):
                yield path[:length], line


def _statements(text: str) -> Iterator[tuple[str, int]]:
    """The headers of tables, and the keys of values, with their lines."""
    line = begin = 1
    depth = 0
    statement, in_value = "", False
    for piece in (match[0] for match in _TOKEN.finditer(f"{text}\n")):
        if piece == "\n" and not depth:
            if statement.strip() and not in_value:
                yield statement.strip(), begin
            statement, in_value = "", False
        elif piece == "=" and not in_value:
            yield statement.strip(), begin
            in_value = True
        elif in_value:
            depth += (piece in "[{") - (piece in "]}") if len(piece) == 1 else 0
        elif not piece.startswith("#"):
            begin = begin if statement.strip() else line
            statement += piece
        line += piece.count("\n")


def _key(text: str) -> Path:
    """The parts of a key, which may be quoted and have dots."""
    value: Any = tomllib.loads(f"{text} = 0")
    parts: list[str] = []
    while isinstance(value, dict):
        ((part, value),) = value.items()
        parts.append(part)
    return tuple(parts)


def _inside(counts: dict[Path, int], key: Path) -> Path:
    """The path of a table: below an array of tables it belongs to the last item."""
    path: Path = ()
    for number, part in enumerate(key, 1):
        path = (*path, part)
        if path in counts and number < len(key):
            path = (*path, counts[path])
    return path
