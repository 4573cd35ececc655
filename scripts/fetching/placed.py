"""The folders of entries below ``models/``, and checks of their content."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path

import msgspec
import pooch

from fetching.manifest import NOTE, ROOT, Made, Pinned, PinnedFile, Published

RECORD = ".weights.json"
"""In an entry's folder: the checksum of each file, and its size and time when it was checked."""

INCLUDED = ROOT / "models"
"""Folder of included entries; it does not depend on where all others are."""
DESCRIPTION = "recognizer.json"
"""In the folder of an entry that has ``recognizer``: that, for the model that loads the folder."""


def describe(models: Path, entry: Pinned | Published) -> None:
    """Write what the entry says about its files beside them, unless it is there."""
    notes = {DESCRIPTION: entry.recognizer}
    if isinstance(entry, Published):
        notes[NOTE] = msgspec.to_builtins(entry.pinned)
    for name, note in notes.items():
        file, text = models / entry.name / name, json.dumps(note) + "\n"
        if note and (not file.is_file() or file.read_text(encoding="utf-8") != text):
            write_whole(file, text)


def write_whole(file: Path, text: str) -> None:
    """Replace a file at once; a link in its place is replaced, and what it points to is not written.

    Raises:
        OSError: it cannot be written; then the file is as it was.
    """
    # In a folder of its own: another process may write the file too, and others may write to this folder.
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=".new-") as folder:
        draft = Path(folder, file.name)
        draft.write_text(text, encoding="utf-8")
        draft.replace(file)


def missing_of(models: Path, entry: Pinned | Published, *, anew: bool = False) -> list[PinnedFile]:
    """Files of an entry that are absent or wrong. A checked file is not read again until it changes.

    ``anew``: all files are read, whatever was recorded.
    """
    folder = models / entry.name
    try:
        before = msgspec.json.decode((folder / RECORD).read_bytes(), type=dict[str, list[str | int]])
    except (OSError, ValueError):
        before = {}
    record = {}
    for file in entry.files:
        path = folder / file.name
        if path.is_file():
            status = path.stat()
            seen: list[str | int] = [file.sha256, status.st_size, status.st_mtime_ns]
            if (before.get(file.name) == seen and not anew) or file.matches(path):
                record[file.name] = seen
    if folder.is_dir() and record != before:
        with contextlib.suppress(OSError):  # a folder may be shared and read-only
            write_whole(folder / RECORD, json.dumps(record, indent=1) + "\n")
    return [file for file in entry.files if file.name not in record]


class _MadeNote(msgspec.Struct):
    sha256: str
    converter: int
    adapter: dict[str, str]
    files: dict[str, str]


def is_made(models: Path, entry: Made, source: Pinned, *, anew: bool = False) -> bool:
    """Whether an entry's folder was made of the very file that the manifest names.

    ``anew``: its files are read too and compared with its note.
    """
    folder = models / entry.name
    try:
        note = msgspec.json.decode((folder / NOTE).read_bytes(), type=_MadeNote)
        return (
            (note.sha256, note.converter) == (source.files[0].sha256, entry.version)
            and bool(note.files)
            and bool(note.adapter) == bool(entry.adapter)
            and _are(INCLUDED / entry.adapter, note.adapter)
            and (_are(folder, note.files) if anew else all((folder / name).is_file() for name in note.files))
        )
    except (OSError, ValueError):
        return False


def _are(folder: Path, files: dict[str, str]) -> bool:
    return all(pooch.file_hash(folder / name) == known for name, known in files.items())
