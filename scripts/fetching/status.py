"""The state of all weights, as a list for people or as JSON."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.filesize import decimal

from fetching.fetch import source_of
from fetching.manifest import ROOT, Included, Installed, Made, Pinned, Published, Weights
from fetching.placed import INCLUDED, is_made, missing_of


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
    there: bool
    """Whether it is usable."""
    state: str
    """In words."""


def state_of(entry: Weights, entries: dict[str, Weights], models: Path, *, anew: bool) -> State:
    """Examine an entry; ``anew``: every file is read, whatever was recorded before."""
    where: Path | None = models / entry.name
    size = 0
    match entry:
        case Pinned() | Published():
            there, words = _fetched(entry, models, anew=anew)
            size = sum(file.size for file in entry.files)
        case Made():
            there = is_made(models, entry, source_of(entry, entries), anew=anew)
            words = f"{'made' if there else 'to be made'} of {entry.source}"
            size = 0 if there else entry.size
        case Installed():
            where = _installed(entry)
            there, words = (
                where is not None,
                f"installed with {entry.package}" if where else "absent: make setup",
            )
        case Included():
            where = INCLUDED / entry.name
            there = where.is_dir()
            words = "part of the project" if there else f"absent: git checkout -- models/{entry.name}"
        case _:
            raise TypeError(type(entry))
    found = where if where is not None and where.exists() else None
    on_disk = 0 if found is None else _size(found)
    return State(
        name=entry.name,
        about=entry.about,
        publisher=entry.publisher,
        licence=entry.licence,
        size=size or on_disk,
        on_disk=on_disk,
        where=str(found or ""),
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
        size = decimal(state.size) if state.size else "?"
        where = state.where.removeprefix(f"{ROOT}/") if state.where else ""
        print(f"{state.name:{names}}  {size:>9}  {state.state:{words}}  {where}".rstrip())
        print(f"    {state.about} ({state.publisher}; licence: {state.licence})")
    lacking = sum(not state.there for state in states)
    print(
        f"{decimal(sum(state.on_disk for state in states))} on the disk; "
        + (f"{lacking} of {len(states)} not there" if lacking else "all there")
    )


def _fetched(entry: Pinned | Published, models: Path, *, anew: bool) -> tuple[bool, str]:
    """Whether a downloaded entry is there, and its state in words."""
    missing = missing_of(models, entry, anew=anew)
    if wrong := sorted(file.name for file in missing if (models / entry.name / file.name).exists()):
        return False, f"wrong: {', '.join(wrong)}"
    if missing or not entry.files:
        return False, "absent" if len(missing) == len(entry.files) else "incomplete"
    return True, "verified"


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
