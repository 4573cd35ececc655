"""Folders that are made of other weights, as the program that made them notes it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from fetching.manifest import ROOT, Made, Pinned

INCLUDED = ROOT / "models"
"""Where included entries are, wherever all others are kept."""

NOTE = ".source.json"
"""In the folder: what it was made of (``sha256``, ``adapter``), the program's version (``converter``), and
checksums of its files (``files``)."""


def is_made(models: Path, entry: Made, source: Pinned, *, anew: bool = False) -> bool:
    """Whether a folder is there, made of the very file that the manifest names.

    Args:
        models: folder of all weights.
        entry: what is made.
        source: what it is made of.
        anew: also read its files and compare them with what the note says.
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
    return all(_digest(folder / name) == known for name, known in files.items())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
