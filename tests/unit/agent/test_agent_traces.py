"""Spans of a call."""

from __future__ import annotations

import json

import pytest
from agent_fakes import FakeCall, calls, hold_call, open_call, says
from opentelemetry.trace import StatusCode
from recorded_spans import PARENT, Spans, traceparent

from parley.agent.config import AgentConfig
from parley.errors import InferenceError, InvalidMessageError
from parley.llm.messages import TextDelta
from parley.protocol import (
    CANARY_PREFIX,
    ErrorEvent,
    Interrupted,
    Start,
    Tool,
    ToolRequest,
    ToolResponse,
    TurnMetrics,
    TurnOptions,
)
from parley.tracing import CONTENT_PREFIX

STORY = "Once there was a robot in a house by the sea, and it was happy. It waved at all the boats."
CONFIG = AgentConfig(asr=("fake_asr",), llm=("fake_llm",))


async def tool_and_barge_in(spans, **start):
    """A turn with a tool, and one that is interrupted."""
    call = await open_call(
        Start(tools=[Tool(name="get_weather")], turn=TurnOptions(eagerness="eager"), **start),
        config=CONFIG,
        tracing=spans.tracing,
        hears=[(200, 1_000, "how is the weather"), (6_000, 6_800, "tell me a story"), (8_500, 9_300, "stop")],
        answers=[calls(("get_weather", {"city": "Paris"})), says("It is foggy."), says(STORY), says("Okay.")],
    )
    request = await call.wait_for(ToolRequest)
    await call.request(ToolResponse(call_id=request.call_id, output={"sky": "foggy"}), Interrupted)
    await call.end(TurnMetrics, 3)
    return call


async def test_a_call_is_one_tree_with_every_stage():
    spans = Spans()
    await tool_and_barge_in(spans, traceparent=PARENT)
    root = spans.one("call")
    assert f"{root.context.trace_id:032x}" == PARENT.split("-")[1]
    assert f"{root.parent.span_id:016x}" == PARENT.split("-")[2]
    assert {span.context.trace_id for span in spans.all()} == {root.context.trace_id}
    known = {span.context.span_id for span in spans.all()}
    assert all(span.parent.span_id in known for span in spans.all() if span is not root)
    weather, story, _ = spans.named("turn")
    names = [span.name for span in spans.below(weather)]
    assert sorted(set(names)) == [
        "asr",
        "chat fake_llm",
        "endpointing",
        "execute_tool get_weather",
        "playback",
        "tts",
    ]
    assert names.count("chat fake_llm") == 2
    interruption = spans.one("interruption")
    assert interruption.parent.span_id == story.context.span_id
    assert interruption.attributes["parley.played_ms"] > 0
    assert story.attributes["parley.outcome"] == "interrupted"
    assert all(span.start_time <= span.end_time for span in spans.all())


async def test_the_models_get_the_spans_that_they_work_for():
    spans = Spans()
    call = await tool_and_barge_in(spans)
    chats = {traceparent(span) for span in spans.named("chat fake_llm")}
    assert {request.traceparent for request in call.chat.requests if request.traceparent} == chats
    assert {request.traceparent for request in call.synthesizer.requests} == {
        traceparent(span) for span in spans.named("tts")
    }
    assert [stream.options.traceparent for stream in call.recognition.streams] == [
        traceparent(spans.one("call"))
    ]


async def test_pauses_are_scored_below_the_call():
    spans = Spans()
    call = FakeCall(CONFIG, tracing=spans.tracing)
    call.hears((200, 1_000, "what time is it"))
    call.chat.answers += [says("Noon.")]
    call.turn_model.scores += [0.9]
    await call.start(Start(turn=TurnOptions(eagerness="normal")))
    await call.end(TurnMetrics)
    scoring = spans.one("scoring")
    assert scoring.parent.span_id == spans.one("call").context.span_id
    assert scoring.attributes["parley.probability"] == pytest.approx(0.9)
    assert call.turn_model.traceparents == [traceparent(scoring)]


async def test_without_traces_the_models_get_no_span():
    call = await hold_call(config=CONFIG, hears=[(200, 1_000, "what time is it")], answers=[says("Noon.")])
    asked = [*call.chat.requests, *call.synthesizer.requests]
    assert len(asked) >= 2
    assert {request.traceparent for request in asked} == {""}


async def test_a_turn_has_the_figures_of_its_metrics():
    spans = Spans()
    call = await tool_and_barge_in(spans)
    turn, event = spans.named("turn")[0], call.outlet.of(TurnMetrics)[0]
    assert turn.attributes["parley.e2e_ms"] == event.e2e_ms
    assert turn.attributes["parley.completion_tokens"] == event.completion_tokens
    chat = spans.named("chat fake_llm")[0]
    assert chat.attributes["gen_ai.operation.name"] == "chat"
    assert chat.attributes["gen_ai.usage.output_tokens"] > 0
    assert spans.one("call").attributes["gen_ai.conversation.id"] == "call"
    (first, *_), (sound, *_) = spans.named("tts"), spans.named("playback")
    assert first.attributes["parley.audio_ms"] > 0
    assert sound.start_time >= first.start_time
    # From the end of the user's speech on.
    assert (sound.start_time - turn.start_time) / 1e6 == pytest.approx(event.e2e_ms, abs=1)


@pytest.mark.parametrize("content", [False, True])
async def test_words_are_recorded_only_if_that_is_switched_on(content):
    spans = Spans(content=content)
    await tool_and_barge_in(spans)
    plain = {
        f"{span.name} {name}": value
        for span in spans.all()
        for name, value in span.attributes.items()
        if not name.startswith(CONTENT_PREFIX)
    }
    assert "foggy" not in json.dumps(plain)
    assert "Paris" not in json.dumps(plain)
    recorded = [
        (name.removeprefix(CONTENT_PREFIX), value)
        for span in spans.all()
        for name, value in span.attributes.items()
        if name.startswith(CONTENT_PREFIX)
    ]
    assert bool(recorded) is content
    if content:
        assert {name for name, _ in recorded} == {"prompt", "completion", "arguments", "result", "text"}
        assert ("arguments", '{"city":"Paris"}') in recorded


async def test_the_name_of_a_tool_that_does_not_exist_is_not_recorded():
    spans = Spans()
    call = FakeCall(CONFIG, tracing=spans.tracing)
    call.hears((200, 1_000, "book a table"))
    call.chat.answers += [calls(("book_table_for_Anna", {})), says("I cannot.")]
    await call.start(Start(tools=[Tool(name="get_weather")]))
    await call.end(TurnMetrics)
    assert spans.one("execute_tool unknown").attributes["gen_ai.tool.name"] == "unknown"
    assert "Anna" not in str([(span.name, dict(span.attributes)) for span in spans.all()])


async def test_each_request_to_the_language_model_has_its_first_token():
    spans = Spans()
    await tool_and_barge_in(spans)
    assert all(span.attributes["parley.first_token_ms"] >= 0 for span in spans.named("chat fake_llm"))


async def test_discarded_preemptive_answer_is_a_turn_with_that_outcome():
    spans = Spans()
    call = FakeCall(CONFIG, tracing=spans.tracing)
    call.hears((200, 1_000, "set a timer"), (1_600, 2_400, "ten minutes"))
    call.chat.answers += [says("For how long? I ask because I want to know."), says("Okay, ten minutes.")]
    call.chat.token_s = 0.1
    await call.start(Start(turn=TurnOptions(eagerness="normal", complete_ms=1_000)))
    await call.end(TurnMetrics)
    assert [span.attributes["parley.outcome"] for span in spans.named("turn")] == ["discarded", "complete"]
    assert spans.named("chat fake_llm")[0].attributes["parley.cancelled"]


async def test_a_failure_is_the_span_s_status():
    spans = Spans()
    call = FakeCall(CONFIG, tracing=spans.tracing)
    call.hears((200, 1_000, "what time is it"))
    call.chat.answers.append([TextDelta(text="The first thing. "), InferenceError("broken by Paris")])
    await call.start()
    await call.end(TurnMetrics)
    chat, turn = spans.one("chat fake_llm"), spans.one("turn")
    assert (chat.status.status_code, chat.attributes["error.type"]) == (
        StatusCode.ERROR,
        InferenceError.code,
    )
    assert turn.status.status_code is StatusCode.ERROR
    assert "Paris" not in json.dumps([dict(span.attributes) for span in spans.all()])


async def test_canaries_are_not_traced():
    spans = Spans()
    call = await open_call(config=CONFIG, session_id=f"{CANARY_PREFIX}1", tracing=spans.tracing)
    await call.end()
    assert spans.all() == ()


@pytest.mark.parametrize("wrong", ["hello", PARENT.upper(), PARENT + "0", "00-0-0-01"])
async def test_another_form_of_traceparent_is_refused(wrong):
    call = FakeCall(CONFIG)
    await call.start(json.dumps({"type": "start", "traceparent": wrong}).encode(), microphone=False)
    assert call.outlet.of(ErrorEvent)[0].code == InvalidMessageError.code
    call.send(end=True)
    await call.check_nothing_left()
