"""The agents of a folder."""

from __future__ import annotations

import pytest

from parley.agents.registry import AgentRegistry
from parley.errors import UnknownAgentError


def define(folder, name: str, text: str = 'instructions = "x"') -> None:
    (folder / f"{name}.toml").write_text(text)


async def load(folder, check=lambda file: None) -> AgentRegistry:
    registry = AgentRegistry(folder, check)
    await registry.load()
    return registry


async def test_folder_has_the_agents_of_its_files(tmp_path):
    define(tmp_path, "restaurant")
    define(tmp_path, "clinic", 'instructions = "y"\n[page]\ntitle = "Dr. Y"')
    define(tmp_path, "clinic.tests", "turns = []")
    define(tmp_path, ".clinic", "half a fi")
    registry = await load(tmp_path)
    assert [(one.name, one.title) for one in registry.summaries] == [
        ("clinic", "Dr. Y"),
        ("restaurant", "restaurant"),
    ]
    assert registry.find("clinic").definition.instructions == "y"
    with pytest.raises(UnknownAgentError, match=r"no agent 'restorant' .*\(did you mean restaurant\?\)"):
        registry.find("restorant")


async def test_wrong_file_is_logged_and_others_are_served(tmp_path, caplog):
    define(tmp_path, "a", "instructions = 5")
    define(tmp_path, "b")
    define(tmp_path, "c")

    def check(file):
        if file.name == "c":
            raise file.error("instructions", "too long")

    registry = await load(tmp_path, check)
    assert [one.name for one in registry.summaries] == ["b"]
    folder = tmp_path.name
    assert [record.message for record in caplog.records] == [
        f"{folder}/a.toml:1: instructions: Expected `str`, got `int`",
        f"{folder}/c.toml:1: too long",
    ]
