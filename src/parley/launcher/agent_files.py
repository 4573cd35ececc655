"""Checks of the files of agents without a server: those of the command, and before a start."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

import msgspec

from parley.agent.config import AgentConfig
from parley.agent.defined_agents import AgentOpener
from parley.agent.metrics import UNMEASURED
from parley.agents.reader import AgentFile, AgentFileError
from parley.canaries.asking import AGENT
from parley.errors import ModelLoadingError, ModelUnavailableError
from parley.inference import ModelRequest, ModelResponse
from parley.models.voice_agent import make_synthesizer
from parley.runtime.repository import read_parameters
from parley.tools.settings import read_settings
from parley.tools.toolbox import Toolbox

_TIMEOUT_S = 1.0
_log = logging.getLogger(__name__)


async def check_agents(
    found: dict[str, AgentFile | AgentFileError],
    repository: Path,
    profile: str,
    environment: Mapping[str, str],
) -> dict[str, AgentFile | AgentFileError]:
    """``found``, with what is wrong with agents on a server of this profile in their places.

    MCP servers and models are not asked, and weights need not be there. A voice that is made at run time is
    not looked for.

    Raises:
        ModelLoadingError: the profile has no agent, or its settings are wrong.
    """
    parameters = read_parameters(repository / AGENT, profile, environment)
    if parameters is None:
        raise ModelLoadingError(f"{repository} has no {AGENT} in the profile {profile}")
    config = AgentConfig.from_parameters(parameters)
    # Files are checked for a server that has its weights.
    config = msgspec.structs.replace(config, absent_models={})
    client = _NoModels()
    synthesizer = make_synthesizer(config, client, UNMEASURED, timeout_s=_TIMEOUT_S)
    server_tools = None
    if tools_file := parameters.text("tools_file", ""):
        settings = read_settings(parameters.repository.parent / tools_file)
        server_tools = Toolbox(settings, parameters.environment)
    opener = AgentOpener(
        *(synthesizer, server_tools, config, parameters, client),
        on_fallback=UNMEASURED.on_llm_fallback,
        llm_timeout_s=_TIMEOUT_S,
    )
    try:
        for name, file in found.items():
            if isinstance(file, AgentFile):
                try:
                    await (await opener.open(file, only_checks=True)).close_when_unused()
                except AgentFileError as error:
                    found[name] = error
                except Exception as error:  # noqa: BLE001 - logged; the others are checked
                    _log.exception("the agent %s could not be checked", name)
                    problem = f"it could not be checked: {type(error).__name__}: {error}"
                    found[name] = file.error("", problem)
    finally:
        if server_tools is not None:
            await server_tools.close()
    return found


class _NoModels:
    """:class:`parley.inference.ModelClient` of no server: voices and options are checked without calls."""

    async def infer(self, request: ModelRequest) -> ModelResponse:
        """Fails."""
        raise ModelUnavailableError(f"{request.model}: there is no server")

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelResponse, None]:
        """Fails."""
        raise ModelUnavailableError(f"{request.model}: there is no server")
        yield {}

    async def close(self) -> None:
        """Does nothing."""
