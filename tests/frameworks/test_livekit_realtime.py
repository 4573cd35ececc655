"""LiveKit's ``RealtimeModel`` talks to the agent, in a real agent session."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

from livekit.agents import Agent, AgentSession, function_tool
from livekit.plugins.openai.realtime import RealtimeModel
from livekit_call import Call, Ear, Loudspeaker
from realtime_call import INSTRUCTIONS, WEATHER, words
from recordings import Microphone, Notes

KINDS = ("conversation_item_added", "error", "function_tools_executed", "user_input_transcribed")


@function_tool
async def get_weather(city: str, day: str | None = None) -> str:
    """Get the weather in a city.

    Args:
        city: The name of the city.
        day: The day, if it is not now.
    """
    return json.dumps(WEATHER)  # as it is, the model would read Python


@asynccontextmanager
async def calling(gateway, *, key="none", model="gpt-realtime", instructions=INSTRUCTIONS):
    """A call to an agent that is this model alone."""
    notes, microphone, loudspeaker = Notes(), Microphone(), Loudspeaker()
    model = RealtimeModel(base_url=f"{gateway}/v1", api_key=key, model=model)
    session = AgentSession(llm=model, user_away_timeout=None)
    for kind in KINDS:
        session.on(kind, notes.add)
    session.input.audio = Ear(microphone)
    session.output.audio = loudspeaker
    await session.start(Agent(instructions=instructions, tools=[get_weather]))
    try:
        yield Call(session, microphone, loudspeaker, None, notes)
    finally:
        await session.aclose()
        await model.aclose()


async def test_holds_a_conversation(gateway):
    async with calling(gateway) as call:
        call.microphone.say("02-weather")
        user = await call.message("user", 0)
        assert "weather" in user.text_content
        answer = await call.message("assistant", 0)
        assert {"8", "foggy"} <= set(words(answer.text_content))
        assert [event.function_calls[0].name for event in call.of("function_tools_executed")] == [
            "get_weather"
        ]

        since = len(call.notes.events)
        played_s = call.loudspeaker.played_s
        call.microphone.say("06-story")
        await call.message("user", since)
        await asyncio.sleep(3.0)
        call.microphone.say("07-stop")
        story = await call.message("assistant", since)
        assert story.interrupted
        assert 1.0 < call.loudspeaker.played_s - played_s < 5.0
        since = len(call.notes.events)
        await call.message("assistant", since)
        assert not call.of("error")


async def test_answers_on_request(gateway):
    async with calling(gateway) as call:
        call.session.generate_reply(user_input="hello")
        answer = await call.message("assistant", 0)
        assert "hello" in words(answer.text_content)
        assert not call.of("error")


async def test_model_is_an_agent_of_the_server(agent_gateway):
    """The key may call no other agent."""
    url, key = agent_gateway
    async with calling(url, key=key, model="restaurant", instructions="") as call:
        call.session.generate_reply(user_input="hello")
        answer = await call.message("assistant", 0)
        assert "hello" in words(answer.text_content)
        assert not call.of("error")
