"""The state of all weights, as a list for people or as JSON."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import importlib.util
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fetching.hub import PART
from fetching.manifest import ROOT, Included, Installed, Made, Pinned, Published, Weights
from fetching.placed import INCLUDED, Placed, is_made, read_origin, wrong_files
from fetching.progress import size_text


@dataclass(frozen=True)
class State:
    """The state of an entry."""

    name: str
    about: str
    publisher: str
    licence: str
    size: int
    """Bytes: of the whole entry if that is known, else of its present files."""
    on_disk: int
    """Present bytes."""
    where: str
    """A folder or a file; empty: it is absent."""
    where_short: str
    """The same, relative to the checkout."""
    there: bool
    """Whether it is usable."""
    state: str
    """In words."""


def state_of(entry: Weights, entries: dict[str, Weights], models: Path, *, anew: bool) -> State:
    """Examine an entry; ``anew``: every file is read, whatever was recorded before."""
    folder = models / entry.name
    match entry:
        case Pinned():
            missing = {file.name for file in Placed(models, entry).missing(anew=anew)}
            found = [name for name in missing if (folder / name).exists()]
            words = f"wrong: {', '.join(sorted(found))}" if found else "incomplete"
            absent = "absent" if len(missing) == len(entry.files) and not found else words
            return _state(entry, entry.size, folder, "verified" if not missing else "", absent)
        case Made():
            source = entries[entry.source]
            assert isinstance(source, Pinned)  # as a test of the manifest sees to
            made = is_made(models, entry, source, anew=anew)
            good = f"{'verified, ' if anew else ''}made of {entry.source}"
            size = _size(folder) if made else entry.size
            return _state(entry, size, folder, good if made else "", f"to be made of {entry.source}")
        case Installed():
            file = _installed(entry)
            return _state(
                entry, _size(file) if file else 0, file, _verdict(entry, file), "absent: make setup"
            )
        case Included():
            folder = INCLUDED / entry.name
            good = "part of the project" if folder.is_dir() else ""
            return _state(entry, _size(folder), folder, good, f"absent: git checkout -- models/{entry.name}")
        case Published():
            good, otherwise = _published(entry, folder, anew=anew)
            return _state(entry, _size(folder), folder, good, otherwise)
    raise TypeError(type(entry))


def with_sources(chosen: Sequence[Weights], entries: dict[str, Weights], models: Path) -> list[Weights]:
    """The chosen entries, and the sources of made ones that are present or still needed."""
    found: list[Weights] = []
    for entry in chosen:
        if isinstance(entry, Made):
            source = entries[entry.source]
            assert isinstance(source, Pinned)  # as a test of the manifest sees to
            there = any((models / source.name / file.name).exists() for file in source.files)
            if source not in chosen and (there or not is_made(models, entry, source)):
                found.append(source)
        found.append(entry)
    return found


def show(states: Sequence[State], *, as_json: bool) -> None:
    """Print the states."""
    if as_json:
        for state in states:
            print(json.dumps(asdict(state)))
        return
    names = max((len(state.name) for state in states), default=0)
    words = max((len(state.state) for state in states), default=0)
    for state in states:
        size = size_text(state.size) if state.size else "?"
        print(f"{state.name:{names}}  {size:>8}  {state.state:{words}}  {state.where_short}".rstrip())
        print(f"    {state.about} ({state.publisher}; licence: {state.licence})")
    lacking = sum(not state.there for state in states)
    print(
        f"{size_text(sum(state.on_disk for state in states))} on the disk; "
        + (f"{lacking} of {len(states)} not there" if lacking else "all there")
    )


def _published(entry: Published, folder: Path, *, anew: bool) -> tuple[str, str]:
    """The state of a published entry in words, and where that is empty what is wrong."""
    names = [path.name for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    if not names:
        return "", f"absent: make fetch MODEL={entry.name}"
    if any(name.endswith(PART) for name in names):
        return "", f"incomplete: make fetch MODEL={entry.name}"
    there = read_origin(folder)
    if entry.pinned is not None:
        if there is not None and there.commit != entry.pinned.commit:
            return "", f"of commit {there.commit}, not {entry.pinned.commit} as in the lock"
        there = entry.pinned
    if there is None or not there.files:
        return "there, not verified", ""
    if wrong := wrong_files(folder, there, anew=anew):
        return "", f"wrong: {', '.join(wrong)}"
    return ("verified" if anew else "there") + ("" if entry.pinned is None else ", as in the lock"), ""


def _state(entry: Weights, size: int, where: Path | None, good: str, otherwise: str) -> State:
    exists = where is not None and where.exists()
    return State(
        name=entry.name,
        about=entry.about,
        publisher=entry.publisher,
        licence=entry.licence,
        size=size,
        on_disk=_size(where) if where is not None else 0,
        where=str(where) if exists else "",
        where_short=_short(entry, where) if exists and where is not None else "",
        there=bool(good),
        state=good or otherwise,
    )


def _short(entry: Weights, where: Path) -> str:
    if isinstance(entry, Installed):
        return f"package {entry.package}"
    return str(where.relative_to(ROOT)) if where.is_relative_to(ROOT) else str(where)


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _installed(entry: Installed) -> Path | None:
    """A package's file; nothing of the package is imported."""
    package = importlib.util.find_spec(entry.package)
    if package is None or not package.submodule_search_locations:
        return None
    found = Path(package.submodule_search_locations[0]) / entry.file
    return found if found.exists() else None


def _verdict(entry: Installed, file: Path | None) -> str:
    """The state of an installed file by its package's record; empty: wrong or absent."""
    if file is None:
        return ""
    if file.is_dir():
        return "installed"
    for name in importlib.metadata.packages_distributions().get(entry.package, []):
        for known in importlib.metadata.files(name) or []:
            if Path(known.locate()).resolve() == file.resolve() and known.hash is not None:
                return "verified" if known.hash.value == _record_digest(file, known.hash.mode) else ""
    return "installed"


def _record_digest(path: Path, algorithm: str) -> str:
    """As the records of installed packages give it."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, algorithm).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
