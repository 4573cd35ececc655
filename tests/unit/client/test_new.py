"""``parley new``, and the examples that it copies."""

from __future__ import annotations

import re
import sys

import pytest

from parley_client import ToolTable
from parley_client.agent_program import AgentProgram
from parley_client.cli import CHECKOUT
from parley_client.cli.commands import new
from parley_client.cli.commands.run import check_agent
from parley_client.cli.program import main
from parley_testing.scenario_file import load_scenarios

EXAMPLES = CHECKOUT / "examples" / "agents"
KINDS = ["restaurant", "clinic", "helpdesk"]


@pytest.fixture
def load(monkeypatch):
    """Load the agent of a file."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return lambda path: AgentProgram(path).load()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder in which the command runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(new, "PARLEY", "bin/parley")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (["restaurant"], "restaurant"),
        (["clinic"], "clinic"),
        (["dentist"], "blank"),
        (["front-desk", "--like", "helpdesk"], "helpdesk"),
        (["my-clinic", "--like", "clinic"], "clinic"),
    ],
)
def test_new_writes_an_agent_that_can_be_served(folder, capsys, load, arguments, kind):
    assert main(["new", *arguments]) == 0
    name = arguments[0]
    folder /= name
    files = {file.name for file in folder.iterdir()}
    manual = {f"{name}.md"} if kind == "helpdesk" else set()
    assert files == {"README.md", f"{name}.py", f"{name}.tests.toml", *manual}
    loaded, example = load(folder / f"{name}.py"), load(EXAMPLES / f"{kind}.py")
    assert loaded.fields.pop("knowledge", []) == [str(folder / one) for one in manual]
    example.fields.pop("knowledge", None)
    assert (loaded.name, loaded.fields) == (name, example.fields)
    for file in folder.iterdir():
        text = file.read_text()
        assert "examples/agents" not in text
        assert name == kind or not re.search(rf"(?<!-){kind}.py", text)
    for file, command in ((f"{name}.py", "run"), (f"{name}.tests.toml", "test"), ("README.md", "run")):
        assert f" bin/parley {command} {name}/{name}.py" in (folder / file).read_text().replace("`", " ")
    assert len((folder / "README.md").read_text().splitlines()) == 5
    assert f"run {name}/{name}.py" in capsys.readouterr().out


def test_new_never_overwrites(folder, capsys):
    (folder / "tea").mkdir()
    assert main(["new", "tea"]) == 1
    assert "tea is there already; nothing was written" in capsys.readouterr().err
    assert not any((folder / "tea").iterdir())


@pytest.mark.parametrize("name", ["Tea House", "../tea", "-tea", "", "parley", "gpt-tea"])
def test_new_refuses_a_name_that_no_agent_can_have(folder, capsys, name):
    assert main(["new", "--", name]) == 2
    assert "an agent's name has" in capsys.readouterr().err
    assert not any(folder.iterdir())


@pytest.mark.parametrize("name", ["calendar", "mcp"])
def test_new_refuses_a_name_that_would_hide_a_module(folder, capsys, name):
    assert main(["new", name]) == 2
    assert f"{name}.py would hide the Python module" in capsys.readouterr().err
    assert not any(folder.iterdir())


def test_new_without_the_examples_says_where_they_are(folder, capsys, monkeypatch):
    monkeypatch.setattr(new, "CHECKOUT", folder)
    assert main(["new", "tea"]) == 1
    assert "they are in a checkout, and in the wheel parley-client" in capsys.readouterr().err
    assert not any(folder.iterdir())


@pytest.mark.parametrize("kind", KINDS)
def test_example_is_a_definition_that_the_server_reads(load, kind):
    loaded = load(EXAMPLES / f"{kind}.py")
    check_agent(loaded)
    assert 2 <= len(ToolTable(loaded.functions).definitions) <= 3, "few: a small model answers"


@pytest.mark.parametrize("kind", KINDS)
def test_example_has_ten_scenarios_of_its_own_functions(load, kind):
    functions = {one.__name__ for one in load(EXAMPLES / f"{kind}.py").functions}
    scenarios = load_scenarios([EXAMPLES / f"{kind}.tests.toml"], own_agent=True)
    assert len(scenarios) == 10
    called = {call.name for one in scenarios for act in one.exchanges for call in act.tools or ()}
    assert called == functions


def test_blank_is_one_function_and_a_scenario_of_it(load):
    loaded = load(EXAMPLES / "blank.py")
    check_agent(loaded)
    assert set(loaded.fields) == {"instructions", "greeting"}
    (get_time,), (scenario,) = (
        loaded.functions,
        load_scenarios([EXAMPLES / "blank.tests.toml"], own_agent=True),
    )
    assert re.fullmatch(r"\d+(:\d\d)? [ap]m", get_time()["time"])
    assert [call.name for act in scenario.exchanges for call in act.tools] == [get_time.__name__]


@pytest.fixture
def functions(load):
    """The functions of an example by name."""
    return lambda kind: {one.__name__: one for one in load(EXAMPLES / f"{kind}.py").functions}


def test_restaurant_books_and_cancels_in_the_callers_words(functions):
    found = functions("restaurant")
    reserve, cancel = found["reserve_table"], found["cancel_reservation"]
    booked = reserve(4, "half past seven")
    assert booked == {"confirmed": "today at 7:30 pm", "reservation_number": 1}
    friday = reserve(2, "eight", "Friday")
    assert friday["confirmed"].startswith("Friday, ")
    assert cancel(booked["reservation_number"]) == {"cancelled": True}
    with pytest.raises(LookupError, match="no reservation"):
        cancel(booked["reservation_number"])


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((20, "seven"), "largest table has 8"),
        ((2, "eleven"), "between 5 pm and 9:30 pm"),
        ((2, "soon"), "ask for the time"),
        ((2, "seven", "some day"), "ask for the day"),
    ],
)
def test_restaurant_refuses_what_cannot_be_booked(functions, arguments, why):
    with pytest.raises(ValueError, match=why):
        functions("restaurant")["reserve_table"](*arguments)


def test_restaurant_that_is_full_refuses_guests_of_the_same_hours(functions):
    reserve = functions("restaurant")["reserve_table"]
    for _ in range(15):
        reserve(8, "seven")
    with pytest.raises(ValueError, match="no table is free then"):
        reserve(1, "half past eight")
    assert reserve(1, "nine")


def test_clinic_keeps_one_appointment_for_each_patient(functions):
    found = functions("clinic")
    book, cancel = found["book_appointment"], found["cancel_appointment"]
    assert book("Anna Lee", "Friday", "half past three")["booked"].endswith("at 3:30 pm")
    moved = book("Anna Lee", "Friday", "nine")
    assert moved["booked"].endswith("at 9 am")
    assert cancel("anna lee") == {"cancelled": moved["booked"]}
    with pytest.raises(LookupError, match="no appointment"):
        cancel("Anna Lee")


def test_clinic_refuses_weekends_nights_and_times_that_are_taken(functions):
    book = functions("clinic")["book_appointment"]
    with pytest.raises(ValueError, match="closed at the weekend"):
        book("Anna Lee", "Saturday", "nine")
    with pytest.raises(ValueError, match="between 8 am and 5 pm"):
        book("Anna Lee", "Friday", "7 pm")
    for name in "abcd":
        book(name, "Friday", "ten")
    with pytest.raises(ValueError, match="taken"):
        book("e", "Friday", "ten")


def test_helpdesk_opens_tickets_and_finds_them(functions):
    found = functions("helpdesk")
    ticket = found["open_ticket"]("no sound", urgent=True)
    assert ticket == {"ticket": 4001, "answer_within": "one hour"}
    assert found["get_ticket"](4001)["problem"] == "no sound"
    with pytest.raises(LookupError, match="no ticket"):
        found["get_ticket"](1)
    assert "down" in found["check_system"]("vpn")["vpn"]
