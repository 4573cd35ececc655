"""The manifest of weights (``build/checkpoints.toml``).

An entry of ``[weights]`` is one of:

- *published*: files of a model hub's repository, by patterns of their names. The lock beside the manifest
  pins each to a commit, with size and checksum of every file. The first download of an entry writes it, and
  is checked against what the hub announces; ``--lock`` replaces it by the newest version.
- *pinned*: files that the manifest itself names with size and checksum, each with its places: in a
  repository of the hub, and in packages of a package registry.
- *made*: a folder that a program of the project makes of another entry.
- *installed*: a file of a Python package that ``make setup`` installs.
- *included*: a folder that is part of the project.
"""

from __future__ import annotations

import contextlib
import fnmatch
import tomllib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import msgspec
import pooch
from msgspec import Meta, Struct

ROOT = Path(__file__).resolve().parents[2]
MANIFEST = ROOT / "build/checkpoints.toml"
LOCK = ROOT / "build/checkpoints.lock.json"
NOTE = ".source.json"
"""In a made folder: its origin (``sha256``, ``adapter``), the program's version (``converter``), and
checksums of its files (``files``). In a published one: what has come, a :class:`Snapshot`.
"""
_Size = Annotated[int, Meta(ge=0)]
_Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
_Package = Annotated[
    str,
    Meta(
        pattern=r"\A(pypi:[A-Za-z0-9._-]+==[\w.+!-]+|npm:(@[a-z0-9._-]+/)?[a-z0-9._-]+@[\w.+-]+"
        r"|debian:[a-z0-9][a-z0-9.+-]+=[\w.+:~-]+)\Z"
    ),
]


class FetchError(Exception):
    """The download failed; the message names the remedy."""


class RemoteFile(Struct, frozen=True, kw_only=True):
    """A file by its content. ValueError: its name leaves the folder into which it is to come."""

    name: str
    """Path in the entry's folder, with forward slashes."""
    size: _Size
    sha256: _Digest

    def __post_init__(self) -> None:
        _check_name(self.name)

    def matches(self, path: Path) -> bool:
        """Whether a file has this size and checksum."""
        return path.is_file() and path.stat().st_size == self.size and pooch.file_hash(path) == self.sha256


class Snapshot(Struct, frozen=True, kw_only=True):
    """Files at one commit of a repository."""

    commit: str
    files: tuple[RemoteFile, ...]
    repository: str = ""
    """Empty in locks that are older than this field: they are not kept to."""


class Weights(Struct, frozen=True, kw_only=True, tag_field="kind"):
    """The fields that all kinds of entries have."""

    name: str
    """Of the folder below ``models/``."""
    about: str = ""
    publisher: str = ""
    licence: str = ""
    profiles: tuple[str, ...] = ()
    """Profiles of the model repository that need it."""
    recognizer: dict[str, str] = {}
    """What the model that serves it reads: its ``family``, and names of its files by their role. Empty: the
    model has settings for that."""

    def __post_init__(self) -> None:
        for name in (self.name, *self.recognizer.values()):
            _check_name(name)


class HubPlace(Struct, frozen=True, kw_only=True):
    """Where a file is in the hub."""

    repository: str
    revision: str
    path: str


class Piece(Struct, frozen=True, kw_only=True):
    """A file, or a piece of one, in a package of a registry."""

    package: _Package
    """``pypi:NAME==VERSION`` (a wheel), ``npm:NAME@VERSION`` or ``debian:NAME=VERSION``."""
    member: str
    """Path in the archive; empty: the archive itself."""
    size: _Size


class PinnedFile(RemoteFile, frozen=True, kw_only=True):
    """A file with all its places; its content is the same in each."""

    hub: HubPlace | None = None
    pieces: tuple[Piece, ...] = ()
    """In their order; empty: it is in no registry."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pieces and sum(piece.size for piece in self.pieces) != self.size:
            raise ValueError(f"the pieces of {self.name} have not its size")
        if not self.pieces and self.hub is None:
            raise ValueError(f"{self.name} has no place where it is")


class Published(Weights, frozen=True, kw_only=True, tag="published"):
    """Files of a repository of the hub."""

    repository: str
    include: tuple[str, ...]
    """Patterns of file names."""
    revision: str = "main"
    """What the first download, and ``--lock``, take the newest version of."""
    pinned: Snapshot | None = None
    """From the lock, else of what has come into the folder before."""

    def covers(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot is of this repository, and of files that the patterns name, of each some."""
        names = [file.name for file in snapshot.files]
        return (
            snapshot.repository == self.repository
            and all(any(fnmatch.fnmatchcase(name, glob) for name in names) for glob in self.include)
            and all(any(fnmatch.fnmatchcase(name, glob) for glob in self.include) for name in names)
        )

    @property
    def files(self) -> tuple[PinnedFile, ...]:
        """Those of the pinned commit; empty: no commit is pinned."""
        if self.pinned is None:
            return ()
        place = {"repository": self.repository, "revision": self.pinned.commit}
        return tuple(
            PinnedFile(**msgspec.structs.asdict(file), hub=HubPlace(**place, path=file.name))
            for file in self.pinned.files
        )


class Pinned(Weights, frozen=True, kw_only=True, tag="pinned"):
    """Files that the manifest names one by one."""

    files: tuple[PinnedFile, ...]


class Made(Weights, frozen=True, kw_only=True, tag="made"):
    """A folder that is made of another entry."""

    source: str = msgspec.field(name="of")
    """Name of the entry whose first file it is made of."""
    program: str
    """Of the project, and its first arguments; called with the two folders."""
    version: int
    """Of the program's output."""
    adapter: str = ""
    """Name of an included entry that the program merges (``--adapter``); empty: there is none."""
    size: _Size
    """Approximate size in bytes."""


class Installed(Weights, frozen=True, kw_only=True, tag="installed"):
    """A file of an installed Python package."""

    package: str
    """As it is imported."""
    file: str = ""
    """Path in the package; empty: the package as a whole."""


class Included(Weights, frozen=True, kw_only=True, tag="included"):
    """A folder that is part of the project."""


def read_pins() -> dict[str, Any]:
    """By entry, the snapshot that the lock pins, as JSON; OSError or ValueError if it cannot be read."""
    return msgspec.json.decode(LOCK.read_bytes(), type=dict[str, Any]) if LOCK.exists() else {}


def load(models: Path = ROOT / "models") -> dict[str, Weights]:
    """All entries by name, pinned by the lock or by what is in their folders below ``models``.

    Raises:
        FetchError: the manifest or the lock is malformed.
    """
    try:
        entries = tomllib.loads(MANIFEST.read_text(encoding="utf-8")).get("weights", {})
        pins = read_pins()
        plain = {
            name: {"kind": "published", **_spread(entry), "name": name, "pinned": pins.get(name)}
            for name, entry in entries.items()
        }
        found: dict[str, Weights] = msgspec.convert(
            plain, dict[str, Published | Pinned | Made | Installed | Included]
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FetchError(f"{MANIFEST} or {LOCK.name} cannot be used: {error!r}") from error
    return {name: _pinned_by_folder(entry, models / name) for name, entry in found.items()}


def _pinned_by_folder(entry: Weights, folder: Path) -> Weights:
    if isinstance(entry, Published) and entry.pinned is None:
        with contextlib.suppress(OSError, ValueError):
            note = msgspec.json.decode((folder / NOTE).read_bytes(), type=Snapshot)
            return msgspec.structs.replace(entry, pinned=note if entry.covers(note) else None)
    return entry


def _check_name(name: str) -> None:
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise ValueError(f"a file named {name!r} does not belong into a folder")


def _spread(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry whose files have what stands once for all: ``repository``, ``revision`` and ``package``."""
    files = []
    for file in entry.get("files", ()):
        places: dict[str, Any] = {}
        if "hub" in file:
            path, revision = file["hub"], entry["revision"]
            places["hub"] = {"repository": entry["repository"], "revision": revision, "path": path}
        if "member" in file:
            places["pieces"] = [{"package": entry["package"], "member": file["member"], "size": file["size"]}]
        files.append({**file, **places})
    return {**entry, "files": files}
