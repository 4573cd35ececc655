"""Clients of OpenAI's Responses are switched over by their address."""

from __future__ import annotations

import pytest
from agents import Agent, ModelSettings, OpenAIResponsesModel, RunConfig, Runner, function_tool
from livekit.agents import function_tool as livekit_tool
from livekit.agents import llm
from livekit.plugins import openai as livekit_openai
from openai import AsyncOpenAI, BadRequestError
from pydantic import BaseModel, ConfigDict

WEATHER = "what's the weather in paris"
PROMPT = "You are Parley, a friendly voice assistant. Keep answers short."
TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": True,
}


class Point(BaseModel):
    """What a response is made to be."""

    model_config = ConfigDict(extra="forbid")
    on: bool


@pytest.fixture
async def client(gateway):
    async with AsyncOpenAI(api_key="any", base_url=f"{gateway}/v1") as one:
        yield one


async def test_a_response_and_its_stream_are_equal(client):
    asked = {"model": "gpt-4o", "instructions": PROMPT, "input": "hello"}
    whole = await client.responses.create(**asked)
    assert (whole.status, whole.output_text) == ("completed", "Hello! How can I help you?")
    async with client.responses.stream(**asked) as events:
        deltas = [event.delta async for event in events if event.type == "response.output_text.delta"]
        last = await events.get_final_response()
    assert "".join(deltas) == last.output_text == whole.output_text
    assert last.usage.output_tokens == whole.usage.output_tokens > 0


async def test_tools_are_called_and_answered(client):
    items = [{"role": "user", "content": WEATHER}]
    asked = {"model": "gpt-4o", "instructions": PROMPT, "tools": [TOOL]}
    first = await client.responses.create(input=items, **asked)
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert (call.name, call.arguments) == ("get_weather", '{"city":"Paris"}')
    items += [item.model_dump() for item in first.output]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": '{"sky": "grey"}'})
    second = await client.responses.create(input=items, **asked)
    assert second.output_text


async def test_json_is_parsed(client):
    made = await client.responses.parse(model="gpt-4o", input="hello", text_format=Point)
    assert isinstance(made.output_parsed, Point)


async def test_a_refusal_names_its_parameter(client):
    with pytest.raises(BadRequestError) as caught:
        await client.responses.create(model="gpt-4o", input="hello", previous_response_id="resp_1")
    assert (caught.value.param, caught.value.code) == ("previous_response_id", "unsupported_parameter")


async def test_openais_agents(client):
    cities = []

    @function_tool
    def get_weather(city: str) -> str:
        """Get the current weather of a city."""
        cities.append(city)
        return "grey"

    agent = Agent(
        name="parley",
        instructions=PROMPT,
        tools=[get_weather],
        model=OpenAIResponsesModel("gpt-4o", client),
        model_settings=ModelSettings(tool_choice="required"),
    )
    result = await Runner.run(agent, WEATHER, run_config=RunConfig(tracing_disabled=True))
    assert cities == ["Paris"]
    assert result.final_output


async def test_livekits_language_model(gateway):
    @livekit_tool
    async def get_weather(city: str) -> str:
        """Get the current weather of a city."""
        return ""

    context = llm.ChatContext.empty()
    context.add_message(role="user", content=WEATHER)
    address = {"api_key": "any", "base_url": f"{gateway}/v1"}
    async with (
        livekit_openai.responses.LLM(model="gpt-4o", use_websocket=False, **address) as model,
        model.chat(chat_ctx=context, tools=[get_weather]) as answer,
    ):
        chunks = [chunk async for chunk in answer]
    (call,) = [call for chunk in chunks if chunk.delta for call in chunk.delta.tool_calls]
    assert (call.name, call.arguments) == ("get_weather", '{"city":"Paris"}')
