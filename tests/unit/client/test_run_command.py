"""``parley run`` from its arguments to its end, with servers that are not there."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace

import psutil
import pytest

from parley.launcher import agent_files
from parley_client.cli import own_agent
from parley_client.cli.commands import run
from parley_client.cli.program import main
from parley_client.errors import ClientError

TEA = """
from parley_client import Agent, tool
agent = Agent(instructions='Sell tea.')

@tool
def get_price(tea: str) -> int:
    '''Get a price.'''
    return 3
"""


class Machine:
    """What the command finds here, and what it does."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.source = folder, folder / "tea.py"
        self.source.write_text(TEA)
        self.started, self.asked, self.pages, self.listening = [], [], [], set()
        self.during = lambda: os.kill(os.getpid(), signal.SIGTERM)
        """What happens once the agent is served."""
        self.refusal = None
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        monkeypatch.setattr(run, "NOTES", folder / "notes")
        monkeypatch.setattr(run, "CHECKOUT", folder)
        monkeypatch.setattr(run, "_listens", lambda server: server in self.listening)
        monkeypatch.setattr(run, "own_server", self.own_server)
        monkeypatch.setattr(run, "serve_page", self.serve_page)
        monkeypatch.setattr(run, "default_profile", lambda: "open")
        monkeypatch.setattr(own_agent, "wait_until_served", self.wait_until_served)
        monkeypatch.setattr(own_agent.OwnAgent, "follow", self.follow)
        monkeypatch.delenv(run.FOLDER_VARIABLE, raising=False)

    def note(self, port, **more):
        """A launcher's note about a server."""
        launcher = {"launcher": os.getpid(), "launcher_started": psutil.Process().create_time()}
        file = self.folder / "notes" / "default" / "server.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({**launcher, "endpoints": f"ready grpc=127.0.0.1:{port}", **more}))

    @contextmanager
    def own_server(self, _console, _name, **options):
        self.started.append(options)
        yield SimpleNamespace(endpoints=SimpleNamespace(grpc="127.0.0.1:5"))

    @asynccontextmanager
    async def serve_page(self, server, calls):
        self.pages.append((server, calls))
        yield f"http://page-of-{server}"

    async def wait_until_served(self, server, name, _tools, **_options):
        found = list(self.folder.rglob(f"{name}.toml"))
        self.asked.append((server, found[0].parent))
        if self.refusal:
            raise self.refusal

    async def follow(self):
        self.during()
        await asyncio.Event().wait()

    def run(self, *arguments):
        status = main(["run", str(self.source), *arguments])
        assert list(self.folder.rglob("*.toml")) == [], "the definition is gone"
        return status


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_command_starts_a_server_where_none_runs_and_ends_with_a_signal(machine, capsys, number):
    machine.during = lambda: os.kill(os.getpid(), number)
    assert machine.run("--profile", "tiny") == 0
    (options,) = machine.started
    folder = machine.folder / "notes" / "run" / "agents"
    assert options["environment"] == {"PARLEY_VOICE_AGENT_AGENTS": str(folder)}
    assert options["profile"] == "tiny"
    assert machine.asked == [("127.0.0.1:5", folder)]
    said = capsys.readouterr().out
    assert said.startswith("The server reads the agent tea …\nThe agent tea")
    assert "The agent tea is served, with 1 function; Ctrl-C ends it." in said
    assert "talk --server 127.0.0.1:5 --agent tea" in said
    assert "http://page-of-127.0.0.1:5/?agent=tea" in said


def test_every_call_of_a_server_that_is_started_may_be_recorded_as_a_whole(machine, tmp_path, capsys):
    assert machine.run("--record-debug", str(tmp_path / "records")) == 0
    assert machine.started[0]["environment"][run.RECORD_VARIABLE] == str(tmp_path / "records")
    machine.listening.add("127.0.0.1:8001")
    assert machine.run("--record-debug", str(tmp_path / "records")) == 2
    assert "--record-debug is for a server that is started" in capsys.readouterr().err


def test_index_of_knowledge_is_named_before_it_is_awaited(machine, capsys):
    machine.source.write_text(TEA.replace("'Sell tea.'", "'Sell tea.', knowledge=['*.md']"))
    (machine.folder / "teas.md").write_text("Oolong is a tea.")
    machine.refusal = ClientError("not served")
    machine.run()
    assert capsys.readouterr().out == "The server reads the agent tea, and indexes its knowledge …\n"


def test_command_uses_the_folder_that_the_launcher_of_a_running_server_has_noted(machine, capsys):
    machine.listening.add("127.0.0.1:8001")
    folder = machine.folder / "watched"
    machine.note(8001, agents=str(folder))
    assert machine.run() == 0
    assert (machine.started, machine.asked) == ([], [("127.0.0.1:8001", folder)])
    assert "http://page-of-127.0.0.1:8001/?agent=tea" in capsys.readouterr().out
    assert machine.pages == [("127.0.0.1:8001", None)], "its calls may be recorded elsewhere"


def test_server_that_is_spoken_to_by_tls_gets_no_page(machine, capsys):
    assert machine.run("--server", "127.0.0.1:9001", "--agents", str(machine.folder / "mine"), "--tls") == 0
    assert machine.pages == []
    assert "http://" not in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--tls", "--ca=a.pem", "--cert=a.pem", "--key=a.pem", "--server-name=a"])
def test_tls_to_a_server_that_is_started_is_refused(machine, capsys, option):
    assert machine.run(option) == 2
    assert (
        "options of TLS are for a server that runs, and none runs at 127.0.0.1:8001"
        in capsys.readouterr().err
    )
    assert machine.started == []


def test_tls_of_the_environment_does_not_count_for_a_server_that_is_started(machine, monkeypatch):
    monkeypatch.setenv("PARLEY_GRPC_CA_FILE", "a.pem")
    assert machine.run() == 0
    assert machine.started


STEP = "steps=[{'name': 'prices', 'instructions': 'Name prices.', 'tools': ['get_price']}]"


def test_agent_is_checked_once_with_its_functions_before_a_server_starts(machine, monkeypatch):
    checked = []
    check = agent_files.check_agents

    async def check_agents(found, repository, profile, environment):
        assert not machine.started
        checked.extend(found.values())
        return await check(found, repository, profile, environment)

    monkeypatch.setattr(agent_files, "check_agents", check_agents)
    machine.source.write_text(TEA.replace("'Sell tea.'", f"'Sell tea.', {STEP}"))
    assert machine.run("--profile", "tiny") == 0
    (file,) = checked
    assert file.definition.tools.mcp[0].tools == ["get_price"]


def test_step_with_a_function_that_is_not_there_is_refused_before_a_server_starts(machine, capsys):
    machine.source.write_text(TEA.replace("'Sell tea.'", f"'Sell tea.', {STEP.replace('get_', 'find_')}"))
    assert machine.run("--profile", "tiny") == 1
    assert "Agent(...): steps[0].tools: no tool 'find_price'" in capsys.readouterr().err
    assert machine.started == []


def test_folder_of_the_command_wins(machine):
    machine.note(9001, agents="/elsewhere")
    folder = machine.folder / "mine"
    assert machine.run("--server", "127.0.0.1:9001", "--agents", str(folder)) == 0
    assert machine.asked == [("127.0.0.1:9001", folder)]


@pytest.mark.parametrize("named", [True, False])
def test_server_without_a_launcher_has_the_folder_of_the_environment_or_the_usual_one(
    machine, monkeypatch, named
):
    usual, other = machine.folder / "agents", machine.folder / "other"
    usual.mkdir()
    if named:
        monkeypatch.setenv("PARLEY_VOICE_AGENT_AGENTS", str(other))
    assert machine.run("--server", "127.0.0.1:9001") == 0
    assert machine.asked == [("127.0.0.1:9001", other if named else usual)]


def test_server_that_looks_in_no_folder_is_refused(machine, capsys):
    machine.note(9001, agents="")
    assert machine.run("--server", "127.0.0.1:9001") == 2
    assert "name it with --agents FOLDER" in capsys.readouterr().err


def test_server_that_does_not_take_the_agent_is_an_error_with_advice(machine, capsys):
    machine.refusal = ClientError("127.0.0.1:9001 does not serve the agent tea after 20 s: no agent 'tea'")
    assert machine.run("--server", "127.0.0.1:9001", "--agents", str(machine.folder / "mine")) == 1
    said = capsys.readouterr().err
    assert "no agent 'tea'. The definition is in" in said
    assert "Its log says which definitions it has refused" in said


def test_profile_is_refused_for_a_server_that_runs(machine, capsys):
    machine.listening.add("127.0.0.1:8001")
    assert machine.run("--profile", "tiny") == 2
    assert "--profile is for a server that is started" in capsys.readouterr().err


def test_server_that_still_loads_is_waited_for_by_the_user(machine, capsys):
    machine.note(8001)
    assert machine.run() == 1
    assert "the server at 127.0.0.1:8001 is loading; try again in a while" in capsys.readouterr().err
