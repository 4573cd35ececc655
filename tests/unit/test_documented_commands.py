"""Commands in the documents that are to be typed in a clone, whose environment need not be activated."""

from __future__ import annotations

import base64
import hmac
import re
import shlex
import sys
import time
from pathlib import Path

import msgspec
import pytest

from parley.agents.definition import AgentDefinition
from parley.agents.reader import parse_agent
from parley.calls.webhooks import read_secret, sign
from parley.python import parley_command
from parley_client.agent_program import AgentProgram
from parley_client.cli.commands.run import check_agent
from parley_client.cli.program import build_parser, main
from parley_testing.scenario_file import load_scenarios

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_TYPED = re.compile(r"^(\$ )?(\w+=\S+ )*(.*&& )?parley [a-z]+", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_command_is_called_as_a_clone_has_it(page):
    for block in _BLOCK.findall(page.read_text(encoding="utf-8")):
        if all(line.startswith("parley ") for line in block.splitlines()[1:-1]):
            continue  # the list of commands
        assert not _TYPED.search(block), "in a clone it is .venv/bin/parley"


def _commands_of(page):
    """The arguments of each `parley` in a page, in blocks and in the text."""
    text = page.read_text(encoding="utf-8")
    for line in re.findall(r"^\$ (.*)$", text, re.MULTILINE) + re.findall(r"`([^`\n]+)`", text):
        words = shlex.split(line.replace("#", " #"), comments=True) if line.startswith(".venv/bin/") else []
        if words[:1] == [".venv/bin/parley"]:
            yield words[1 : words.index(">>") if ">>" in words else None]


def test_commands_of_the_guide_have_arguments_that_parley_takes(tmp_path, monkeypatch):
    commands = list(_commands_of(ROOT / "docs" / "your-agent.md"))
    assert {"new", "run", "test", "talk", "say", "voices"} <= {words[0] for words in commands}
    monkeypatch.chdir(tmp_path)
    assert main(commands[0]) == 0, "it writes the files of the other commands"
    for words in commands:
        args = build_parser().parse_args(words)
        files = [getattr(args, "file", None), *(getattr(args, "agents", None) or [])]
        assert all(file is None or Path(file).is_file() for file in files)


def test_agent_in_the_guide_is_one_that_can_be_served(tmp_path, monkeypatch):
    text = (ROOT / "docs" / "your-agent.md").read_text(encoding="utf-8")
    monkeypatch.setattr(sys, "path", list(sys.path))
    program, check = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "restaurant.py").write_text(program)
    loaded = AgentProgram(tmp_path / "restaurant.py").load()
    check_agent(loaded)
    (reserve_table,) = loaded.functions
    assert reserve_table(4, "half past seven") == {"confirmed": "today at 7:30 pm", "reservation_number": 1}
    scenario, recording, webhooks, definition = re.findall(
        r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL
    )
    for more in (recording, webhooks):
        parse_agent(tmp_path / "restaurant.toml", f'instructions = "x"\n{more}'.encode())
    parse_agent(tmp_path / "restaurant.toml", definition.encode())
    check_signature(check)
    (tmp_path / "restaurant.tests.toml").write_text(scenario)
    (one,) = load_scenarios([tmp_path / "restaurant.tests.toml"], own_agent=True)
    assert one.title == "A table for today"


def check_signature(program: str) -> None:
    """The guide's function takes what the server signs, and nothing else."""
    defined = {"base64": base64, "hmac": hmac, "time": time}
    exec(program, defined)  # noqa: S102 - the guide's
    secret, now = "0123456789abcdef01234567\n", int(time.time())
    signature = sign(read_secret(secret), "msg_1", now, b"{}")
    headers = {"webhook-id": "msg_1", "webhook-timestamp": str(now), "webhook-signature": signature}
    assert defined["is_genuine"](headers, b"{}", secret)
    assert not defined["is_genuine"](headers, b"{ }", secret)
    assert not defined["is_genuine"]({**headers, "webhook-timestamp": str(now - 301)}, b"{}", secret)


def test_fields_in_the_guide_are_those_of_a_definition():
    text = (ROOT / "docs" / "your-agent.md").read_text(encoding="utf-8")
    table = text.partition("| field of `Agent(...)` |")[2].partition("\n\n")[0]
    named = {
        name
        for row in table.splitlines()
        if row.startswith("| `")
        for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    fields = {field.name for field in msgspec.structs.fields(AgentDefinition)}
    assert named - {"name"} <= fields


@pytest.mark.parametrize(
    ("in_clone", "on_path", "command"),
    [
        (True, False, ".venv/bin/parley"),
        (True, True, "parley"),
        (False, True, "parley"),
        (False, False, "parley"),
    ],
)
def test_hints_name_the_command_as_it_is_called_here(tmp_path, in_clone, on_path, command):
    own, path = tmp_path / "clone/.venv/bin/parley", tmp_path / "bin/parley"
    for file, is_there in ((own, in_clone), (path, on_path)):
        file.parent.mkdir(parents=True)
        if is_there:
            file.touch(mode=0o755)
    assert parley_command(tmp_path / "clone", {"PATH": str(path.parent)}) == command
