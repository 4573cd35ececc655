"""The plugins of LiveKit and Pipecat for OpenAI's single stages are switched over by their address."""

from __future__ import annotations

import pytest
from livekit import rtc
from livekit.agents import function_tool, llm
from livekit.plugins import openai
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import ErrorFrame, TranscriptionFrame
from pipecat.services.deepgram.stt import DeepgramSTTService
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.services.openai.stt import OpenAISTTService
from pipecat.services.openai.tts import OpenAITTSService
from pipecat_call import calling
from recordings import RATE, ROOT, recording

WEATHER = "what's the weather in paris"
PROMPT = "You are Parley, a friendly voice assistant. Keep answers short."


@pytest.fixture
def here(gateway):
    """Where the plugins are sent."""
    return {"api_key": "any", "base_url": f"{gateway}/v1"}


async def test_livekits_recognition(here):
    clip = recording("02-weather")
    async with openai.STT(**here) as hearing:
        heard = await hearing.recognize(rtc.AudioFrame(clip, RATE, 1, len(clip) // 2))
    assert heard.alternatives[0].text == WEATHER


@pytest.mark.parametrize("form", ["pcm", "wav", "opus", "mp3", "aac", "flac"])
async def test_livekits_speech(here, form):
    async with openai.TTS(response_format=form, **here) as voice:
        said = [audio async for audio in voice.synthesize("Hello there.")]
    assert 0.8 < sum(audio.frame.duration for audio in said) < 1.3
    assert said[0].request_id


async def test_livekits_language_model(here):
    @function_tool
    async def get_weather(city: str) -> str:
        """Get the current weather of a city."""
        return ""

    context = llm.ChatContext.empty()
    context.add_message(role="user", content=WEATHER)
    async with (
        openai.LLM(model="gpt-4o", **here) as model,
        model.chat(chat_ctx=context, tools=[get_weather]) as answer,
    ):
        chunks = [chunk async for chunk in answer]
    (call,) = [call for chunk in chunks if chunk.delta for call in chunk.delta.tool_calls]
    assert (call.name, call.arguments) == ("get_weather", '{"city":"Paris"}')
    assert chunks[-1].usage.completion_tokens > 0


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
async def test_livekits_language_model_is_made_to_call(here, choice):
    @function_tool
    async def get_weather(city: str) -> str:
        """Get the current weather of a city."""
        return ""

    context = llm.ChatContext.empty()
    context.add_message(role="user", content="hello")
    async with (
        openai.LLM(model="gpt-4o", **here) as model,
        model.chat(chat_ctx=context, tools=[get_weather], tool_choice=choice) as answer,
    ):
        chunks = [chunk async for chunk in answer]
    (call,) = [call for chunk in chunks if chunk.delta for call in chunk.delta.tool_calls]
    assert call.name == "get_weather"
    assert not any(chunk.delta and chunk.delta.content for chunk in chunks)


async def test_pipecats_recognition(here):
    hearing = OpenAISTTService(**here)
    clip = (ROOT / "tests/data/conversation/02-weather.wav").read_bytes()
    frames = [frame async for frame in hearing.run_stt(clip)]
    assert [frame.text for frame in frames if isinstance(frame, TranscriptionFrame)] == [WEATHER]


async def test_pipecats_conversation(gateway, here):
    hearing = DeepgramSTTService(api_key="any", base_url="ws" + gateway.removeprefix("http"))
    thinking = OpenAILLMService(
        settings=OpenAILLMService.Settings(model="gpt-4o", system_instruction=PROMPT), **here
    )
    speaking = OpenAITTSService(sample_rate=24_000, **here)
    async with calling(hearing, thinking, speaking, ToolsSchema([])) as call:
        assert await call.ask("01-hello") == ("hello", "Hello! How can I help you?")
        assert call.pipeline.of(ErrorFrame) == []
