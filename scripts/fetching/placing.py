"""The files of pinned entries in ``models/``, and whether they are what they should be."""

from __future__ import annotations

import json
from pathlib import Path

from fetching.download import matches
from fetching.manifest import Pinned, PinnedFile

RECORD = ".weights.json"
"""In an entry's folder: of each file its checksum, and the size and time that it had when it was checked."""


class Placed:
    """An entry's folder; a file that was found right is not read again until it changes."""

    def __init__(self, models: Path, entry: Pinned) -> None:
        """Look at the record.

        Args:
            models: folder of all weights.
            entry: whose files.
        """
        self.folder = models / entry.name
        self.entry = entry
        self._record = self._read()

    def target(self, file: PinnedFile) -> Path:
        """Where a file belongs."""
        return self.folder / file.name

    def missing(self, *, anew: bool = False) -> list[PinnedFile]:
        """Files that are not there as they should be.

        Args:
            anew: read all files, whatever the record says.
        """
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
        if stat.st_size == file.size and matches(target, file.remote):
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
        """Keep what was found, where that is possible: a folder may be shared and read-only."""
        if self.folder.is_dir() and self._record != self._read():
            try:
                (self.folder / RECORD).write_text(json.dumps(self._record, indent=1) + "\n", encoding="utf-8")
            except OSError:
                return
