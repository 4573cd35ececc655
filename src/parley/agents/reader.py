"""Reads the files of agents; errors name the file, the line, and the nearest name."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from parley.agents.definition import AgentDefinition
from parley.agents.toml_lines import find_line
from parley.errors import ModelLoadingError
from parley.field_errors import describe_field_error, fields_at
from parley.names import suggest_name
from parley.protocol import MAX_AGENT_NAME

MAX_FILE = 128 * 1024
"""Bytes of one file; a longer prompt would not fit into the first message of a call."""
_NAME = re.compile(rf"[a-z0-9][a-z0-9_-]{{0,{MAX_AGENT_NAME - 1}}}")
_SYNTAX_LINE = re.compile(r" \(at line (\d+), column \d+\)\Z")
_AT = re.compile(r" - at `\$\.?(?P<path>[^`]*)`\Z")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`\Z", re.DOTALL)
_STEP = re.compile(r"(?P<key>[^.\[\]]+)|\[(?P<index>\d+)\]")


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
        return AgentFileError(self.path, find_line(self.text, _steps(field)), problem)


class AgentFileError(ModelLoadingError):
    """A file defines no agent that can be served: ``agents/restaurant.toml:12: what is wrong``."""

    def __init__(self, path: Path, line: int, problem: str) -> None:
        super().__init__(f"{path.parent.name}/{path.name}:{line}: {problem}")


def read_agent(path: Path, known: AgentFile | None = None) -> AgentFile:
    """Read one file, whose name without ``.toml`` is the agent's.

    Args:
        path: of the file.
        known: returned if the file still has its text.

    Raises:
        AgentFileError: it cannot be read, is not TOML, or has an unknown field or a wrong value.
    """
    if not _NAME.fullmatch(path.stem):
        raise AgentFileError(
            path, 1, f"an agent's name has 1 to {MAX_AGENT_NAME} of a-z 0-9 _ -, and begins with none of _ -"
        )
    text = _read(path)
    if known is not None and known.text == text:
        return known
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _SYNTAX_LINE.search(str(error))
        line = int(found[1]) if found else text.rstrip().count("\n") + 1
        raise AgentFileError(path, line, _SYNTAX_LINE.sub("", str(error))) from error
    try:
        return AgentFile(path, text, msgspec.convert(values, AgentDefinition))
    except msgspec.ValidationError as error:
        raise _field_error(path, text, error) from error


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE + 1)
        if len(raw) > MAX_FILE:
            raise AgentFileError(path, 1, f"the file has more than {MAX_FILE} bytes")
        return raw.decode()
    except UnicodeDecodeError as error:
        raise AgentFileError(path, 1 + raw[: error.start].count(b"\n"), "the text is not UTF-8") from error
    except OSError as error:
        raise AgentFileError(path, 1, f"the file cannot be read: {error.strerror}") from error


def _field_error(path: Path, text: str, error: msgspec.ValidationError) -> AgentFileError:
    what = describe_field_error(error, AgentDefinition)
    at = _AT.search(what)
    where, what = (at["path"], what[: at.start()]) if at else ("", what)
    if unknown := _UNKNOWN.fullmatch(what):
        name = unknown["name"]
        near = suggest_name(name, fields_at(AgentDefinition, f".{where}" if where else ""))
        steps = (*_steps(where), name)
        what = f"unknown field {name!r}{near}"
    else:
        steps = _steps(where)
        what = f"{where}: {what}" if where else what
    return AgentFileError(path, find_line(text, steps), what)


def _steps(field: str) -> tuple[str | int, ...]:
    return tuple(step["key"] or int(step["index"]) for step in _STEP.finditer(field))
