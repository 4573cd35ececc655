"""Agents of files, for the sessions of tests."""

from __future__ import annotations

from pathlib import Path

from parley.agents.reader import read_agent
from parley.agents.registry import AgentRegistry, ServedAgent
from parley.protocol import Tool
from parley.tools.base import ToolOutcome


class Tables:
    """A tool of the server."""

    names = frozenset({"find_table"})
    tools = (Tool(name="find_table"),)

    def timeout_s(self, name):
        return None

    async def call(self, name, arguments, *, traceparent="", on_progress=None):
        return ToolOutcome({"at": "20:00"})

    async def close(self):
        pass


def make_agents(folder: Path, text: str, **parts) -> AgentRegistry:
    """The restaurant alone. Its folder is not watched: the loop of the tests does not wait for threads."""

    async def open_agent(file):
        raise AssertionError(file)

    (folder / "restaurant.toml").write_text(text)
    registry = AgentRegistry(folder, open_agent)
    registry._agents["restaurant"] = ServedAgent(read_agent(folder / "restaurant.toml"), **parts)
    return registry
