"""An agent in a Python file."""

from __future__ import annotations

import sys
import textwrap

import pytest

from parley_client import ToolDefinitionError
from parley_client.agent_program import AgentProgram

MINIMAL = "from parley_client import Agent\nagent = Agent(instructions='Sell tea.')\n"


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Write the file, and run it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    program = AgentProgram(tmp_path / "tea_house.py")

    def write(text, file="tea_house.py"):
        (tmp_path / file).write_text(textwrap.dedent(text))
        return program

    return write


def test_file_defines_an_agent_and_its_functions(load):
    loaded = load("""
        from __future__ import annotations
        from dataclasses import dataclass
        from parley_client import Agent, TurnOptions, tool

        @dataclass
        class Tea:
            price: int

        def helper(): ...

        @tool
        def get_price(tea: str) -> dict:
            '''Get a price.'''
            return {"price": Tea(3).price}

        agent = Agent(
            instructions="Sell tea.",
            greeting=None,
            turn=TurnOptions(eagerness="patient"),
            page={"title": "Tea"},
        )
    """).load()
    assert loaded.name == "tea_house"
    assert loaded.fields == {
        "instructions": "Sell tea.",
        "turn": {"eagerness": "patient", "detection": "auto", "answer": True},
        "page": {"title": "Tea"},
    }
    assert [function("green") for function in loaded.functions] == [{"price": 3}]


def test_agent_may_name_itself(load):
    assert load(MINIMAL.replace("Agent(", "Agent(name='tea-2', ")).load().name == "tea-2"


@pytest.mark.parametrize(("given", "found"), [("key", "{}/key"), ("/etc/key", "/etc/key"), ("", "")])
def test_key_file_of_the_model_is_beside_the_agents_file(load, tmp_path, given, found):
    program = load(MINIMAL.replace("Agent(", f"Agent(model={{'key_file': {given!r}}}, "))
    assert program.load().fields["model"] == {"key_file": found.format(tmp_path)}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x = 1\n", r"tea_house\.py defines 0 agents, and must define one"),
        (f"{MINIMAL}other = Agent()\n", "defines 2 agents"),
        (MINIMAL.replace("Agent(", "Agent(name='Tea House', "), "'Tea House' cannot be the name"),
        (MINIMAL.replace("'Sell tea.'", "object()"), r"Agent\(\.\.\.\): .*object"),
        (MINIMAL.replace("'Sell tea.'", r"'\ud800'"), r"Agent\(\.\.\.\): .*surrogates not allowed"),
        (f"{MINIMAL}\n1 / 0\n", r"tea_house\.py, line 4: ZeroDivisionError: division by zero"),
        (f"{MINIMAL}def broken(:\n", r"SyntaxError: .*tea_house\.py, line 3"),
        (f"{MINIMAL}raise SystemExit('bye')\n", "line 3: SystemExit: bye"),
    ],
)
def test_unusable_file_is_refused_with_line_and_reason(load, text, why):
    with pytest.raises(ToolDefinitionError, match=why):
        load(text).load()


def test_change_of_the_file_is_noticed_and_loaded(load):
    program = load(MINIMAL)
    program.load()
    assert not program.has_changed()
    load(MINIMAL.replace("tea", "oats"))
    assert program.has_changed()
    assert program.load().fields == {"instructions": "Sell oats."}
    assert not program.has_changed()


def test_module_beside_the_file_is_loaded_again_with_it(load):
    load("price = 3\n", "prices.py")
    program = load(f"import prices\n{MINIMAL.replace('Sell tea.', '{prices.price}')}".replace("='{", "=f'{"))
    assert program.load().fields == {"instructions": "3"}
    load("price = 1 / 0\n", "prices.py")
    assert program.has_changed()
    with pytest.raises(ToolDefinitionError, match="ZeroDivisionError"):
        program.load()
    assert sys.modules["prices"].price == 3, "what was loaded stays"
    assert not program.has_changed(), "one message for one mistake"
    load("price = 44\n", "prices.py")
    assert program.has_changed()
    assert program.load().fields == {"instructions": "44"}


def test_modules_stay_when_the_file_is_broken_off(load):
    load("price = 3\n", "prices.py")
    program = load(f"import prices\n{MINIMAL}")
    program.load()
    module = sys.modules["prices"]
    load(f"import prices\n{MINIMAL}raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        program.load()
    assert sys.modules["prices"] is module


def test_file_that_is_taken_away_is_a_change_and_an_error(load):
    program = load(MINIMAL)
    program.load()
    program.path.unlink()
    assert program.has_changed()
    with pytest.raises(ToolDefinitionError, match="there is no such file"):
        program.load()
    assert not program.has_changed()
