"""Finds the files of an agent's knowledge."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from parley.errors import ModelLoadingError

MAX_FILES = 500
MAX_FILE_BYTES = 16 << 20
MAX_BYTES = 64 << 20
"""Of all files of an agent together."""
_MOST_ENTRIES = 50_000
"""Names that the patterns of an agent may look at."""
SUFFIXES = (".md", ".markdown", ".txt", ".html", ".htm", ".pdf")
_WILD = frozenset("*?[")


class KnowledgeError(ModelLoadingError):
    """A pattern or a file cannot be used; the message names it."""


@dataclass(frozen=True)
class Document:
    """A file that a pattern matches."""

    path: Path
    """Absolute, with symbolic links resolved."""
    name: str
    """For the language model and for clients: relative to the folder of the pattern."""
    stamp: tuple[int, int, int] = field(repr=False)
    """Its inode, size and time of change."""


def find_documents(folder: Path, patterns: Sequence[str]) -> list[Document]:
    """The files that patterns match, by path, each once.

    A relative pattern matches files below ``folder``, an absolute one files below the part of it that has no
    wildcard. ``*``, ``?`` and ``[...]`` match within one name, ``**`` any number of folders. Names that begin
    with a dot match nothing. A symbolic link may not lead out of that folder.

    Raises:
        KnowledgeError: a pattern matches nothing, a file is of another kind or too large, there are too many.
    """
    found: dict[Path, Document] = {}
    entries = _Entries()
    size = 0
    for pattern in patterns:
        matched = False
        for document in _matched(folder, pattern, entries):
            matched = True
            if document.path in found:
                continue
            found[document.path] = document
            size += document.stamp[1]
            if len(found) > MAX_FILES:
                raise KnowledgeError(f"{document.name}: an agent may have {MAX_FILES} files of knowledge")
            if size > MAX_BYTES:
                raise KnowledgeError(
                    f"{document.name}: the files have more than {MAX_BYTES >> 20} MiB together"
                )
        if not matched:
            raise KnowledgeError(f"no file matches {pattern!r}")
    return [found[path] for path in sorted(found)]


def read_document(document: Document) -> bytes:
    """The content of a file.

    Raises:
        KnowledgeError: it cannot be read, or has grown too large.
    """
    try:
        with document.path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise KnowledgeError(f"{document.name} cannot be read: {error.strerror}") from error
    if len(raw) > MAX_FILE_BYTES:
        raise KnowledgeError(f"{document.name} has more than {MAX_FILE_BYTES >> 20} MiB")
    return raw


class _Entries:
    """Counts the names that are looked at."""

    def __init__(self) -> None:
        self._left = _MOST_ENTRIES

    def of(self, folder: Path) -> Iterator[os.DirEntry[str]]:
        """The names in a folder, but those that begin with a dot."""
        with os.scandir(folder) as entries:
            for entry in entries:
                self._left -= 1
                if self._left < 0:
                    raise KnowledgeError(
                        f"the patterns look at more than {_MOST_ENTRIES} files; name a folder"
                    )
                if not entry.name.startswith("."):
                    yield entry


def _matched(folder: Path, pattern: str, entries: _Entries) -> Iterator[Document]:
    parts = Path(pattern).parts
    if not parts or ".." in parts or "\0" in pattern:
        raise KnowledgeError(f"{pattern!r} is no pattern: it must not be empty or have '..' or a NUL")
    root = folder
    if Path(pattern).is_absolute():
        fixed = next((at for at, part in enumerate(parts) if _WILD & set(part)), len(parts) - 1)
        root, parts = Path(*parts[:fixed]), parts[fixed:]
    root = root.resolve()
    try:
        for path in _walk(root, parts, entries):
            yield _document(root, path)
    except OSError as error:
        raise KnowledgeError(f"{pattern!r}: {error.filename} cannot be read: {error.strerror}") from error


def _walk(folder: Path, parts: Sequence[str], entries: _Entries) -> Iterator[Path]:
    head, rest = parts[0], parts[1:]
    if head == "**":
        yield from _walk(folder, rest or ("*",), entries)
        for entry in entries.of(folder):
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(folder / entry.name, parts, entries)
        return
    for entry in entries.of(folder):
        if fnmatchcase(entry.name, head):
            if rest and entry.is_dir():
                yield from _walk(folder / entry.name, rest, entries)
            elif not rest and entry.is_file():
                yield folder / entry.name


def _document(root: Path, path: Path) -> Document:
    name = path.relative_to(root).as_posix()
    if name.encode(errors="ignore").decode() != name:
        raise KnowledgeError(f"{name!a}: the name is not UTF-8")
    target = path.resolve()
    if not target.is_relative_to(root):
        raise KnowledgeError(f"{name} is a link that leads out of {root}")
    if path.suffix.lower() not in SUFFIXES:
        raise KnowledgeError(f"{name} is none of {', '.join(SUFFIXES)}")
    state = target.stat()
    if state.st_size > MAX_FILE_BYTES:
        raise KnowledgeError(f"{name} has more than {MAX_FILE_BYTES >> 20} MiB")
    return Document(target, name, (state.st_ino, state.st_size, state.st_mtime_ns))
