"""What can be downloaded (``build/checkpoints.toml``), and what exactly it was (the lock beside it).

The manifest names a repository of a model hub and patterns of file names. The lock pins each
to a commit, with size and checksum of every file; it is written by ``--record``. What is not in the
lock is checked against the sizes and checksums that the hub announces.
"""

from __future__ import annotations

import json
import os
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MANIFEST = ROOT / "build/checkpoints.toml"
LOCK = ROOT / "build/checkpoints.lock.json"


class FetchError(Exception):
    """The download cannot go on; the message says what to do."""


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository."""

    name: str
    """Path in the repository, with forward slashes."""
    size: int
    sha256: str | None = None
    git_blob: str | None = None
    """Git's own checksum, which the hub gives for small files instead."""


@dataclass(frozen=True)
class Snapshot:
    """Files at one commit of a repository."""

    commit: str
    files: tuple[RemoteFile, ...]


@dataclass(frozen=True)
class Weights:
    """An entry of the manifest."""

    name: str
    """Of the folder below ``models/``."""
    repository: str
    include: tuple[str, ...]
    """Patterns of file names."""
    revision: str
    about: str
    pinned: Snapshot | None
    """What the lock says."""


def load(manifest: Path = MANIFEST, lock: Path = LOCK) -> dict[str, Weights]:
    """All entries by name.

    Raises:
        FetchError: a file cannot be understood.
    """
    try:
        entries = tomllib.loads(manifest.read_text(encoding="utf-8")).get("weights", {})
        pins = json.loads(lock.read_text(encoding="utf-8")) if lock.exists() else {}
        return {name: _entry(name, entry, pins.get(name)) for name, entry in entries.items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FetchError(f"{manifest} or {lock.name} cannot be used: {error!r}") from error


def record(name: str, snapshot: Snapshot, lock: Path = LOCK) -> None:
    """Pin ``name`` in the lock."""
    pins: dict[str, Any] = json.loads(lock.read_text(encoding="utf-8")) if lock.exists() else {}
    pins[name] = asdict(snapshot)
    text = json.dumps(dict(sorted(pins.items())), indent=2) + "\n"
    temporary = lock.with_suffix(".new")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, lock)  # noqa: PTH105 - says what it does


def check_name(name: str) -> str:
    """A file name that stays inside its folder.

    Raises:
        FetchError: it does not.
    """
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise FetchError(f"the hub names a file {name!r}, which does not belong into a folder")
    return name


def _entry(name: str, entry: dict[str, Any], pin: dict[str, Any] | None) -> Weights:
    pinned = None
    if pin is not None:
        files = tuple(RemoteFile(**{**file, "name": check_name(file["name"])}) for file in pin["files"])
        pinned = Snapshot(pin["commit"], files)
    return Weights(
        check_name(name),
        entry["repository"],
        tuple(entry["include"]),
        entry.get("revision", "main"),
        entry.get("about", ""),
        pinned,
    )
