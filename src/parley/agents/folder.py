"""The files of a folder of agents, as they are at one moment."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from parley.agents.reader import AgentFile, AgentFileError, read_agent

MAX_AGENTS = 64
"""Files of one folder."""
Fingerprint: TypeAlias = Mapping[Path, tuple[int, int, int]]
"""Of each file: its inode, size, and time of change."""


def look_at(folder: Path) -> Fingerprint:
    """The files that define agents: ``NAME.toml``, without names that have another dot.

    Raises:
        AgentFileError: there are more than :data:`MAX_AGENTS`.
        OSError: the folder cannot be read.
    """
    found = {}
    for path in sorted(folder.iterdir()):
        if path.suffix != ".toml" or "." in path.stem:
            continue
        with suppress(FileNotFoundError):  # it is gone since the folder was read
            state = path.stat()
            if stat.S_ISREG(state.st_mode):
                found[path] = (state.st_ino, state.st_size, state.st_mtime_ns)
    if len(found) > MAX_AGENTS:
        raise AgentFileError(list(found)[MAX_AGENTS], 1, f"a folder may have {MAX_AGENTS} agents at most")
    return found


def read_folder(folder: Path, served: Mapping[str, AgentFile]) -> dict[str, AgentFile | AgentFileError]:
    """By name the agent of each file, or what is wrong with it.

    ``served``: agents that keep their numbers while their file is wrong, or as it was.

    Raises:
        AgentFileError: there are too many files.
        OSError: the folder cannot be read.
    """
    read = dict(_read_all(folder, served))
    owners: dict[str, AgentFile] = {}
    stay = {
        name
        for name, file in served.items()
        if read.get(name) is file or isinstance(read.get(name), AgentFileError)
    }
    for name in stay:
        owners |= dict.fromkeys(served[name].definition.telephone.numbers, served[name])
    for name, one in read.items():
        if isinstance(one, AgentFile) and name not in stay:
            read[name] = _check_numbers(one, owners)
    return read


def named_models(folder: Path) -> set[str]:
    """Names of this server's language models that agents of the folder name; of wrong files none."""
    try:
        files = [one for one in read_folder(folder, {}).values() if isinstance(one, AgentFile)]
    except (AgentFileError, OSError):
        return set()
    models = (file.definition.model for file in files)
    return {choice.name for model in models for choice in (model, *model.fallback) if choice.name}


def _read_all(
    folder: Path, served: Mapping[str, AgentFile]
) -> Iterator[tuple[str, AgentFile | AgentFileError]]:
    for path in look_at(folder):
        try:
            yield path.stem, read_agent(path, served.get(path.stem))
        except AgentFileError as error:
            yield path.stem, error


def _check_numbers(file: AgentFile, owners: dict[str, AgentFile]) -> AgentFile | AgentFileError:
    """Refuse numbers of other agents; record the others as taken."""
    numbers = file.definition.telephone.numbers
    for number in numbers:
        if number in owners:
            return file.error(
                "telephone.numbers", f"{number} belongs to the agent {owners[number].name!r} already"
            )
    owners |= dict.fromkeys(numbers, file)
    return file
