"""``parley test`` starts a server with the agents of a folder and holds their scenarios."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import msgspec

from parley.agent.config import DEFAULT_SYSTEM_PROMPT
from parley.launcher.options import ROOT
from parley_client.cli.demo_tools import get_weather
from parley_client.tools import ToolTable

SCENARIOS = """
[[tool]]
name = "get_weather"
output = { temperature = 31, sky = "sunny" }

[[scenario]]
title = "The weather"
[[scenario.exchange]]
say = "what's the weather in [400] paris"
expect = { tools = ["get_weather(..., city='Paris')"], answer = ["31", "sunny"], never = ["foggy"] }

[[scenario]]
title = "A story"
[[scenario.exchange]]
say = "tell me a story"
expect = { answer = ["the end of the world"] }
"""


def test_agent_gets_canned_results_in_place_of_its_services(tmp_path):
    agents = tmp_path / "agents"
    agents.mkdir()
    (agents / "helper.toml").write_text(f"instructions = {json.dumps(DEFAULT_SYSTEM_PROMPT)}\n")
    (agents / "helper.tests.toml").write_text(SCENARIOS)
    (offered,) = ToolTable([get_weather]).definitions
    tool = {**msgspec.to_builtins(offered), "url": "https://weather.invalid/?place={city}"}
    file = tmp_path / "tools.json"
    file.write_text(json.dumps({"allowed_hosts": ["weather.invalid"], "http": [tool]}))
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "parley_client",
            "test",
            agents / "helper.toml",
            "--profile",
            "tiny",
            "--show",
        ],
        cwd=ROOT,
        env={**os.environ, "PARLEY_VOICE_AGENT_TOOLS_FILE": str(file)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=110,
        check=False,
    )
    assert ended.returncode == 1, ended.stdout
    assert "The weather: passed" in ended.stdout, ended.stdout
    assert "A story: failed" in ended.stdout, ended.stdout
    assert "the end of the world not in" in ended.stdout
