"""Sessions of agents that files define."""

from __future__ import annotations

import asyncio

import pytest
from agent_fakes import FakeSynthesizer, open_call, says

from parley.agent.config import AgentConfig
from parley.agent.defined_agents import check_definition
from parley.agent.ports import Engines
from parley.agents.reader import AgentFileError, read_agent
from parley.agents.registry import AgentRegistry
from parley.protocol import Connected, ResponseDone, Start, Text

RESTAURANT = """instructions = "You take bookings."
greeting = "Bella Vista, good evening."
voice = "high"
[page]
title = "Bella Vista"
examples = ["a table for two"]
"""


@pytest.fixture
def agents(tmp_path):
    (tmp_path / "restaurant.toml").write_text(RESTAURANT)
    registry = AgentRegistry(tmp_path, lambda file: None)
    asyncio.run(registry.load())  # threads read the files, which the loop of the tests does not wait for
    return registry


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


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('\nvoice = "deep"', 2, "no voice 'deep'"),
        ('\nlanguage = "xx"', 2, "xx"),
        ('voice = "high"\nlanguage = "xx"', 2, "xx"),
        ('\n\ngreeting = "…"', 3, "greeting has no words"),
        ("[silence]\nprompts = []", 2, "silence.prompts has 0 entries"),
        ("[vad]\nmin_speech_ms = 3\nthreshold = 2.0", 3, "threshold"),
        ("[barge_in]\nmin_words = 99", 2, "barge_in.min_words is 99"),
        ("[sampling]\ntemperature = 9.0", 2, "temperature"),
    ],
)
def test_definition_that_no_session_could_have_names_its_field(tmp_path, text, line, words):
    path = tmp_path / "restaurant.toml"
    path.write_text(
        text.replace("[", 'instructions = "x" \n[', 1) if "[" in text else f'{text}\ninstructions = "x"'
    )
    line += text.startswith("[")
    engines = Engines(recognizer=None, chat=None, synthesizer=FakeSynthesizer())
    with pytest.raises(AgentFileError) as refused:
        check_definition(read_agent(path), engines, AgentConfig())
    assert f"restaurant.toml:{line}: " in str(refused.value)
    assert words in str(refused.value)


def test_instructions_that_leave_no_room_for_a_conversation_are_refused(tmp_path):
    path = tmp_path / "restaurant.toml"
    path.write_text(f'voice = "high"\ninstructions = "{"word " * 10_000}"')
    engines = Engines(recognizer=None, chat=None, synthesizer=FakeSynthesizer())
    with pytest.raises(AgentFileError, match=r"toml:2: the system prompt takes about \d+ tokens"):
        check_definition(read_agent(path), engines, AgentConfig())
