"""The state of all weights, as a list for people or as JSON."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fetching.fetch import missing_of, source_of
from fetching.hub import PART
from fetching.manifest import ROOT, Included, Installed, Made, Pinned, Published, Weights
from fetching.placed import INCLUDED, is_made, missing_files, read_origin
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
    where: Path | None = models / entry.name
    short = ""
    size = 0
    match entry:
        case Pinned():
            there, words = _pinned(entry, models, anew=anew)
            size = entry.size
        case Made():
            there = is_made(models, entry, source_of(entry, entries), anew=anew)
            made = f"{'verified, ' if anew else ''}made of"
            words = f"{made if there else 'to be made of'} {entry.source}"
            size = 0 if there else entry.size
        case Published():
            there, words = _published(entry, models / entry.name, anew=anew)
        case Installed():
            where = _installed(entry)
            there = where is not None
            words = "installed" if there else "absent: make setup"
            short = f"package {entry.package}"
        case Included():
            where = INCLUDED / entry.name
            there = where.is_dir()
            words = "part of the project" if there else f"absent: git checkout -- models/{entry.name}"
        case _:
            raise TypeError(type(entry))
    found = where if where is not None and where.exists() else None
    on_disk = 0 if found is None else _size(found)
    if found is not None and not short:
        short = str(found.relative_to(ROOT) if found.is_relative_to(ROOT) else found)
    return State(
        name=entry.name,
        about=entry.about,
        publisher=entry.publisher,
        licence=entry.licence,
        size=size or on_disk,
        on_disk=on_disk,
        where=str(found or ""),
        where_short=short if found else "",
        there=there,
        state=words,
    )


def with_sources(chosen: Sequence[Weights], entries: dict[str, Weights], models: Path) -> list[Weights]:
    """The chosen entries, and the sources of made ones that are present or still needed."""
    found: list[Weights] = []
    for entry in chosen:
        if isinstance(entry, Made):
            source = source_of(entry, entries)
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


def _pinned(entry: Pinned, models: Path, *, anew: bool) -> tuple[bool, str]:
    """Whether a pinned entry is there, and its state in words."""
    missing = missing_of(models, entry, anew=anew)
    if wrong := sorted(file.name for file in missing if (models / entry.name / file.name).exists()):
        return False, f"wrong: {', '.join(wrong)}"
    if missing:
        return False, "absent" if len(missing) == len(entry.files) else "incomplete"
    return True, "verified"


def _published(entry: Published, folder: Path, *, anew: bool) -> tuple[bool, str]:
    """Whether a published entry is there, and its state in words."""
    names = [path.name for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    there = read_origin(folder)
    if not names or any(name.endswith(PART) for name in names):
        return False, f"{'incomplete' if names else 'absent'}: make fetch MODEL={entry.name}"
    if entry.pinned is not None and there is not None and there.commit != entry.pinned.commit:
        return False, f"of commit {there.commit}, not {entry.pinned.commit} as in the lock"
    expected = entry.pinned or there
    if expected is None:
        return True, "there, not verified"
    if wrong := missing_files(folder, expected.files, anew=anew):
        return False, f"wrong: {', '.join(file.name for file in wrong)}"
    return True, "verified" + ("" if entry.pinned is None else ", as in the lock")


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
