"""Whole conversations."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from agent_fakes import FakeCall, calls, open_call, says

from parley.agent.config import DEFAULT_SYSTEM_PROMPT, AgentConfig
from parley.protocol import (
    Audio,
    Connected,
    Interrupted,
    ResponseDone,
    ResponseText,
    SpeechStarted,
    SpeechStopped,
    Start,
    Tool,
    ToolRequest,
    ToolResponse,
    TurnMetrics,
)


async def test_voice_options_are_the_sessions():
    call = FakeCall(hears=[(200, 1000, "hello")], answers=[says("Hello! How can I help you?")])
    await call.start(Start(voice="high", language="de", exaggeration=0.7, guidance_weight=0.3))
    await call.end(TurnMetrics)
    asked = {
        (spoken.voice, spoken.language, spoken.exaggeration, spoken.guidance_weight)
        for spoken in call.synthesizer.requests
    }
    assert asked == {("high", "de", 0.7, 0.3)}


async def test_a_question_is_answered():
    call = await open_call(hears=[(200, 1000, "hello there")], answers=[says("Hello! How can I help you?")])
    done = await call.wait_for(ResponseDone)
    await call.end(TurnMetrics)
    out = call.outlet
    assert isinstance(out.events[0], Connected)
    assert out.of(SpeechStarted)[0].at_ms == 200
    assert out.of(SpeechStopped)[0].at_ms == 1000
    assert out.finals == ["hello there"]
    assert "".join(event.text for event in out.of(ResponseText)) == "Hello! How can I help you?"
    assert [request.text for request in call.synthesizer.requests] == ["Hello!", "How can I help you?"]
    assert out.states == ["listening", "processing", "speaking", "listening"]
    assert out.of(Interrupted) == []
    assert out.codes == []
    assert out.reason == "ended"
    assert call.chat.prompt() == [("system", DEFAULT_SYSTEM_PROMPT), ("user", "hello there")]
    spoken_ms = (len("Hello!") + len("How can I help you?")) * call.synthesizer.character_ms
    assert abs(done.audio_ms - spoken_ms) <= 1


async def test_answer_at_its_maximum_length_ends_with_a_whole_sentence():
    call = FakeCall(hears=[(200, 1000, "hello"), (4000, 5000, "go on")])
    text, full = says("Paris is in France. It has two mill")[:-1], says("")[-1]
    call.chat.answers.append([*text, msgspec.structs.replace(full, finish_reason="length")])
    await call.start()
    first = await call.wait_for(ResponseDone)
    await call.end(ResponseDone, 2)
    assert call.synthesizer.requests[0].text == "Paris is in France."
    assert "mill" not in "".join(request.text for request in call.synthesizer.requests)
    assert [done.finish_reason for done in call.outlet.of(ResponseDone)] == ["length", "stop"]
    assert first.finish_reason == "length"
    assert ("assistant", "Paris is in France.…") in call.chat.prompt()


@pytest.mark.parametrize(("counted", "left"), [(0, 5), (500, 1)])
async def test_a_history_that_the_model_counts_as_longer_is_shortened(counted, left):
    call = FakeCall(AgentConfig(context_tokens=1_000))
    call.hears(*((4_000 * turn, 4_000 * turn + 1_000, f"question {turn} {'x ' * 100}") for turn in (1, 2, 3)))
    text, full = says("Yes.")[:-1], says("")[-1]
    call.chat.answers.extend([*text, msgspec.structs.replace(full, prompt_tokens=counted)] for _ in range(3))
    await call.start()
    await call.end(TurnMetrics, 3)
    assert len(call.chat.prompt()) == 1 + left


async def test_audio_is_whole_paced_and_labelled():
    call = FakeCall()
    call.hears((200, 1000, "hello"))
    call.chat.answers.append(says("This is a rather long answer that takes its time. And then one more."))
    await call.start(Start(output_sample_rate=16_000))
    done = await call.wait_for(ResponseDone)
    await call.end(TurnMetrics)
    audio = [sent for sent in call.outlet.sent if isinstance(sent.event, Audio)]
    position = 0
    first_at = audio[0].at
    for sent in audio:
        assert sent.event.sample_rate == 16_000
        assert sent.event.offset_ms == round(position / 16)
        lead_ms = position / 16 - (sent.at - first_at) * 1000
        assert lead_ms + sent.event.samples / 16 <= 501, "audio is sent no earlier than the lead allows"
        assert lead_ms >= -0.01, "audio never comes too late"
        position += sent.event.samples
    assert round(position / 16) == done.audio_ms
    words = " ".join(sent.event.text for sent in audio if sent.event.text)
    assert words == "This is a rather long answer that takes its time. And then one more."
    samples = np.concatenate([sent.audio for sent in audio])
    assert np.abs(samples[200:-200].astype(int) - 1000).max() < 300


async def test_speech_begins_before_the_answer_is_written():
    call = FakeCall()
    call.chat.token_s = 0.1
    call.hears((200, 1000, "tell me a story"))
    call.chat.answers.append(says("Once upon a time, a robot lived by the sea. It waved at the boats."))
    await call.start()
    first = await call.wait_for(Audio)
    first_ms = call.at_ms(first)
    await call.wait_for(TurnMetrics)
    last_text = call.outlet.of(ResponseText)[-1]
    assert first_ms < call.at_ms(last_text)


async def test_metrics_tell_where_the_time_went():
    call = FakeCall()
    call.recognition.push_s = 0.004
    call.hears((200, 1000, "hello"))
    call.chat.answers.append(says("Hello! How are you?"))
    await call.start()
    metrics = await call.end(TurnMetrics)
    assert metrics.turn == 1
    # 1300 ms of audio are complete with the window that ends at 1312 ms, in the chunk of 1320 ms.
    assert metrics.asr_final_ms == 4 + 20
    assert metrics.llm_first_token_ms == 20
    assert metrics.tts_first_audio_ms == 10
    assert metrics.first_audio_ms == 24 + 20 + 10
    assert metrics.tool_ms is None
    assert (metrics.prompt_tokens, metrics.completion_tokens) == (10, 4)
    assert not metrics.interrupted


async def test_a_tool_is_called_and_its_result_spoken():
    call = FakeCall()
    call.hears((200, 1000, "what's the weather in paris"))
    call.chat.answers += [calls(("get_weather", {"city": "Paris"})), says("It is sunny in Paris.")]
    await call.start(Start(tools=[Tool(name="get_weather", parameters={"type": "object"})]))
    request = await call.wait_for(ToolRequest)
    assert (request.name, request.arguments, request.turn) == ("get_weather", {"city": "Paris"}, 1)
    metrics = await call.request(ToolResponse(call_id=request.call_id, output={"sky": "sunny"}), TurnMetrics)
    await call.end()
    assert metrics.tool_ms is not None
    (_, asked, result) = call.chat.requests[-1].messages[1:]
    assert [called.name for called in asked.tool_calls] == ["get_weather"]
    assert (result.role, result.content, result.tool_call_id) == ("tool", '{"sky":"sunny"}', request.call_id)
    assert [request.text for request in call.synthesizer.requests] == ["It is sunny in Paris."]


async def test_two_sessions_do_not_hear_each_other():
    call = await open_call()
    other = FakeCall(session_id=7)
    other.host = call.host
    other.recognition = call.recognition
    await other.start()
    assert [outlet.events[0].session_id for outlet in (call.outlet, other.outlet)] == ["call", "7"]
    assert len({stream.name for stream in call.recognition.streams}) == 2
    await other.hang_up()
    other.send(end=True)
    await call.end()
    assert other.outlet.reason == "ended"


async def test_words_that_come_without_samples_of_their_own_are_sent_too():
    call = FakeCall()
    call.synthesizer.late_marks = True
    call.hears((200, 1_000, "hello"))
    call.chat.answers.append(says("Hello there."))
    await call.start()
    done = await call.end(ResponseDone)
    *_, last = call.outlet.of(Audio)
    assert (last.text, last.samples) == ("Hello there.", 0)
    assert last.offset_ms == done.audio_ms
