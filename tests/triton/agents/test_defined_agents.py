"""Agents that files define, on the real server: chosen by name, and changed while calls go on."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import aclosing, asynccontextmanager

import pytest
from test_remote_chat import remote_chat

from parley.errors import UnknownAgentError
from parley.protocol import KnowledgeUsed, ResponseDone, ResponseText, Start
from parley_client.call import Call
from parley_client.transport import TritonTransport

CLINIC = 'instructions = "You make appointments."\ngreeting = "The clinic, good morning."\n'
RESTAURANT = """instructions = "{instructions}"
[model]
url = "{url}"
model = "large"
[page]
title = "Bella Vista"
[telephone]
numbers = ["+493012345678"]
"""
HELPDESK = """instructions = "You are the help desk."
knowledge = ["docs/**/*.md"]
[model]
url = "{url}"
model = "large"
"""


@pytest.fixture(scope="module")
def served(server):
    """The server, what defines the restaurant, and what the remote model was asked."""
    agents = server.agents
    with remote_chat() as (url, asked):
        restaurant = RESTAURANT.replace("{url}", url)
        (agents / "docs").mkdir()
        (agents / "docs" / "manual.md").write_text("# Printers\nThey are repaired on Tuesdays.")
        server.write_agents(
            helpdesk=HELPDESK.replace("{url}", url),
            clinic=CLINIC,
            restaurant=restaurant.replace("{instructions}", "You take bookings."),
        )
        yield server, restaurant, asked
        server.remove_agents("helpdesk", "clinic", "restaurant")


@asynccontextmanager
async def calling(server, agent: str):
    """A call of an agent by text, and what the server says of itself."""
    transport = TritonTransport(server.address)
    try:
        call_id = uuid.uuid4().hex
        stream = await transport.open(call_id, 10.0)
        async with aclosing(Call(stream, call_id, Start(agent=agent, output="text", describe=True))) as call:
            yield call, await call.open()
    finally:
        await transport.close()


async def answer(call, text: str = "") -> str:
    """What the agent says next, after ``text`` if there is one."""
    if text:
        call.send_text(text)
    said = ""
    async for event in call:
        if isinstance(event, ResponseText):
            said += event.text
        if isinstance(event, ResponseDone):
            return said
    raise AssertionError("the call has ended")


async def greeting_of(server, agent: str) -> str:
    async with calling(server, agent) as (call, connected):
        return await answer(call) if connected.greets else ""


def prompts(asked) -> dict[str, str]:
    """By the last message of each request to the remote model, its system prompt."""
    return {body["messages"][-1]["content"]: body["messages"][0]["content"] for body in asked}


async def test_agents_are_chosen_by_name_and_changed_while_calls_go_on(served):
    server, restaurant, asked = served
    agents = server.agents
    async with calling(server, "restaurant") as (call, connected):
        others = {one.name: one.numbers for one in connected.agent.agents}
        assert list(others) == ["clinic", "helpdesk", "restaurant"]
        assert others["restaurant"] == ["+493012345678"]
        assert (connected.agent.language_model, connected.agent.default_prompt) == ("large", False)
        assert await answer(call, "A table for two.") == "I see."
        assert await greeting_of(server, "clinic") == "The clinic, good morning."

        (agents / "restaurant.toml").write_text(restaurant.replace("{instructions}", "You are closed."))
        await asyncio.to_thread(server.wait_until_said, "the agent restaurant is served to new calls", 4)
        async with calling(server, "restaurant") as (later, _):
            await answer(later, "Hello.")
            await answer(call, "At eight.")
        found = prompts(asked)
        assert found["A table for two."] == found["At eight."] == "You take bookings."
        assert found["Hello."] == "You are closed."

    (agents / "clinic.toml").write_text(f"{CLINIC}voise = 1")
    (agents / "restaurant.toml").unlink()
    await asyncio.to_thread(server.wait_until_said, "agents/clinic.toml:3: unknown field 'voise'")
    await asyncio.to_thread(server.wait_until_said, "the agent restaurant is served no more")
    assert await greeting_of(server, "clinic") == "The clinic, good morning."
    with pytest.raises(UnknownAgentError, match="no agent 'restaurant'"):
        await greeting_of(server, "restaurant")


async def test_answer_has_passages_of_the_documents_of_its_agent(served):
    server, _, asked = served

    async def passages_for(question: str) -> tuple[list[str], str]:
        """The headings that the client gets, and what the language model reads before the question."""
        used = []
        async with calling(server, "helpdesk") as (call, _):
            call.send_text(question)
            async for event in call:
                used += [one.heading for one in event.sources] if isinstance(event, KnowledgeUsed) else []
                if isinstance(event, ResponseDone):
                    break
        (body,) = [body for body in asked if body["messages"][-1]["content"] == question]
        return used, body["messages"][-2]["content"]

    used, read = await passages_for("When are printers repaired?")
    assert used == ["Printers"]
    assert "They are repaired on Tuesdays." in read
    (server.agents / "docs" / "vpn.md").write_text("# Network\nThe VPN is called Cerberus.")
    async with asyncio.timeout(60):
        # A file has no event.
        while (await passages_for(f"What is the VPN {uuid.uuid4().hex}?"))[0][:1] != ["Network"]:  # noqa: ASYNC110
            await asyncio.sleep(0.5)
