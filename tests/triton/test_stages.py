"""The clients of single stages against the real server."""

from __future__ import annotations

import asyncio
import re
import sys

import numpy as np
import pytest
from rails import final_text, read_clips

from parley.asr.messages import AsrOptions, SpeechStartedEvent, TranscriptEvent
from parley.chat import ChatMessage
from parley.errors import InvalidInputError, UnsupportedLanguageError, UnsupportedVoiceError
from parley.launcher.options import ROOT
from parley.llm.messages import Completed, Sampling, TextDelta, ToolCalled
from parley_client.cli.demo_tools import DEMO_TOOLS
from parley_client.tools import ToolTable
from parley_stages import FinalizedEvent, Generation, Recognition, Synthesis, open_server

RAILS = ("parakeet_tdt", "nemotron_streaming")
TEXT = "It's 8 degrees in Paris. Do you want to know more, Dr. Miller? Just ask."


@pytest.fixture(scope="module")
def clips():
    return read_clips(ROOT / "tests/data/conversation")


@pytest.fixture
async def stages(server):
    async with open_server(server.endpoints.grpc) as connection:
        yield connection


def samples(audio):
    return [audio[at : at + 320].tobytes() for at in range(0, len(audio), 320)]


def text_of(events):
    return "".join(event.text for event in events if isinstance(event, TextDelta))


@pytest.mark.parametrize("model", RAILS)
async def test_speech_is_written_down(stages, clips, model):
    clip = max(clips, key=lambda clip: len(clip.audio))
    async with Recognition(stages, AsrOptions(phrases=["pasta"]), model=model) as stream:
        for piece in samples(clip.audio):
            stream.send(piece)
        stream.end()
        events = [event async for event in stream]
    assert final_text(events) == clip.text
    assert any(isinstance(event, SpeechStartedEvent) for event in events)
    assert any(isinstance(event, TranscriptEvent) and not event.is_final for event in events)


@pytest.mark.parametrize("model", RAILS)
async def test_speech_is_written_down_at_once_where_it_is_asked_for(stages, clips, model):
    async with Recognition(stages, model=model) as stream:
        spoken = clips[0].audio[: -len(clips[0].audio) // 4]
        await stream.send_all(spoken)
        stream.finalize()
        events = []
        while not isinstance(event := await anext(stream), FinalizedEvent):
            events.append(event)
    assert final_text(events) == clips[0].text
    assert event.at_ms == len(spoken) // 16


@pytest.mark.parametrize("model", RAILS)
async def test_many_streams_share_a_connection(stages, clips, model):
    async def write_down(clip):
        async with Recognition(stages, model=model) as stream:
            await stream.send_all(clip.audio)
            stream.end()
            return final_text([event async for event in stream])

    some = clips[:4] * 2
    assert await asyncio.gather(*map(write_down, some)) == [clip.text for clip in some]


async def test_a_stream_that_cannot_be_served_is_refused(stages):
    with pytest.raises(UnsupportedLanguageError):
        async with Recognition(stages, AsrOptions(language="xx")):
            pytest.fail("it was opened")


async def test_the_language_model_answers_and_calls_tools(stages):
    tools = ToolTable(DEMO_TOOLS).definitions
    question = [ChatMessage(role="user", content="what's the weather in paris")]
    async with Generation(stages) as chat:
        async with chat.answer(question, tools=tools) as answer:
            events = [event async for event in answer]
        (called,) = [event.call for event in events if isinstance(event, ToolCalled)]
        assert (called.name, called.arguments) == ("get_weather", {"city": "Paris"})
        assert events[-1].finish_reason == "tool_calls"
        with pytest.raises(InvalidInputError, match="temperature"):
            _ = [event async for event in chat.answer(question, sampling=Sampling(temperature=9))]


async def test_an_answer_is_stopped(stages):
    story = [ChatMessage(role="user", content="tell me a story")]
    async with Generation(stages) as chat:
        whole = [event async for event in chat.answer(story)]
        answer = chat.answer(story)
        assert isinstance(await anext(answer), TextDelta)
        await answer.abort()
        rest = [event async for event in answer]
        assert len(text_of(rest)) < len(text_of(whole)) / 2
        # The model is free again, and unharmed.
        again = [event async for event in chat.answer(story)]
        assert text_of(again) == text_of(whole)
        assert isinstance(again[-1], Completed)


async def test_a_text_is_spoken_with_its_words(stages):
    async with Synthesis(stages) as synthesis:
        voices = [voice.voice_id for voice in await synthesis.voices()]
        for voice in voices:
            pieces = [piece async for piece in synthesis.speak(TEXT, voice=voice, sample_rate=24_000)]
            words = [word for piece in pieces for word in piece.words]
            assert [word.text for word in words] == TEXT.split()
            assert [word.at_sample for word in words] == sorted(word.at_sample for word in words)
            audio = np.concatenate([piece.samples for piece in pieces])
            assert words[-1].at_sample < len(audio)
            assert 3 < len(audio) / 24_000 < 10
        with pytest.raises(UnsupportedVoiceError):
            await anext(synthesis.speak(TEXT, voice="missing"))


async def test_a_text_is_spoken_while_it_is_written_and_stopped(stages):
    async with Synthesis(stages) as synthesis:
        speech = synthesis.begin()
        speech.add("Hello there. And now")
        first = await anext(speech)
        assert first.words[0].text == "Hello"
        await speech.abort()
        # What was on its way still comes, and nothing of the text that was not finished.
        rest = [word.text for piece in [piece async for piece in speech] for word in piece.words]
        assert rest in ([], ["there."])


async def test_synthesized_speech_is_recognised(stages, clips):
    """The voice is not one that the recogniser knows, so words are counted."""
    async with Synthesis(stages) as synthesis:
        pieces = [piece async for piece in synthesis.speak("thank you", sample_rate=16_000)]
    audio = np.concatenate([np.zeros(8_000, np.int16), *[piece.samples for piece in pieces]])
    async with Recognition(stages) as stream:
        await stream.send_all(audio)
        stream.end()
        assert final_text([event async for event in stream])


async def test_the_guides_program(server):
    """As it is printed, but for the address."""
    guide = (ROOT / "docs" / "client.md").read_text().partition("\n## Single models\n")[2]
    program = re.search(r"```python\n(.*?)```", guide, re.DOTALL)[1]
    here = program.replace("127.0.0.1:8001", server.endpoints.grpc)
    recording = ROOT / "tests/data/conversation/01-hello.wav"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", here, str(recording), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    lines = out.decode().splitlines()
    assert process.returncode == 0
    assert lines[0] == "you: hello"
    assert all(line.startswith("agent: ") for line in lines[1:])
    assert " ".join(re.findall(r"'(.+)'", out.decode())) == "Hello! How can I help you?"
