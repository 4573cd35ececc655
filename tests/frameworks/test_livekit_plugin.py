"""The plugin ``livekit-plugins-parley`` in LiveKit sessions: against a real server and a scripted one."""

from __future__ import annotations

import asyncio
import json
import time
from types import SimpleNamespace

import numpy as np
import pytest
from fake_models import serving_models
from livekit import rtc
from livekit.agents import (
    APIConnectionError,
    APIConnectOptions,
    APIError,
    APIStatusError,
    APITimeoutError,
    Plugin,
    function_tool,
    llm,
)
from livekit.agents.metrics import LLMMetrics, STTMetrics, TTSMetrics
from livekit.agents.stt import SpeechEventType
from livekit.agents.types import USERDATA_TIMED_TRANSCRIPT
from livekit.plugins import parley
from livekit.plugins.parley import speech_stream
from livekit_call import calling
from recordings import RATE, recording

from parley.asr.messages import SpeechStartedEvent, SpeechStoppedEvent, TranscriptEvent, Word
from parley.chat import ToolCall
from parley.llm.messages import Completed, TextDelta, ToolCalled
from parley.tts.messages import SpeechChunk, WordMark

PROMPT = "You are Parley, a friendly voice assistant. Keep answers short."
ONCE = APIConnectOptions(max_retry=0)
QUICKLY = APIConnectOptions(max_retry=3, retry_interval=0.05)


# --- the demonstration's conversation ------------------------------------------------------------


async def test_a_conversation_with_a_tool_and_an_interruption(triton):
    asked = []

    @function_tool
    async def get_weather(city: str, day: str | None = None) -> str:
        """Get the weather in a city.

        Args:
            city: The name of the city.
            day: The day, if it is not now.
        """
        asked.append((city, day))
        return json.dumps({"temperature": 8, "sky": "foggy"})

    models = parley.STT(server=triton), parley.LLM(server=triton), parley.TTS(server=triton)
    async with calling(*models, instructions=PROMPT, tools=[get_weather]) as call:
        assert await call.ask("01-hello") == ("hello", "Hello! How can I help you?")
        assert await call.ask("02-weather") == (
            "what's the weather in paris",
            "It's 8 degrees and foggy in Paris.",
        )
        assert asked == [("Paris", None)]

        began = len(call.notes.events)
        heard_s = call.loudspeaker.played_s
        call.microphone.say("06-story")
        assert (await call.message("user", began)).text_content == "tell me a story"
        await call.transcript.until("robot")
        call.microphone.say("07-stop")
        story = await call.message("assistant", began)
        assert story.interrupted
        assert story.text_content.startswith("Once upon a time, a little robot")
        # The words are known with their times: no more of them is remembered than was heard.
        assert len(story.text_content) < 120
        assert call.loudspeaker.played_s - heard_s < 1.0 + len(story.text_content) * 0.08
        okay = await call.message("assistant", len(call.notes.events))
        assert okay.text_content == "Okay."

        assert await call.ask("13-thank-you") == ("thank you", "You're welcome!")
    assert call.of("error") == []
    texts = [(event.transcript, event.is_final) for event in call.of("user_input_transcribed")]
    assert ("stop", True) in texts
    assert any(not final and text.startswith("what's the") for text, final in texts)
    measured = [event.metrics for event in call.of("metrics_collected")]
    assert sum(m.audio_duration for m in measured if isinstance(m, STTMetrics)) > 10
    assert all(0 < m.ttft < 5 for m in measured if isinstance(m, LLMMetrics))
    assert all(0 < m.ttfb < 5 for m in measured if isinstance(m, TTSMetrics))
    assert {m.metadata.model_provider for m in measured if isinstance(m, LLMMetrics)} == {"Parley"}


async def test_the_servers_own_end_of_speech_ends_a_turn(triton):
    models = parley.STT(server=triton), parley.LLM(server=triton), parley.TTS(server=triton)
    async with calling(*models, instructions=PROMPT, turn_detection="stt", vad=None) as call:
        assert await call.ask("01-hello") == ("hello", "Hello! How can I help you?")
    assert call.of("error") == []


async def test_abandoned_streams_leave_no_task(triton):
    story = conversation("tell me a story")
    async with parley.LLM(server=triton) as model, parley.TTS(server=triton) as tts:
        for _ in range(70):  # each model takes 64 requests, and so does the connection
            async with model.chat(chat_ctx=story, conn_options=ONCE) as answer:
                await anext(answer)
            async with tts.synthesize("Once upon a time, " * 40, conn_options=ONCE) as speech:
                await anext(speech)
        response = await model.chat(chat_ctx=story, conn_options=ONCE).collect()
        async with tts.synthesize(response.text, conn_options=ONCE) as speech:
            assert (await speech.collect()).duration > 5


async def test_a_flush_brings_the_final_text_at_once(triton):
    async with parley.STT(server=triton) as stt, stt.stream() as stream:
        push(stream, recording("02-weather"))
        stream.flush()
        events = await events_until(stream, SpeechEventType.END_OF_SPEECH)
    kinds = [event.type for event in events]
    assert kinds[0] is SpeechEventType.START_OF_SPEECH
    assert kinds[-3:] == [
        SpeechEventType.FINAL_TRANSCRIPT,
        SpeechEventType.RECOGNITION_USAGE,
        SpeechEventType.END_OF_SPEECH,
    ]
    assert SpeechEventType.INTERIM_TRANSCRIPT in kinds
    (final,) = events[-3].alternatives
    assert final.text == "what's the weather in paris"
    assert [str(word) for word in final.words] == final.text.split()
    assert 0 <= final.start_time < final.end_time < 1.5
    assert 0.5 < final.confidence <= 1
    assert events[-2].recognition_usage.audio_duration == pytest.approx(1.4, abs=0.1)


async def test_end_of_audio_completes_the_transcript(triton):
    async with parley.STT(server=triton, model="nemotron_streaming") as stt, stt.stream() as stream:
        push(stream, recording("01-hello"))
        stream.end_input()
        texts = [event.alternatives[0].text async for event in stream if event.type == "final_transcript"]
    assert texts == ["hello"]


async def test_a_whole_recording(triton):
    clip = np.frombuffer(recording("02-weather"), np.int16).repeat(2)
    stereo = np.stack([clip, clip], axis=1).tobytes()
    async with parley.STT(server=triton) as stt:
        heard = await stt.recognize(rtc.AudioFrame(stereo, 2 * RATE, 2, len(clip)), conn_options=ONCE)
    assert heard.alternatives[0].text == "what's the weather in paris"


async def test_timed_text_covers_all_audio(triton):
    text = "“Hello there,” it said. How are you, today?"
    async with parley.TTS(server=triton) as tts, tts.stream() as stream:
        for piece in (text[:9], text[9:25], text[25:]):
            stream.push_text(piece)
        stream.end_input()
        frames = [audio.frame async for audio in stream]
    timed = [piece for frame in frames for piece in frame.userdata.get(USERDATA_TIMED_TRANSCRIPT, [])]
    assert "".join(timed) == text
    starts = [piece.start_time for piece in timed]
    assert starts == sorted(starts)
    duration = sum(frame.duration for frame in frames)
    assert [piece.end_time for piece in timed] == [*starts[1:], pytest.approx(duration, abs=0.05)]
    assert {frame.sample_rate for frame in frames} == {24_000}


async def test_a_whole_text(triton):
    async with (
        parley.TTS(server=triton, sample_rate=16_000) as tts,
        tts.synthesize("Good day.", conn_options=ONCE) as stream,
    ):
        frame = await stream.collect()
    assert (frame.sample_rate, 0.4 < frame.duration < 2) == (16_000, True)
    assert np.abs(np.frombuffer(frame.data, np.int16)).max() > 1_000


# --- a scripted server ---------------------------------------------------------------------------


@pytest.fixture
async def fake():
    async with serving_models() as (models, _):
        yield models


def conversation(text="hello"):
    context = llm.ChatContext.empty()
    context.add_message(role="user", content=text)
    return context


async def endless_text(message):
    if message["op"] == "generate":
        for _ in range(10_000):
            yield {"EVENT": TextDelta(text="word ")}
            await asyncio.sleep(0.01)


async def endless_speech(message):
    if message["op"] == "speak":
        for number in range(10_000):
            yield {"CHUNK": SpeechChunk(sample_rate=24_000, offset=number * 240), "AUDIO": np.ones(240)}
            await asyncio.sleep(0.01)


def failing(wire, *before):
    async def answer(message):
        if message["op"] != "abort":
            for outputs in before:
                yield outputs
            yield wire

    return answer


async def test_an_answer_that_is_left_stops_the_language_model(fake):
    fake.answer = endless_text
    async with parley.LLM(server=fake.address) as model:
        async with model.chat(chat_ctx=conversation()) as stream:
            await anext(stream)
        await until(fake.aborted)
    asked, aborted = fake.asked
    assert aborted["request_id"] == asked["request_id"]


async def test_speech_that_is_left_stops_the_synthesizer(fake):
    fake.answer = endless_speech
    async with parley.TTS(server=fake.address) as tts:
        for stream in (tts.synthesize("A long text."), tts.stream()):
            fake.asked.clear()
            async with stream:
                if hasattr(stream, "push_text"):
                    stream.push_text("A long text. And more")
                await anext(stream)
            await until(fake.aborted)
            asked, aborted = fake.asked
            assert aborted["request_id"] == asked["request_id"]


async def test_tools_and_their_results_become_messages(fake):
    @function_tool
    async def get_time(city: str) -> str:
        """Get the time in a city.

        Args:
            city: The name of the city.
        """

    async def answer(message):
        yield {"EVENT": ToolCalled(call=ToolCall(id="c2", name="get_time", arguments={"city": "Oslo"}))}
        yield {
            "EVENT": Completed(
                finish_reason="tool_calls", prompt_tokens=7, cached_tokens=3, completion_tokens=5
            )
        }

    fake.answer = answer
    context = llm.ChatContext.empty()
    context.add_message(role="system", content="Be brief.")
    context.add_message(role="user", content="what time is it in rome")
    context.items.append(llm.FunctionCall(call_id="c1", name="get_time", arguments='{"city": "Rome"}'))
    context.items.append(
        llm.FunctionCallOutput(call_id="c1", name="get_time", output="12:00", is_error=False)
    )
    context.add_message(role="user", content="and in oslo")
    async with parley.LLM(server=fake.address, temperature=0.5, max_tokens=9) as model:
        stream = model.chat(chat_ctx=context, tools=[get_time], extra_kwargs={"seed": 4})
        response = await stream.collect()
        hidden = model.chat(chat_ctx=context, tools=[get_time], tool_choice="none")
        await hidden.collect()
    (call,) = response.tool_calls
    assert (call.name, json.loads(call.arguments), call.call_id) == ("get_time", {"city": "Oslo"}, "c2")
    usage = response.usage
    assert (usage.prompt_tokens, usage.prompt_cached_tokens, usage.total_tokens) == (7, 3, 12)
    asked, second = fake.asked
    assert asked["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "what time is it in rome"},
        {
            "role": "assistant",
            "tool_calls": [{"id": "c1", "name": "get_time", "arguments": {"city": "Rome"}}],
        },
        {"role": "tool", "content": "12:00", "tool_call_id": "c1"},
        {"role": "user", "content": "and in oslo"},
    ]
    (tool,) = asked["tools"]
    assert tool["parameters"] == {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "The name of the city."}},
        "required": ["city"],
    }
    assert asked["sampling"] == {"temperature": 0.5, "top_p": 1.0, "max_tokens": 9, "seed": 4}
    assert second["tools"] == []


async def test_an_interrupted_answer_is_marked_for_the_model(fake):
    fake.answer = good_text
    context = conversation("tell me a story")
    context.add_message(role="assistant", content="Once upon a time, ", interrupted=True)
    context.add_message(role="user", content="stop")
    context.add_message(role="assistant", content="Okay.")
    context.add_message(role="user", content="thank you")
    async with parley.LLM(server=fake.address) as model:
        await model.chat(chat_ctx=context, conn_options=ONCE).collect()
    (asked,) = fake.asked
    assert [message["content"] for message in asked["messages"]] == [
        "tell me a story",
        "Once upon a time…",
        "stop",
        "Okay.",
        "thank you",
    ]
    assert context.items[1].text_content == "Once upon a time, "


async def test_keyterms_open_the_stream_anew(fake):
    async with parley.STT(server=fake.address, phrases=["Ada"]) as stt, stt.stream() as stream:
        push(stream, bytes(3_200))
        await until(lambda: starts(fake))
        stt._update_session_keyterms(["Ljubljana", "Ada"])
        push(stream, bytes(3_200))
        await until(lambda: len(starts(fake)) == 2)
        push(stream, bytes(3_200))
        stream.end_input()
        assert [event.type async for event in stream] == [SpeechEventType.RECOGNITION_USAGE] * 2
    first, second = (request.options for _, _, _, request in starts(fake))
    assert (first.phrases, second.phrases) == (["Ada"], ["Ada", "Ljubljana"])
    heard = sum(len(samples) for _, _, samples, _ in fake.heard)
    assert heard == 3 * 1_600


async def test_a_stream_that_breaks_is_opened_again(fake):
    broken = []

    def hear(_):
        if not broken:
            broken.append(True)
            return "inference_failed: the model has crashed"
        return [
            SpeechStartedEvent(utterance=1, at_ms=0),
            SpeechStoppedEvent(utterance=1, at_ms=9, detected_at_ms=9),
            TranscriptEvent(utterance=1, text="here again", is_final=True),
        ]

    fake.hear = hear
    failures = []
    async with parley.STT(server=fake.address) as stt:
        stt.on("error", failures.append)
        async with stt.stream(conn_options=QUICKLY) as stream:
            push(stream, bytes(3_200))
            await until(lambda: failures)
            push(stream, bytes(3_200))
            events = await events_until(stream, SpeechEventType.FINAL_TRANSCRIPT)
    assert events[-1].alternatives[0].text == "here again"
    (failure,) = failures
    assert failure.recoverable
    assert isinstance(failure.error, APIConnectionError)
    assert len(starts(fake)) == 2


async def test_words_are_where_they_were_said_though_the_clock_is_set(fake, monkeypatch):
    set_by_s = [0.0]
    clock = SimpleNamespace(time=lambda: time.time() + set_by_s[0], monotonic=time.monotonic)
    monkeypatch.setattr(speech_stream, "time", clock)
    word = Word(text="here", start_ms=0, end_ms=9, confidence=1.0)
    fake.hear = lambda _: [
        SpeechStartedEvent(utterance=1, at_ms=0),
        SpeechStoppedEvent(utterance=1, at_ms=9, detected_at_ms=9),
        TranscriptEvent(utterance=1, text="here", is_final=True, words=[word]),
    ]
    async with parley.STT(server=fake.address) as stt, stt.stream(conn_options=QUICKLY) as stream:
        push(stream, bytes(3_200))
        await events_until(stream, SpeechEventType.END_OF_SPEECH)
        set_by_s[0] = 3_600.0
        stt.update_options(language="en")  # with the next audio there is another stream of the server's
        push(stream, bytes(3_200))
        await until(lambda: len(starts(fake)) == 2)
        stream.end_input()
        texts = [event async for event in stream if event.type is SpeechEventType.FINAL_TRANSCRIPT]
    assert texts
    assert all(0 <= text.alternatives[0].start_time < 600 for text in texts)


@pytest.mark.parametrize("stopped", [[], [SpeechStoppedEvent(utterance=1, at_ms=9, detected_at_ms=9)]])
async def test_speech_ends_with_a_stream_that_breaks(fake, stopped):
    answers = [
        [SpeechStartedEvent(utterance=1, at_ms=0), *stopped],
        "inference_failed: the model has crashed",
    ]
    fake.hear = lambda _: answers.pop(0) if answers else [SpeechStartedEvent(utterance=1, at_ms=0)]
    async with parley.STT(server=fake.address) as stt, stt.stream(conn_options=QUICKLY) as stream:
        began = time.time()
        push(stream, bytes(3_200))
        if not stopped:
            await events_until(stream, SpeechEventType.START_OF_SPEECH)
            push(stream, bytes(3_200))
        events = await events_until(stream, SpeechEventType.END_OF_SPEECH)
        assert began <= events[-1].speech_end_time <= time.time()
        push(stream, bytes(3_200))
        events = await events_until(stream, SpeechEventType.START_OF_SPEECH)
    assert [event.type for event in events] == [SpeechEventType.START_OF_SPEECH]
    assert len(starts(fake)) == 2


async def test_text_that_is_too_long_is_refused_at_once(fake):
    fake.answer = good_speech
    async with parley.TTS(server=fake.address) as tts, tts.stream(conn_options=ONCE) as stream:
        stream.push_text("One. Two. " + "x" * 10_000)
        stream.push_text("x" * 10_000)
        async with asyncio.timeout(5):
            with pytest.raises(APIStatusError) as caught:
                async for _ in stream:
                    pass
    assert (caught.value.status_code, caught.value.retryable) == (400, False)


@pytest.mark.parametrize(
    ("wire", "kind", "status", "retryable"),
    [
        ("overloaded: too many", APIStatusError, 429, True),
        ("inference_failed: crashed", APIError, None, True),
        ("model_unavailable: gone", APIConnectionError, None, True),
        ("deadline_exceeded: late", APITimeoutError, None, True),
        ("context_too_long: 4097 tokens", APIStatusError, 413, False),
        ("unsupported_voice: no voice 'x'", APIStatusError, 400, False),
    ],
)
async def test_errors_are_livekits(fake, wire, kind, status, retryable):
    fake.answer = failing(wire)
    async with parley.LLM(server=fake.address) as model, parley.TTS(server=fake.address) as tts:
        stream = tts.stream(conn_options=ONCE)
        stream.push_text("Hello.")
        stream.end_input()
        for work in (
            model.chat(chat_ctx=conversation(), conn_options=ONCE).collect(),
            tts.synthesize("Hello.", conn_options=ONCE).collect(),
            anext(stream),
        ):
            with pytest.raises(kind) as caught:
                await work
            assert caught.value.retryable is retryable
            assert getattr(caught.value, "status_code", None) == status
            assert wire.split(":", 1)[0] in str(caught.value)
        await stream.aclose()


async def test_request_without_output_is_retried(fake):
    answers = [failing("overloaded: busy"), failing("overloaded: busy"), good_text]

    async def answer(message):
        if message["op"] == "generate":
            async for outputs in answers.pop(0)(message):
                yield outputs

    fake.answer = answer
    async with parley.LLM(server=fake.address) as model:
        response = await model.chat(chat_ctx=conversation(), conn_options=QUICKLY).collect()
    assert response.text == "Good day."
    assert answers == []


async def test_half_an_answer_is_not_said_twice(fake):
    half = {"EVENT": TextDelta(text="Good ")}
    fake.answer = failing("inference_failed: crashed", half)
    async with parley.LLM(server=fake.address) as model:
        with pytest.raises(APIError) as caught:
            await model.chat(chat_ctx=conversation(), conn_options=QUICKLY).collect()
    assert not caught.value.retryable
    assert [message["op"] for message in fake.asked].count("generate") == 1


async def test_address_without_a_listener_fails():
    async with parley.LLM(server="127.0.0.1:9") as model:
        with pytest.raises(APIConnectionError) as caught:
            await model.chat(chat_ctx=conversation(), conn_options=ONCE).collect()
    assert caught.value.retryable


async def test_words_across_segments_have_the_times_of_the_whole(fake):
    async def answer(message):
        words = [WordMark(start_char=0, end_char=3, at_sample=100)]
        yield {"CHUNK": SpeechChunk(sample_rate=24_000, offset=0, words=words), "AUDIO": np.ones(24_000)}

    fake.answer = answer
    async with parley.TTS(server=fake.address) as tts, tts.stream(conn_options=ONCE) as stream:
        stream.push_text("One. Two. ")
        stream.end_input()
        frames = [audio.frame async for audio in stream]
    timed = [piece for frame in frames for piece in frame.userdata.get(USERDATA_TIMED_TRANSCRIPT, [])]
    assert [(str(piece), round(piece.start_time, 3)) for piece in timed] == [
        ("One. ", 0.004),
        ("Two. ", 1.004),
    ]


def test_the_plugin_is_registered():
    (plugin,) = [one for one in Plugin.registered_plugins if one.title == "livekit.plugins.parley"]
    assert plugin.version == parley.__version__
    assert plugin.package == "livekit.plugins.parley"


async def good_speech(message):
    if message["op"] == "speak":
        yield {"CHUNK": SpeechChunk(sample_rate=24_000, offset=0), "AUDIO": np.ones(240)}


async def good_text(_):
    yield {"EVENT": TextDelta(text="Good day.")}
    yield {"EVENT": Completed(finish_reason="stop")}


def push(stream, audio):
    for start in range(0, len(audio), 640):
        piece = audio[start : start + 640]
        stream.push_frame(rtc.AudioFrame(piece, RATE, 1, len(piece) // 2))


async def events_until(stream, kind):
    events = []
    async with asyncio.timeout(20):
        async for event in stream:
            events.append(event)
            if event.type is kind:
                break
    return events


def starts(fake):
    return [heard for heard in fake.heard if heard[0]]


async def until(happened):
    async with asyncio.timeout(10):
        while not happened():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)
