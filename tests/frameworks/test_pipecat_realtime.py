"""Pipecat's ``OpenAIRealtimeLLMService`` talks to the agent, in a real pipeline."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import (
    BotStartedSpeakingFrame,
    ErrorFrame,
    InterruptionFrame,
    LLMRunFrame,
    TranscriptionFrame,
    TTSTextFrame,
)
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.services.openai.realtime import events
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from pipecat_call import Caller, Listener, running
from realtime_call import INSTRUCTIONS, WEATHER, words
from recordings import Microphone

TOOLS = ToolsSchema(
    [
        FunctionSchema(
            name="get_weather",
            description="Get the weather in a city.",
            properties={
                "city": {"type": "string", "description": "The name of the city."},
                "day": {"type": ["string", "null"], "description": "The day, if it is not now."},
            },
            required=["city"],
        )
    ]
)


@asynccontextmanager
async def calling(gateway, *, key="none", model="gpt-realtime", instructions=INSTRUCTIONS):
    """A pipeline that is this service alone, and its microphone."""
    microphone, listener = Microphone(), Listener()
    audio = events.AudioConfiguration(
        input=events.AudioInput(
            transcription=events.InputAudioTranscription(),
            turn_detection=events.SemanticTurnDetection(eagerness="high"),
        )
    )
    service = OpenAIRealtimeLLMService(
        api_key=key,
        base_url=f"{gateway.replace('http', 'ws', 1)}/v1/realtime",
        settings=OpenAIRealtimeLLMService.Settings(
            model=model, session_properties=events.SessionProperties(instructions=instructions, audio=audio)
        ),
    )
    asked = []

    async def get_weather(params):
        asked.append(params.arguments["city"])
        await params.result_callback(WEATHER)

    service.register_function("get_weather", get_weather)
    context = LLMContext([{"role": "user", "content": "hello"}], TOOLS)
    user, assistant = LLMContextAggregatorPair(context)
    async with running(Caller(microphone), user, service, listener, assistant) as pipeline:
        yield pipeline, microphone, asked


def said(pipeline, since):
    """The words of the agent since then."""
    return words(" ".join(frame.text for frame in pipeline.of(TTSTextFrame, since)))


async def wait_said(pipeline, since, *expected):
    """Until the agent has said these words."""
    await pipeline.notes.wait(
        lambda frame: isinstance(frame, TTSTextFrame) and set(expected) <= set(said(pipeline, since)),
        since=since,
    )


async def test_holds_a_conversation(gateway):
    async with calling(gateway) as (pipeline, microphone, asked):
        await pipeline.worker.queue_frame(LLMRunFrame())
        await wait_said(pipeline, 0, "hello")
        await asyncio.sleep(2.5)

        since = len(pipeline.notes.events)
        microphone.say("02-weather")
        heard = await pipeline.wait_for(TranscriptionFrame, since=since)
        assert "weather" in heard.text
        await wait_said(pipeline, since, "8", "foggy")
        assert [city.lower() for city in asked] == ["paris"]
        await asyncio.sleep(3.5)

        since = len(pipeline.notes.events)
        microphone.say("06-story")
        await pipeline.wait_for(BotStartedSpeakingFrame, since=since)
        await asyncio.sleep(2.0)
        since = len(pipeline.notes.events)
        microphone.say("07-stop")
        await pipeline.wait_for(InterruptionFrame, since=since)
        await wait_said(pipeline, since, "okay")
        assert not pipeline.of(ErrorFrame)


async def test_model_is_an_agent_of_the_server(agent_gateway):
    """The key may call no other agent."""
    url, key = agent_gateway
    async with calling(url, key=key, model="restaurant", instructions=None) as (pipeline, _, _):
        await pipeline.worker.queue_frame(LLMRunFrame())
        await wait_said(pipeline, 0, "hello")
        assert not pipeline.of(ErrorFrame)
