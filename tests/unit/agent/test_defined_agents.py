"""Sessions of agents that files define."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from agent_fakes import FakeChat, FakeSynthesizer, calls, open_call, says

from parley.agent.config import AgentConfig
from parley.agent.defined_agents import AgentOpener, choose_agent
from parley.agent.ports import Engines
from parley.agents.reader import AgentFileError, read_agent
from parley.agents.registry import AgentModel, AgentRegistry, ServedAgent
from parley.checkpoint import CHECKPOINT_VERSION, Resume, SessionState
from parley.engines.openai_chat import OpenAiChatModel
from parley.protocol import Checkpoint, Connected, ResponseDone, Start, Text, Tool, ToolRun, Update, Updated
from parley.runtime.parameters import LOADED_MODELS_VARIABLE, Parameters
from parley.tools.base import ToolOutcome

RESTAURANT = """instructions = "You take bookings."
greeting = "Bella Vista, good evening."
voice = "high"
turn.eagerness = "patient"
[page]
title = "Bella Vista"
examples = ["a table for two"]
"""


class Tables:
    """Tools of the restaurant."""

    names = frozenset({"find_table"})
    tools = (Tool(name="find_table"),)

    def timeout_s(self, name):
        return None

    async def call(self, name, arguments, *, traceparent="", on_progress=None):
        return ToolOutcome({"at": "20:00"})

    async def close(self):
        pass


def make_agents(folder, **parts) -> AgentRegistry:
    """The restaurant alone. Its folder is not watched: the loop of the tests does not wait for threads."""

    async def open_agent(file):
        raise AssertionError(file)

    (folder / "restaurant.toml").write_text(RESTAURANT)
    registry = AgentRegistry(folder, open_agent)
    registry._agents["restaurant"] = ServedAgent(read_agent(folder / "restaurant.toml"), **parts)
    return registry


@pytest.fixture
def agents(tmp_path):
    return make_agents(tmp_path)


async def test_session_has_what_its_agent_defines(agents):
    call = await open_call(
        Start(agent="restaurant", describe=True), answers=[says("At eight.")], agents=agents
    )
    connected = await call.wait_for(Connected)
    assert connected.greets
    assert connected.agent.examples == ["a table for two"]
    assert not connected.agent.default_prompt
    assert [one.title for one in connected.agent.agents] == ["Bella Vista"]
    await call.wait_for(ResponseDone)
    call.send(Text(text="When?"))
    await call.end(ResponseDone, 2)
    assert call.chat.prompt()[0] == ("system", "You take bookings.")
    assert {request.voice for request in call.synthesizer.requests} == {"high"}


async def test_session_without_a_name_is_of_the_servers_own_agent(agents):
    call = await open_call(Start(describe=True), agents=agents)
    connected = await call.end(Connected)
    assert not connected.greets
    assert connected.agent.default_prompt
    assert [one.name for one in connected.agent.agents] == ["restaurant"]


async def test_unknown_name_is_refused_with_the_nearest(agents):
    call = await open_call(Start(agent="restorant"), agents=agents)
    assert call.outlet.codes == ["unknown_agent"]
    assert "did you mean restaurant?" in call.outlet.events[0].message
    assert not call.outlet.events[0].retryable
    assert call.outlet.reason == "failed"


async def test_name_is_refused_where_no_agents_are_defined():
    call = await open_call(Start(agent="restaurant"))
    assert call.outlet.codes == ["unknown_agent"]


async def test_tools_and_model_of_an_agent_serve_its_sessions_only(tmp_path):
    chat = FakeChat()
    chat.answers.extend([calls(("find_table", {})), says("At eight.")])
    agents = make_agents(tmp_path, tools=Tables(), model=AgentModel(chat, "openai_chat", "large"))
    call = await open_call(Start(agent="restaurant", greeting="", describe=True), agents=agents)
    connected = await call.wait_for(Connected)
    assert (connected.agent.language_model, connected.agent.tools) == ("large", ["find_table"])
    call.send(Text(text="When?"))
    run = await call.wait_for(ToolRun)
    await call.end(ResponseDone)
    assert (run.name, run.is_error) == ("find_table", False)
    assert not call.chat.requests
    assert len(chat.requests) == 2
    own = await open_call(Start(describe=True), agents=agents)
    connected = await own.wait_for(Connected)
    assert connected.agent.tools == []
    own.send(Text(text="Hello."))
    await own.end(ResponseDone)
    assert len(own.chat.requests) == 1


async def test_client_cannot_take_the_name_of_an_agents_tool(tmp_path):
    agents = make_agents(tmp_path, tools=Tables())
    call = await open_call(Start(agent="restaurant", tools=[Tool(name="find_table")]), agents=agents)
    assert call.outlet.codes == ["invalid_message"]


async def test_agent_is_in_use_until_its_session_has_ended(agents):
    ended = asyncio.ensure_future(agents.find("restaurant").close_when_unused())
    await ended
    call = await open_call(Start(agent="restaurant"), agents=agents)
    ended = asyncio.ensure_future(agents.find("restaurant").close_when_unused())
    await call.wait_for(Connected)
    assert not ended.done()
    await call.hang_up()
    call.send(end=True)
    await ended


async def test_update_and_checkpoint_work_on_the_merged_options(agents):
    call = await open_call(Start(agent="restaurant", checkpoints=True), agents=agents)
    await call.wait_for(ResponseDone)
    await call.request(Update(voice="low"), Updated)
    await call.end()
    *_, settings = [one.settings for one in call.outlet.of(Checkpoint) if one.settings]
    assert (settings.agent, settings.system_prompt) == ("restaurant", "You take bookings.")
    assert (settings.voice, settings.turn.eagerness) == ("low", "patient")


def resumed(name="restaurant", **options) -> Start:
    return Start(agent=name, resume=Resume(state=SessionState(version=CHECKPOINT_VERSION)), **options)


async def test_session_that_goes_on_keeps_its_options_and_gets_tools_anew(tmp_path):
    agents = make_agents(tmp_path, tools=Tables())
    start = resumed(system_prompt="You took bookings.", greeting="Welcome.")
    engines = Engines(recognizer=None, chat=None, synthesizer=None, agents=agents)
    choice = choose_agent(start, engines, AgentConfig())
    assert choice.start is start
    assert choice.engines.server_tools.names == {"find_table"}


async def test_session_that_goes_on_is_refused_where_its_agent_is_not(agents):
    """The client then tries the next server."""
    call = await open_call(resumed("clinic"), agents=agents)
    assert call.outlet.codes == ["unknown_agent"]


# --- what is refused when a definition is opened ---------------------------------------


class ServerTools(Tables):
    names = frozenset({"get_time"})


TOOL = """[tools]
allowed_hosts = ["api.example.com"]
[[tools.http]]
name = "find_table"
url = "https://api.example.com/tables"
"""


def opener(folder, config=None, **environment) -> AgentOpener:
    parameters = Parameters(
        "voice_agent", {}, model_dir=folder / "models" / "voice_agent", environment=environment
    )
    return AgentOpener(
        FakeSynthesizer(), ServerTools(), config or AgentConfig(), parameters, client=None, llm_timeout_s=20.0
    )


def define(folder, text: str):
    path = folder / "restaurant.toml"
    path.write_text(f'instructions = "x"\n{text}')
    return read_agent(path)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('\nvoice = "deep"', 3, "no voice 'deep'"),
        ('\nlanguage = "xx"', 3, "language 'xx' is not spoken"),
        ('\n\ngreeting = "…"', 4, "greeting has no words"),
        ("[silence]\nprompts = []", 3, "silence.prompts has 0 entries"),
        ("[vad]\nmin_speech_ms = 3\nthreshold = 2.0", 4, "threshold"),
        ("[barge_in]\nmin_words = 99", 3, "barge_in.min_words is 99"),
        ("[sampling]\ntemperature = 9.0", 3, "temperature"),
        ('[model]\nname = "gpt"', 3, "no engine 'gpt'; there are qwen3"),
        ('[model]\nname = "openai_chat"', 3, "needs model.url"),
        ('[model]\nurl = "ftp://host"\nmodel = "m"', 3, "no URL of the form https://host/v1"),
        ('[model]\nurl = "https://host/v1"', 3, "model.model must name"),
        ('[model]\nname = "qwen3"\nurl = "https://host/v1"', 4, "it is one of them"),
        ('[model]\nurl = "http://h"\nmodel = "m"\nkey_file = "no"', 5, "cannot be read: FileNotFoundError"),
        (TOOL.replace("https", "ftp"), 4, "tool 'find_table': 'ftp://api.example.com/tables' is no url"),
        (f'{TOOL}headers = {{ X-Key = "${{KEY}}" }}', 4, "environment variable KEY is not set"),
        (f'{TOOL}[[tools.http]]\nname = "find_table"\nurl = "https://api.example.com/"', 7, "two tools of"),
        ('[[tools.mcp]]\nname = "m"\ntools = ["a"]', 2, "MCP server 'm' must have either a url or a command"),
        (f"server_tools = true\n{TOOL.replace('find_table', 'get_time')}", 5, "the server has a tool of"),
    ],
)
async def test_definition_that_no_session_could_have_names_its_field(tmp_path, text, line, words):
    with pytest.raises(AgentFileError) as refused:
        await opener(tmp_path).open(define(tmp_path, text))
    assert f"restaurant.toml:{line}: " in str(refused.value)
    assert words in str(refused.value)


async def test_instructions_that_leave_no_room_for_a_conversation_are_refused(tmp_path):
    file = define(tmp_path, "")
    file = replace(file, definition=type(file.definition)(instructions="word " * 10_000))
    with pytest.raises(AgentFileError, match=r"toml:1: the system prompt takes about \d+ tokens"):
        await opener(tmp_path).open(file)


async def test_larger_window_of_its_own_model_takes_longer_instructions(tmp_path):
    file = define(tmp_path, '[model]\nurl = "https://host/v1"\nmodel = "m"\ncontext_tokens = 131072')
    text = "word " * 10_000
    file = replace(file, definition=type(file.definition)(instructions=text, model=file.definition.model))
    agent = await opener(tmp_path).open(file)
    await agent.close_when_unused()


async def test_model_that_is_not_loaded_is_refused(tmp_path):
    config = AgentConfig(llm="openai_chat")
    with pytest.raises(AgentFileError, match=r"toml:3: qwen3 cannot be used: it is not loaded"):
        await opener(tmp_path, config, **{LOADED_MODELS_VARIABLE: "piper"}).open(
            define(tmp_path, '[model]\nname = "qwen3"')
        )
    found = await opener(tmp_path, config, **{LOADED_MODELS_VARIABLE: "qwen3"}).open(
        define(tmp_path, '[model]\nname = "qwen3"')
    )
    assert found.model.engine == "qwen3"


@pytest.mark.parametrize(
    ("more", "names"), [("", {"find_table"}), ("server_tools = true\n", {"find_table", "get_time"})]
)
async def test_agent_has_its_own_tools_and_the_servers_only_where_it_asks_for_them(tmp_path, more, names):
    agent = await opener(tmp_path).open(define(tmp_path, f"{more}{TOOL}"))
    assert set(agent.tools.names) == names
    assert {tool.name for tool in agent.tools.tools} >= {"find_table"}
    await agent.close_when_unused()


async def test_agent_without_tools_has_none_of_the_servers(tmp_path):
    assert (await opener(tmp_path).open(define(tmp_path, ""))).tools is None


async def test_remote_model_of_an_agent_is_closed_with_it(tmp_path):
    (tmp_path / "key").write_text("secret\n")
    text = '[model]\nurl = "https://host/v1"\nmodel = "large"\nkey_file = "key"'
    agent = await opener(tmp_path).open(define(tmp_path, text))
    assert isinstance(agent.model.chat, OpenAiChatModel)
    assert (agent.model.engine, agent.model.weights) == ("openai_chat", "large")
    await agent.close_when_unused()
    assert agent.model.chat._client.is_closed
