"""The agents of a folder."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from parley.agents.reader import AgentFile, AgentFileError, read_agent
from parley.errors import UnknownAgentError
from parley.names import suggest_name
from parley.protocol import AgentSummary

DEFAULT_FOLDER = "agents"
"""Beside the model repository."""
MAX_AGENTS = 64
_log = logging.getLogger(__name__)


class AgentRegistry:
    """The agents that the files of one folder define, by name.

    Args:
        folder: has a file ``NAME.toml`` for each. Names with another dot are not read.
        check: raises :class:`AgentFileError` for a definition that this server cannot serve.
    """

    def __init__(self, folder: Path, check: Callable[[AgentFile], None]) -> None:
        self._folder = folder
        self._check = check
        self._agents: dict[str, AgentFile] = {}

    async def load(self) -> None:
        """Read the folder; a wrong file is logged and left out."""
        for path in await asyncio.to_thread(list_files, self._folder):
            try:
                file = await asyncio.to_thread(read_agent, path)
                self._check(file)
            except AgentFileError as error:
                _log.error("%s", error)
            else:
                self._agents[file.name] = file

    def find(self, name: str) -> AgentFile:
        """The agent of a name.

        Raises:
            UnknownAgentError: there is none.
        """
        if (file := self._agents.get(name)) is not None:
            return file
        raise UnknownAgentError(f"no agent {name!r} on this server{suggest_name(name, self._agents)}")

    @property
    def summaries(self) -> list[AgentSummary]:
        """What clients learn of the agents, by name."""
        return [self._agents[name].definition.summary(name) for name in sorted(self._agents)]


def list_files(folder: Path) -> list[Path]:
    """The files of agents in a folder, by name.

    Raises:
        AgentFileError: there are more than :data:`MAX_AGENTS`.
    """
    files = sorted(path for path in folder.glob("*.toml") if "." not in path.stem)
    if len(files) > MAX_AGENTS:
        raise AgentFileError(files[MAX_AGENTS], 1, f"a folder may have {MAX_AGENTS} agents at most")
    return files
