"""``parley run``: an agent of a Python file at a server that is not there."""

from __future__ import annotations

import asyncio
import io
import tomllib
from contextlib import asynccontextmanager

import pytest
from rich.console import Console

from parley.agents.reader import MAX_FILE, read_agent
from parley.errors import (
    ModelUnavailableError,
    TooManySessionsError,
    UnknownAgentError,
    UnsupportedVoiceError,
)
from parley.tools.toolbox import Toolbox
from parley_client.agent_program import AgentProgram, LoadedAgent
from parley_client.agent_registration import Registration
from parley_client.cli import own_agent
from parley_client.cli.commands.run import check_agent
from parley_client.cli.own_agent import OwnAgent, wait_until_served
from parley_client.cli.program import main
from parley_client.errors import ClientError, ToolDefinitionError
from parley_client.tool_server import ToolServer

RESTAURANT = '''
from parley_client import Agent, tool

agent = Agent(instructions="Take reservations.", page={"title": "Trattoria"})

@tool
def book_table(time: str, people: int = 2) -> dict:
    """Book a table."""
    return {"booked": time}

@tool(timeout_s=20.0)
async def cancel(name: str) -> str:
    """Cancel it."""
    return "done"
'''


class Output(io.StringIO):
    """What the command prints."""

    def __init__(self):
        super().__init__()
        self.written = asyncio.Event()

    def write(self, text):
        self.written.set()
        return super().write(text)


class Served:
    """An agent that is served, with what the command prints."""

    def __init__(self, folder):
        self.source, self.agents = folder / "restaurant.py", folder / "agents"
        self.source.write_text(RESTAURANT)
        self.output = Output()
        self.tools = ToolServer()

    @asynccontextmanager
    async def running(self):
        program = AgentProgram(self.source)
        loaded = program.load()
        console = Console(file=self.output, width=200)
        async with self.tools.serving():
            with Registration(self.agents, loaded.name) as place:
                agent = OwnAgent(program, self.tools, place, check_agent, console)
                agent.publish(loaded)
                following = asyncio.create_task(agent.follow())
                yield self
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)

    @property
    def definition(self):
        return tomllib.loads((self.agents / "restaurant.toml").read_text())

    async def change(self, old, new, says):
        """Change the file, and wait for a line of the command."""
        before = self.output.getvalue().count(says)
        text = self.source.read_text()
        assert old in text
        self.source.write_text(text.replace(old, new))
        async with asyncio.timeout(20):
            while self.output.getvalue().count(says) == before:
                self.output.written.clear()
                await self.output.written.wait()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(own_agent, "_POLL_S", 0.01)
    monkeypatch.setattr(own_agent, "_SETTLE_S", 0.0)
    monkeypatch.setattr(own_agent, "TAKEN_S", 0.0)


@pytest.fixture
async def served(tmp_path):
    async with Served(tmp_path).running() as running:
        yield running


async def test_definition_has_the_functions_as_tools_of_an_mcp_server(served):
    found = served.definition
    assert found["instructions"] == "Take reservations."
    assert found["page"] == {"title": "Trattoria"}
    assert found["tools"]["private_hosts"] == ["127.0.0.1"]
    (server,) = found["tools"]["mcp"]
    assert server["url"].partition("?")[0] == served.tools.url
    assert server["tools"] == ["book_table", "cancel"]
    assert server["timeout_ms"] == 21_000, "longer than the functions' own deadlines"


async def test_function_in_the_background_is_one_at_the_server(tmp_path):
    served = Served(tmp_path)
    served.source.write_text(RESTAURANT.replace("@tool(timeout_s=20.0)", "@tool(background=True)"))
    async with served.running():
        (server,) = served.definition["tools"]["mcp"]
        assert server["background"] == ["cancel"]
        assert (server["timeout_ms"], server["background_timeout_ms"]) == (11_000, 301_000)


async def test_marks_of_each_function_reach_the_server(tmp_path):
    served = Served(tmp_path)
    marked = RESTAURANT.replace("@tool\n", "@tool(cancel_on_interruption=False)\n")
    served.source.write_text(marked.replace("timeout_s=20.0", "background=True, announce=False"))
    async with served.running():
        settings = read_agent(served.agents / "restaurant.toml").definition.tools
        box = Toolbox(settings, {})
        await box.open()
        try:
            found = {one.name: (one.mode, one.announce, one.cancel_on_interruption) for one in box.tools}
        finally:
            await box.close()
    assert found == {"book_table": ("blocking", True, False), "cancel": ("background", False, None)}


async def test_type_that_is_not_there_leaves_the_agent_as_it_was(tmp_path):
    served = Served(tmp_path)
    served.source.write_text(f"from __future__ import annotations\n{RESTAURANT}")
    async with served.running():
        before = served.definition
        await served.change("time: str", "time: strr", "What was served before stays.")
        assert "strr" in served.output.getvalue()
        assert served.definition == before


async def test_changed_file_is_served_under_another_address(served):
    before = served.definition
    await served.change("Take reservations", "Sell pizza", "has changed")
    after = served.definition
    assert after["instructions"] == "Sell pizza."
    assert after["tools"]["mcp"][0]["url"] != before["tools"]["mcp"][0]["url"]


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("agent = Agent(", "agent = Agent((", "SyntaxError"),
        ("instructions=", "instrutions=", "unknown field 'instrutions' (did you mean instructions?)"),
        ("Agent(", "Agent(greeting=3, ", "greeting"),
        ("Agent(", "Agent(name='other', ", "the name of the agent stays 'restaurant'"),
        ("timeout_s=20.0", "timeout_s=500.0", "a timeout_s of 119 s at most"),
        ("page=", "tools=", "unknown field 'title'"),
        ("Agent(", "Agent(webhooks=5, ", "webhooks: Expected `array`, got `int`"),
        ("Agent(", "Agent(model={'fallback': True}, ", "model.fallback: Expected `array`, got `bool`"),
        ("Agent(", "Agent(tools=[], ", "tools: Expected `object`, got `array`"),
        ("Agent(", "Agent(tools={'private_hosts': 5}, ", "tools.private_hosts: Expected `array`, got `int`"),
        ("Agent(", "Agent(tools={'mcp': 3}, ", "tools.mcp: Expected `array`, got `int`"),
        ('"""Book a table."""', "", "needs a docstring"),
    ],
)
async def test_unusable_change_leaves_the_old_agent_in_force(served, old, new, why):
    before = served.definition
    await served.change(old, new, "What was served before stays.")
    assert why in served.output.getvalue()
    assert served.definition == before


async def test_calls_of_functions_are_shown(served):
    from mcp import Client

    async with Client(served.tools.url) as client:
        await client.call_tool("book_table", {"time": "7:30"})
        await client.call_tool("book_table", {"place": "[bold]"})
    lines = served.output.getvalue()
    assert 'book_table(time="7:30") → {"booked": "7:30"}' in lines
    assert "unknown argument 'place'" in lines


async def test_agent_without_functions_needs_no_server_of_tools(tmp_path):
    served = Served(tmp_path)
    served.source.write_text("from parley_client import Agent\nagent = Agent(instructions='Sell tea.')\n")
    async with served.running():
        assert served.definition == {"instructions": "Sell tea."}


async def test_file_is_gone_when_the_command_ends(tmp_path):
    async with Served(tmp_path).running() as served:
        assert (served.agents / "restaurant.toml").exists()
    assert list(served.agents.iterdir()) == []


class FakeServer:
    """Answers attempts to call the agent one after the other."""

    def __init__(self, monkeypatch, *answers):
        self.answers, self.asked = list(answers), []
        monkeypatch.setattr(own_agent, "connect", self.connect)
        monkeypatch.setattr(own_agent, "SERVED_S", 0.3)

    @asynccontextmanager
    async def connect(self, server, *, agent, test, **options):
        assert test, "it is no caller's"
        self.asked.append((server, agent))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is not None:
            raise answer
        yield


async def test_agent_is_awaited_until_the_server_has_read_the_folder(monkeypatch):
    tools = ToolServer()
    tools.listed.set()
    server = FakeServer(monkeypatch, UnknownAgentError("no agent"), TooManySessionsError("full"), None)
    await wait_until_served("127.0.0.1:9", "tea", tools)
    assert server.asked == [("127.0.0.1:9", "tea")] * 3


async def test_agent_that_is_being_read_is_awaited_for_longer(monkeypatch):
    """Its knowledge is being indexed."""
    reading = ModelUnavailableError("the agent 'tea' is being read")
    server = FakeServer(monkeypatch, *[reading] * 50, None)
    monkeypatch.setattr(own_agent, "_POLL_S", 0.01)
    await wait_until_served("127.0.0.1:9", "tea", None, indexes=True)
    assert len(server.asked) == 51
    monkeypatch.setattr(own_agent, "INDEXED_S", 0.1)
    server.answers = [reading]
    for indexes in (True, False):
        with pytest.raises(ClientError, match="'tea' is being read"):
            await wait_until_served("127.0.0.1:9", "tea", None, indexes=indexes)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (UnknownAgentError("no agent 'tea' on this server"), r"after 0 s: no agent 'tea'"),
        (None, r"after 0 s: it has not connected to the functions"),
        (UnsupportedVoiceError("no voice 'x'"), "refuses calls to the agent tea: no voice 'x'"),
    ],
)
async def test_agent_that_is_never_served_is_an_error_with_the_reason(monkeypatch, answer, why):
    FakeServer(monkeypatch, answer)
    with pytest.raises(ClientError, match=why):
        await wait_until_served("127.0.0.1:9", "tea", ToolServer())


def tea(**fields):
    return LoadedAgent("tea", {"instructions": "Sell tea.", **fields}, [])


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"instructions": 3}, "instructions"),
        ({"greeting": "Hello. " * MAX_FILE}, f"more than {MAX_FILE} bytes"),
        ({"telephone": {"numbers": 2 * ["+493012345678"]}}, r"\+493012345678 stands there twice"),
    ],
)
def test_definition_is_checked_by_the_servers_reader(wrong, why):
    check_agent(tea())
    with pytest.raises(ToolDefinitionError, match=rf"^Agent\(\.\.\.\): .*{why}"):
        check_agent(tea(**wrong))


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"voice": "bob"}, "there is no voice 'bob'"),
        ({"knowledge": ["/nowhere/*.md"]}, "/nowhere cannot be read"),
    ],
)
def test_what_a_server_of_the_profile_refuses_is_refused_before(wrong, why):
    check_agent(tea(), "tiny")
    with pytest.raises(ToolDefinitionError, match=rf"^Agent\(\.\.\.\): .*{why}"):
        check_agent(tea(**wrong), "tiny")


def test_command_names_what_is_wrong_with_the_file_before_it_starts_anything(tmp_path, capsys):
    file = tmp_path / "tea.py"
    file.write_text("from parley_client import Agent\nagent = Agent(instructions='Sell tea.', voise='joe')\n")
    assert main(["run", str(file), "--server", "127.0.0.1:1"]) == 1
    assert "unknown field 'voise' (did you mean voice?)" in capsys.readouterr().err


def test_server_of_another_machine_is_refused(tmp_path, capsys):
    file = tmp_path / "tea.py"
    file.write_text("from parley_client import Agent\nagent = Agent(instructions='Sell tea.')\n")
    assert main(["run", str(file), "--server", "10.1.2.3:8001"]) == 2
    assert "10.1.2.3:8001 is on another machine" in capsys.readouterr().err
