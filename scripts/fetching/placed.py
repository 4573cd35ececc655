"""The folders of entries below ``models/``, and checks of their content."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import asdict
from pathlib import Path

from fetching.manifest import (
    ROOT,
    FetchError,
    Made,
    Pinned,
    PinnedFile,
    Snapshot,
    Weights,
    digest_of,
    read_snapshot,
)

RECORD = ".weights.json"
"""In an entry's folder: the checksum of each file, and its size and time when it was checked."""

INCLUDED = ROOT / "models"
"""Folder of included entries; it does not depend on where all others are."""
NOTE = ".source.json"
"""In a made folder: its origin (``sha256``, ``adapter``), the program's version (``converter``), and
checksums of its files (``files``). In a published one: ``repository``, ``commit``, and sizes and checksums of
its files.
"""

DESCRIPTION = "recognizer.json"
"""In the folder of an entry that has ``recognizer``: that, for the model that loads the folder."""


def describe(models: Path, entry: Weights) -> None:
    """Write what the entry says about its files beside them, unless it is there."""
    file = models / entry.name / DESCRIPTION
    text = json.dumps(dict(entry.recognizer)) + "\n"
    if entry.recognizer and (not file.is_file() or file.read_text(encoding="utf-8") != text):
        write_whole(file, text)


def write_whole(file: Path, text: str) -> None:
    """Replace a file at once; a link in its place is replaced, and what it points to is not written.

    Raises:
        OSError: it cannot be written; then the file is as it was.
    """
    # Of a name of its own: another process may write the file too, and others may write to the folder.
    draft = file.with_name(f".{file.name}.{secrets.token_hex(8)}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        with open(descriptor, "w", encoding="utf-8") as output:  # noqa: PTH123 - a descriptor
            output.write(text)
        draft.replace(file)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


class Placed:
    """The folder of a pinned entry. A checked file is not read again until it changes."""

    def __init__(self, models: Path, entry: Pinned) -> None:
        self.folder = models / entry.name
        self.entry = entry
        self._record = self._read()

    def target(self, file: PinnedFile) -> Path:
        """Path of a file."""
        return self.folder / file.name

    def missing(self, *, anew: bool = False) -> list[PinnedFile]:
        """Files that are absent or wrong; ``anew``: all files are read, whatever the record contains."""
        missing = [file for file in self.entry.files if not self._is_right(file, anew=anew)]
        self._write()
        return missing

    def _is_right(self, file: PinnedFile, *, anew: bool) -> bool:
        target = self.target(file)
        if not target.is_file():
            self._record.pop(file.name, None)  # another file that comes there may have the same time
            return False
        stat = target.stat()
        seen = [file.sha256, stat.st_size, stat.st_mtime_ns]
        if self._record.get(file.name) == seen and not anew:
            return True
        if file.remote.matches(target):
            self._record[file.name] = seen
            return True
        self._record.pop(file.name, None)
        return False

    def _read(self) -> dict[str, list[object]]:
        try:
            found = json.loads((self.folder / RECORD).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _write(self) -> None:
        """Write the record where possible: a folder may be shared and read-only."""
        if self.folder.is_dir() and self._record != self._read():
            try:
                write_whole(self.folder / RECORD, json.dumps(self._record, indent=1) + "\n")
            except OSError:
                return


def write_origin(folder: Path, snapshot: Snapshot) -> None:
    """Note what has come into the folder of a published entry."""
    write_whole(folder / NOTE, json.dumps(asdict(snapshot), indent=1) + "\n")


def read_origin(folder: Path) -> Snapshot | None:
    """What has come into the folder of a published entry; no files in a note without checksums."""
    try:
        note = json.loads((folder / NOTE).read_text(encoding="utf-8"))
        return read_snapshot({"files": (), **note}, note["repository"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError, FetchError):
        return None


def wrong_files(folder: Path, snapshot: Snapshot, *, anew: bool) -> list[str]:
    """Names of the files that are absent or have another size; ``anew``: or another content."""
    return [
        file.name
        for file in snapshot.files
        if not (folder / file.name).is_file()
        or (folder / file.name).stat().st_size != file.size
        or (anew and not file.matches(folder / file.name))
    ]


def is_made(models: Path, entry: Made, source: Pinned, *, anew: bool = False) -> bool:
    """Whether an entry's folder was made of the very file that the manifest names.

    ``anew``: its files are read too and compared with its note.
    """
    folder = models / entry.name
    try:
        note = json.loads((folder / NOTE).read_text(encoding="utf-8"))
        files: dict[str, str] = note["files"]
        if note["sha256"] != source.files[0].sha256 or note["converter"] != entry.version or not files:
            return False
        adapter: dict[str, str] = note["adapter"]
        if bool(adapter) != bool(entry.adapter) or not _are(INCLUDED / entry.adapter, adapter):
            return False
        if not anew:
            return all((folder / name).is_file() for name in files)
        return _are(folder, files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _are(folder: Path, files: dict[str, str]) -> bool:
    return all(digest_of(folder / name) == known for name, known in files.items())
