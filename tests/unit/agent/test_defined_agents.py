"""Sessions of agents that files define."""

from __future__ import annotations

import asyncio

import pytest
from agent_fakes import FakeChat, calls, open_call, says
from served_agents import Tables, make_agents

from parley.agent.config import AgentConfig
from parley.agent.defined_agents import choose_agent
from parley.agent.ports import Engines
from parley.agents.registry import AgentModel
from parley.checkpoint import CHECKPOINT_VERSION, Resume, SessionState
from parley.protocol import Checkpoint, Connected, ResponseDone, Start, Text, Tool, ToolRun, Update, Updated

RESTAURANT = """instructions = "You take bookings."
greeting = "Bella Vista, good evening."
voice = "high"
turn.eagerness = "patient"
[page]
title = "Bella Vista"
examples = ["a table for two"]
"""


@pytest.fixture
def agents(tmp_path):
    return make_agents(tmp_path, RESTAURANT)


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
    agents = make_agents(
        tmp_path, RESTAURANT, tools=Tables(), model=AgentModel(chat, (("openai_chat", "large"),))
    )
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
    agents = make_agents(tmp_path, RESTAURANT, tools=Tables())
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
    agents = make_agents(tmp_path, RESTAURANT, tools=Tables())
    start = resumed(system_prompt="You took bookings.", greeting="Welcome.")
    engines = Engines(recognizer=None, chat=None, synthesizer=None, agents=agents)
    choice = choose_agent(start, engines, AgentConfig())
    assert choice.start is start
    assert choice.engines.server_tools.names == {"find_table"}


async def test_session_that_goes_on_is_refused_where_its_agent_is_not(agents):
    """The client then tries the next server."""
    call = await open_call(resumed("clinic"), agents=agents)
    assert call.outlet.codes == ["unknown_agent"]
