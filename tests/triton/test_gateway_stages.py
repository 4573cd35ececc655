"""The OpenAI SDK uses single stages through a gateway, with the real models behind it."""

from __future__ import annotations

import asyncio
import io
import json

import httpx
import numpy as np
import openai
import pytest
import soundfile
from websockets.asyncio.client import connect

from parley.launcher.options import ROOT
from parley_client.cli.demo_tools import DEMO_TOOLS
from parley_client.tools import ToolTable
from parley_gateway.app import create_app
from parley_gateway.serving import running
from parley_gateway.settings import load_settings

CLIPS = ROOT / "tests/data/conversation"
TOOLS = [
    {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
    }
    for tool in ToolTable(DEMO_TOOLS).definitions
]


def spoken():
    """What is said in which file."""
    manifest = json.loads((CLIPS / "manifest.json").read_text())
    return [(CLIPS / entry["file"], entry["text"]) for entry in manifest if entry["text"]]


@pytest.fixture
async def url(server):
    settings = load_settings(flags={"servers": {"addresses": [server.endpoints.grpc]}, "listen": {"port": 0}})
    async with running(settings, app=create_app(settings)) as gateway:
        yield gateway.url


@pytest.fixture
async def client(url):
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as connection:
        yield connection


async def test_the_models_are_listed(client):
    names = [model.id async for model in client.models.list()]
    assert names == ["parakeet_transcribe", "parakeet_tdt", "nemotron_streaming", "qwen3", "espeak"]
    assert (await client.models.retrieve("qwen3")).owned_by == "parley"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("gpt-4o")


async def test_recordings_are_written_down(client):
    for file, text in spoken():
        heard = await client.audio.transcriptions.create(model="whisper-1", file=file)
        assert heard.text == text
        assert heard.usage.seconds > 0


async def test_a_recording_is_written_down_in_detail(client):
    file, text = spoken()[1]
    heard = await client.audio.transcriptions.create(
        model="whisper-1",
        file=file,
        response_format="verbose_json",
        timestamp_granularities=["word", "segment"],
    )
    assert [word.word for word in heard.words] == text.split()
    assert all(word.start < word.end <= heard.duration for word in heard.words)
    assert [segment.text for segment in heard.segments] == [text]
    srt = await client.audio.transcriptions.create(model="whisper-1", file=file, response_format="srt")
    assert srt.startswith("1\n00:00:0")


async def test_a_recording_is_written_down_as_it_is_recognised(client):
    recordings = [soundfile.read(file, dtype="int16")[0] for file, _ in spoken()[:3]]
    quiet = np.zeros(12_000, np.int16)
    joined = io.BytesIO()
    audio = np.concatenate([part for recording in recordings for part in (recording, quiet)])
    soundfile.write(joined, audio, 16_000, format="WAV")
    stream = await client.audio.transcriptions.create(
        model="gpt-4o-transcribe", file=("joined.wav", joined.getvalue()), stream=True
    )
    events = [event async for event in stream]
    assert [event.type for event in events] == ["transcript.text.delta"] * 3 + ["transcript.text.done"]
    assert "".join(event.delta for event in events[:-1]) == events[-1].text
    assert events[-1].text == " ".join(text for _, text in spoken()[:3])


@pytest.mark.parametrize("form", ["mp3", "opus", "aac", "flac", "wav", "pcm"])
async def test_synthesized_speech_is_recognised(client, form):
    async with client.audio.speech.with_streaming_response.create(
        model="tts-1", voice="alloy", input="thank you", response_format=form
    ) as answer:
        audio = b"".join([part async for part in answer.iter_bytes()])
    if form == "pcm":
        wav = io.BytesIO()
        soundfile.write(wav, np.frombuffer(audio, "<i2"), 24_000, format="WAV")
        audio = wav.getvalue()
    heard = await client.audio.transcriptions.create(model="whisper-1", file=(f"a.{form}", audio))
    assert heard.text == "thank you"


async def test_a_voice_that_is_not_there(client):
    with pytest.raises(openai.BadRequestError) as caught:
        await client.audio.speech.create(model="tts-1", voice="missing", input="Hello.")
    assert caught.value.code == "unsupported_voice"


async def test_a_conversation_with_a_tool(client):
    messages = [{"role": "user", "content": "what's the weather in paris"}]
    stream = await client.chat.completions.create(
        model="gpt-4o", messages=messages, tools=TOOLS, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    (call,) = [call for chunk in chunks for one in chunk.choices for call in one.delta.tool_calls or []]
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    assert chunks[-2].choices[0].finish_reason == "tool_calls"
    assert chunks[-1].usage.completion_tokens > 0
    messages += [
        {
            "role": "assistant",
            "tool_calls": [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.function.name, "arguments": call.function.arguments},
                }
            ],
        },
        {"role": "tool", "tool_call_id": call.id, "content": '{"temperature": 8, "sky": "foggy"}'},
    ]
    answer = await client.chat.completions.create(model="gpt-4o", messages=messages, tools=TOOLS)
    assert answer.choices[0].message.content == "It's 8 degrees and foggy in Paris."


async def test_a_conversation_that_is_too_long(client):
    messages = [{"role": "user", "content": "a " * 5_000}]
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="gpt-4o", messages=messages)
    assert caught.value.code == "context_length_exceeded"


async def test_stories_left_by_their_clients_free_their_places(client):
    """A client that leaves makes room: more stories are begun than the server writes at once."""
    story = [{"role": "user", "content": "tell me a story"}]
    for _ in range(70):
        stream = await client.chat.completions.create(model="qwen3", messages=story, stream=True)
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await stream.close()
    answer = await client.chat.completions.create(model="qwen3", messages=story)
    assert answer.choices[0].finish_reason == "stop"


async def test_speech_is_written_down_for_clients_of_deepgram(url):
    file, text = spoken()[1]
    audio, _ = soundfile.read(file, dtype="int16")
    options = "encoding=linear16&sample_rate=16000&interim_results=true&vad_events=true"
    async with asyncio.timeout(60), connect(f"ws{url.removeprefix('http')}/v1/listen?{options}") as socket:
        for at in range(0, len(audio), 1_600):
            await socket.send(audio[at : at + 1_600].tobytes())
        await socket.send('{"type": "CloseStream"}')
        messages = [json.loads(message) async for message in socket]
    finals = [
        message["channel"]["alternatives"][0]["transcript"] for message in messages if message.get("is_final")
    ]
    assert finals == [text]
    assert {message["type"] for message in messages} == {"SpeechStarted", "Results", "Metadata"}
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        answer = await http.post("/v1/listen", content=file.read_bytes())
    assert answer.json()["results"]["channels"][0]["alternatives"][0]["transcript"] == text


async def test_text_is_spoken_for_clients_of_deepgram(url):
    async with asyncio.timeout(60), connect(f"ws{url.removeprefix('http')}/v1/speak") as socket:
        for word in "thank you. And good bye. ".split():
            await socket.send(json.dumps({"type": "Speak", "text": f"{word} "}))
        await socket.send('{"type": "Flush"}')
        await socket.send('{"type": "Close"}')
        messages = [message async for message in socket]
    audio = b"".join(message for message in messages if isinstance(message, bytes))
    assert 1 < len(audio) / 48_000 < 4
    assert [json.loads(message)["type"] for message in messages if isinstance(message, str)] == [
        "Metadata",
        "Flushed",
    ]
