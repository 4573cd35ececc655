"""``parley agents``: files are checked without a server, and those of a server are listed."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import fake_agent
import pytest
from fake_agent import FakeAgent
from rich.console import Console

from parley import protocol
from parley.agent.defined_agents import AgentOpener
from parley_client.cli.commands import agents
from parley_client.cli.program import build_parser, main

RIGHT = 'instructions = "You take bookings."\nvoice = "af_heart"\n[page]\ntitle = "Bella Vista"\n'
WRONG = 'instructions = "You take bookings."\nvoise = "af_heart"\n'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "restaurant.toml").write_text(RIGHT)
    return tmp_path / "agents"


def check(capsys, *arguments: str) -> tuple[int, str, str]:
    status = main(["agents", "check", "--profile", "open", *arguments])
    return status, *capsys.readouterr()


def test_right_files_are_listed(folder, capsys):
    status, out, err = check(capsys)
    assert (status, err) == (0, "")
    assert "restaurant" in out
    assert "Bella Vista" in out


def test_wrong_file_fails_with_its_line(folder, capsys):
    (folder / "clinic.toml").write_text(WRONG)
    status, out, err = check(capsys)
    assert status == 1
    assert err == "agents/clinic.toml:2: unknown field 'voise' (did you mean voice?)\n"
    assert "restaurant" in out
    assert check(capsys, "agents/restaurant.toml")[0] == 0
    assert check(capsys, "agents/clinic.toml")[:2] == (1, "")


def test_named_file_is_opened_and_no_other(folder, capsys, monkeypatch):
    (folder / "clinic.toml").write_text(RIGHT)
    opened: list[str] = []
    open_agent = AgentOpener.open

    def note(opener, file, **options):
        opened.append(file.name)
        return open_agent(opener, file, **options)

    monkeypatch.setattr(AgentOpener, "open", note)
    assert check(capsys, "agents/restaurant.toml")[0] == 0
    assert opened == ["restaurant"]


def test_python_file_is_checked_as_parley_run_checks_it(folder, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    file = folder / "tea.py"
    file.write_text("from parley_client import Agent\nagent = Agent(instructions='Sell tea.')\n")
    status, out, err = check(capsys, str(file))
    assert (status, err) == (0, "")
    assert "tea" in out
    assert "restaurant" not in out
    file.write_text(file.read_text().replace("'Sell tea.'", "'Sell tea.', voice='bob'"))
    status, _, err = check(capsys, str(file))
    assert status == 1
    assert "Agent(...): there is no voice 'bob'" in err
    assert check(capsys, "tea.py")[0] == 1, "there is no such file"


def test_number_of_another_file_of_the_folder_is_wrong_in_one_file_too(folder, capsys):
    number = '[telephone]\nnumbers = ["+493012345678"]\n'
    for name in ("clinic", "restaurant"):
        (folder / f"{name}.toml").write_text(RIGHT + number)
    status, _, err = check(capsys, "agents/restaurant.toml")
    assert status == 1
    assert "agents/restaurant.toml:6: +493012345678 belongs to the agent 'clinic' already" in err


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("nowhere", "nowhere cannot be read: No such file or directory"),
        ("empty", "empty has no file NAME.toml"),
        ("agents/restaurant.tests.toml", "is no file of an agent"),
    ],
)
def test_path_without_agents_is_wrong_usage(folder, capsys, path, words):
    Path("empty").mkdir()
    (folder / "restaurant.tests.toml").write_text("")
    status, _, err = check(capsys, path)
    assert status == 2
    assert words in err


def test_without_a_checkout_files_are_not_checked(folder, capsys, monkeypatch):
    monkeypatch.setattr(agents, "_REPOSITORY", folder / "nothing")
    status, _, err = check(capsys)
    assert status == 1
    assert "run this in a checkout" in err


async def list_agents(monkeypatch, *arguments: str, **described) -> str:
    description = protocol.AgentDescription(
        recognizer="r", language_model="m", synthesizers=["s"], languages=["en"], **described
    )

    connected = protocol.Connected(session_id="x", output_sample_rate=22_050, agent=description)
    monkeypatch.setattr(fake_agent, "CONNECTED", connected)
    fake = FakeAgent()
    monkeypatch.setattr(agents, "TritonTransport", lambda *_, **__: fake)
    console = Console(file=io.StringIO(), width=200)
    args = build_parser().parse_args(["agents", "list", "--server", "10.0.0.1:8001", *arguments])
    assert await agents.run(args, console) == 0
    assert protocol.decode_start(fake.streams[0].seen[0].message).describe
    assert fake.call_ids[0].startswith(protocol.CANARY_PREFIX)
    assert fake.closed == 1
    return console.file.getvalue()


async def test_agents_of_a_server_are_listed(monkeypatch, capsys):
    summary = protocol.AgentSummary(name="clinic", title="Dr. Y", language="de", numbers=["+493012345678"])
    shown = await list_agents(monkeypatch, agents=[summary])
    assert [line.split() for line in shown.splitlines()] == [
        ["agent", "title", "language", "voice", "telephone"],
        ["clinic", "Dr.", "Y", "de", "+493012345678"],
    ]
    await list_agents(monkeypatch, "--json", agents=[summary])
    assert json.loads(capsys.readouterr().out)["name"] == "clinic"


async def test_server_without_agents_says_so(monkeypatch):
    assert await list_agents(monkeypatch) == "10.0.0.1:8001 defines no agents.\n"
