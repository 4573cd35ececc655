"""Reads the files of agents; errors name the file, the line, and the nearest name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from parley.agents.definition import AgentDefinition
from parley.agents.toml_lines import find_line
from parley.agents.toml_reader import TomlError, convert_toml, field_steps
from parley.errors import ModelLoadingError
from parley.protocol import AGENT_NAME, AGENT_NAME_RULE

MAX_FILE = 128 * 1024
"""Bytes of one file; a longer prompt would not fit into the first message of a call."""
_NAME = re.compile(AGENT_NAME)


@dataclass(frozen=True)
class AgentFile:
    """An agent as its file defines it."""

    path: Path
    text: str
    definition: AgentDefinition

    @property
    def name(self) -> str:
        """The value of ``Start.agent``."""
        return self.path.stem

    def error(self, field: str, problem: str) -> AgentFileError:
        """An error of the value at ``field``, such as ``page.colour``; a field that is not there: line 1."""
        return AgentFileError(self.path, find_line(self.text, field_steps(field)), problem)


class AgentFileError(ModelLoadingError):
    """A file defines no agent that can be served: ``agents/restaurant.toml:12: what is wrong``."""

    def __init__(self, path: Path, line: int, problem: str) -> None:
        text = f"{path.parent.name}/{path.name}:{line}: {problem}"
        # A name that is not UTF-8 can stand in no log.
        super().__init__(text.encode(errors="backslashreplace").decode())


def read_agent(path: Path, known: AgentFile | None = None) -> AgentFile:
    """Read one file, whose name without ``.toml`` is the agent's; ``known`` if that still has its text.

    Raises:
        AgentFileError: it cannot be read, is not TOML, or has an unknown field or a wrong value.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE + 1)
    except OSError as error:
        raise AgentFileError(path, 1, f"the file cannot be read: {error.strerror}") from error
    return parse_agent(path, raw, known)


def parse_agent(path: Path, raw: bytes, known: AgentFile | None = None) -> AgentFile:
    """As :func:`read_agent`, of a file with this content."""
    if not _NAME.fullmatch(path.stem):
        raise AgentFileError(path, 1, AGENT_NAME_RULE)
    if len(raw) > MAX_FILE:
        raise AgentFileError(path, 1, f"the file has more than {MAX_FILE} bytes")
    try:
        text = raw.decode()
        if known is not None and known.text == text:
            return known
        file = AgentFile(path, text, convert_toml(text, AgentDefinition))
    except UnicodeDecodeError as error:
        raise AgentFileError(path, 1 + raw[: error.start].count(b"\n"), "the text is not UTF-8") from error
    except TomlError as error:
        raise AgentFileError(path, error.line, str(error)) from error
    numbers = file.definition.telephone.numbers
    if twice := [one for one in numbers if numbers.count(one) > 1]:
        raise file.error("telephone.numbers", f"{twice[0]} stands there twice")
    return file
