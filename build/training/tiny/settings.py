"""What a model is given before the first turn: the system prompt and the tools."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from tiny.domain import TEXTS

Message = dict[str, Any]
Tool = dict[str, Any]

PROPERTIES = {
    "city": {"type": "string", "description": "The name of the city."},
    "day": {"type": "string", "description": "The day, if it is not now."},
    "minutes": {"type": "integer", "description": "How many minutes."},
    "label": {"type": "string", "description": "What the timer is for."},
}


def _tool(name: str, description: str, required: str, optional: str | None = None) -> Tool:
    keys = [required, optional] if optional else [required]
    properties = {key: PROPERTIES[key] for key in keys}
    parameters = {"type": "object", "properties": properties, "required": [required]}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


TOOLS = (
    _tool("get_weather", "Get the weather in a city.", "city", "day"),
    _tool("get_time", "Get the time in a city.", "city"),
    _tool("set_timer", "Start a timer.", "minutes", "label"),
)

DEFAULT_SYSTEM = "You are Parley, a friendly voice assistant. Keep answers short."
SYSTEMS: list[str] = TEXTS["systems"]


@dataclass(frozen=True)
class Setting:
    """What the model is given before the first turn."""

    system: str | None
    tools: list[Tool]

    @property
    def messages(self) -> list[Message]:
        """The system message, if there is one."""
        return [{"role": "system", "content": self.system}] if self.system else []


def setting(rng: random.Random) -> Setting:
    """Draw what the developer of an agent chooses: mostly the default prompt and all tools."""
    tools = [_described(tool, rng) for tool in TOOLS] if rng.random() < 0.4 else list(TOOLS)
    kind = rng.random()
    if kind < 0.12:
        tools = [tool for tool in tools if rng.random() < 0.6]
    elif kind < 0.16:
        tools = []
    if rng.random() < 0.25:
        rng.shuffle(tools)
    kind = rng.random()
    system = DEFAULT_SYSTEM if kind < 0.55 else rng.choice(SYSTEMS) if kind < 0.9 else None
    return Setting(system, tools)


def _described(tool: Tool, rng: random.Random) -> Tool:
    """A tool described in other words, or with less of them."""
    function = tool["function"]
    parameters = function["parameters"]
    properties = parameters["properties"]
    if rng.random() < 0.5:
        properties = {key: {"type": value["type"]} for key, value in properties.items()}
    return {
        "type": "function",
        "function": {
            "name": function["name"],
            "description": rng.choice(TEXTS["descriptions"][function["name"]]),
            "parameters": {**parameters, "properties": properties},
        },
    }
