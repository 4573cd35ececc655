"""Sessions of an agent that a file defines."""

from __future__ import annotations

import re

import msgspec

from parley.agent.config import AgentConfig
from parley.agent.ports import Engines
from parley.agent.validation import check_prompt, check_start
from parley.agents.definition import AgentDefinition
from parley.agents.reader import AgentFile
from parley.errors import (
    InvalidInputError,
    UnknownAgentError,
    UnsupportedLanguageError,
    UnsupportedVoiceError,
)
from parley.field_errors import fields_at
from parley.protocol import Start

_FIELD = re.compile(r"[a-z_]+(?:\.[a-z_]+)*")


def choose_agent(start: Start, engines: Engines, config: AgentConfig) -> tuple[Start, Engines, AgentConfig]:
    """What a session of the agent that ``start`` names has: its options, engines and settings.

    A session that goes on has all options already: those of the definition may have been updated meanwhile.

    Raises:
        UnknownAgentError: there is no such agent.
    """
    if engines.agents is None:
        raise UnknownAgentError(f"no agent {start.agent!r}: this server defines none")
    definition = engines.agents.find(start.agent).definition
    if start.resume is None:
        start = definition.complete(start)
    return start, engines, _settings(definition, config)


def check_definition(file: AgentFile, engines: Engines, config: AgentConfig) -> None:
    """Refuse a definition with which every session would be refused.

    Raises:
        AgentFileError: it names the field.
    """
    definition = file.definition
    config = _settings(definition, config)
    field = "instructions"
    try:
        check_prompt(definition.instructions, config)
        field = ""
        check_start(definition.complete(Start()), engines.synthesizer, config)
    except (UnsupportedVoiceError, UnsupportedLanguageError) as error:
        is_voice = isinstance(error, UnsupportedVoiceError) and definition.voice is not None
        raise file.error("voice" if is_voice else "language", str(error)) from error
    except InvalidInputError as error:
        raise file.error(field or _field_of(str(error)), str(error)) from error


def _settings(definition: AgentDefinition, config: AgentConfig) -> AgentConfig:
    """The settings of the sessions of an agent."""
    return msgspec.structs.replace(
        config, system_prompt=definition.instructions, examples=tuple(definition.page.examples)
    )


def _field_of(problem: str) -> str:
    """The field that a text about a session's options is about; empty: none of a definition."""
    known = fields_at(AgentDefinition, "")
    return next((name for name in _FIELD.findall(problem) if name.partition(".")[0] in known), "")
