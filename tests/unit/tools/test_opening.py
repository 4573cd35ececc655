"""How voice_agent gets its tools."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from parley.agent.config import AgentConfig
from parley.errors import ModelLoadingError
from parley.models.voice_agent import _open_tools
from parley.runtime.parameters import Parameters

LAZY = """
import sys
import parley.models.voice_agent
print([name for name in ("httpx2", "mcp") if name in sys.modules])
import parley.tools.toolbox
print("mcp" in sys.modules)
"""


def parameters(tmp_path, **environment):
    return Parameters(
        "voice_agent", {}, model_dir=tmp_path / "model_repository" / "voice_agent", environment=environment
    )


async def test_no_file_means_no_tools(tmp_path):
    assert await _open_tools(parameters(tmp_path), AgentConfig()) is None


@pytest.mark.parametrize("absolute", [True, False])
async def test_a_relative_path_counts_from_beside_the_repository(tmp_path, absolute):
    file = tmp_path / "config" / "tools.json"
    file.parent.mkdir()
    entry = {"name": "t", "url": "https://h/", "headers": {"X-Key": "${KEY}"}}
    file.write_text(json.dumps({"allowed_hosts": ["h"], "http": [entry]}))
    name = str(file) if absolute else "config/tools.json"
    tools = await _open_tools(
        parameters(tmp_path, PARLEY_VOICE_AGENT_TOOLS_FILE=name, KEY="1"), AgentConfig()
    )
    assert tools.names == {"t"}
    await tools.close()


async def test_a_file_that_is_not_there_keeps_the_agent_from_loading(tmp_path):
    with pytest.raises(ModelLoadingError, match="cannot be read"):
        await _open_tools(parameters(tmp_path, PARLEY_VOICE_AGENT_TOOLS_FILE="none.toml"), AgentConfig())


def test_clients_for_http_and_mcp_are_imported_only_where_they_are_used():
    done = subprocess.run(
        [sys.executable, "-c", LAZY], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split("\n")[:2] == ["[]", "False"]


def test_fillers_are_settings(tmp_path):
    config = AgentConfig.from_parameters(
        parameters(
            tmp_path, PARLEY_VOICE_AGENT_FILLERS="Hm. | de: Moment.", PARLEY_VOICE_AGENT_FILLER_AFTER_S="0"
        )
    )
    assert config.fillers == {"en": ("Hm.",), "de": ("Moment.",)}
    assert config.filler_after_s == 0
    assert AgentConfig.from_parameters(parameters(tmp_path)).fillers["en"][0] == "One moment, please."
