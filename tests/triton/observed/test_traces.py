"""The trace of a call with a tool and an interruption, at a collector that speaks OTLP."""

from __future__ import annotations

import pytest_asyncio
from gateway_caller import TOOLS, ask_for_the_weather, call, interrupt_a_story

from parley_gateway.app import create_app
from parley_gateway.serving import running
from parley_gateway.settings import load_settings

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OF_MODELS = {
    "generate qwen3": "chat qwen3",
    "speak espeak": "tts",
    "score smart_turn": "scoring",
    "transcribe nemotron_streaming": "call",
}
"""Spans of the models, and those of the agent that they are below."""
BEFORE_THE_END = ("call", "gateway call", *OF_MODELS)


def orphans(collector):
    """Spans whose parent has not come yet, but for that of the caller."""
    known = {PARENT.split("-")[2], *(span.span_id.hex() for _, span in collector.spans)}
    return [span for _, span in collector.spans if span.parent_span_id.hex() not in known]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def collector(observed):
    """It has the trace of a call whose caller has a trace of its own."""
    server, one = observed
    one.forget()
    flags = {"listen": {"port": 0}, "servers": {"addresses": [server.endpoints.grpc]}}
    settings = load_settings(flags=flags)
    async with running(settings, app=create_app(settings)) as gateway:
        async with call(gateway.url, tools=TOOLS, traceparent=PARENT) as caller:
            await caller.until("connected")
            await ask_for_the_weather(caller)
            await interrupt_a_story(caller)
            last = [event for event in caller.of("transcript") if event["is_final"]][-1]
            if "story" in last["text"]:  # the word that interrupted it may have no final text yet
                await caller.until("transcript", caller.events.index(last) + 1, is_final=True)
            await caller.send("control", action="hangup")
            await caller.until("closed")
        # Every process sends its spans by itself.
        await one.until(lambda: not (one.missing(BEFORE_THE_END) or orphans(one)))
    return one


def test_a_call_is_one_connected_trace_through_gateway_and_agent(collector):
    by_id = {span.span_id: span for _, span in collector.spans}
    assert {span.trace_id.hex() for _, span in collector.spans} == {PARENT.split("-")[1]}
    (gateway,), (agent,) = collector.named("gateway call"), collector.named("call")
    assert gateway.parent_span_id.hex() == PARENT.split("-")[2]
    assert agent.parent_span_id == gateway.span_id
    orphans = [span.name for _, span in collector.spans if span.parent_span_id not in by_id]
    assert orphans == ["gateway call"]
    services = {name: service for service, span in collector.spans for name in [span.name]}
    assert (services["gateway call"], services["call"]) == ("parley-gateway", "parley-voice-agent")


def test_every_stage_of_the_turns_is_a_span(collector):
    names = {span.name for _, span in collector.spans}
    assert {
        "turn",
        "asr",
        "endpointing",
        "chat qwen3",
        "execute_tool get_weather",
        "tts",
        "playback",
        "interruption",
    } <= names
    turns = {span.span_id for span in collector.named("turn")}
    for stage in ("chat qwen3", "tts", "playback", "execute_tool get_weather", "interruption"):
        assert all(span.parent_span_id in turns for span in collector.named(stage)), stage
    assert all(span.start_time_unix_nano <= span.end_time_unix_nano for _, span in collector.spans)


def test_the_work_of_the_models_is_below_the_spans_of_the_agent(collector):
    by_id = {span.span_id: span for _, span in collector.spans}
    services = {span.span_id: service for service, span in collector.spans}
    for name, above in OF_MODELS.items():
        for span in collector.named(name):
            assert by_id[span.parent_span_id].name == above, name
            assert services[span.span_id] == f"parley-{name.split()[1].replace('_', '-')}"
    assert len(collector.named("transcribe nemotron_streaming")) >= 3  # a text for each of the user's turns
    (question, *_) = sorted(collector.named("generate qwen3"), key=lambda span: span.start_time_unix_nano)
    stages = [span for _, span in collector.spans if span.parent_span_id == question.span_id]
    assert [span.name for span in sorted(stages, key=lambda span: span.start_time_unix_nano)] == [
        "queue",
        "prefill",
        "decode",
    ]
    assert all(
        question.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        for span in stages
    )
    attributes = {each.key: each.value for each in question.attributes}
    assert attributes["gen_ai.usage.output_tokens"].int_value > 0
    (sound, *_) = collector.named("speak espeak")
    assert {"parley.queue_ms", "parley.first_response_ms"} <= {each.key for each in sound.attributes}


def test_no_word_of_the_conversation_is_in_it(collector):
    texts = str([span for _, span in collector.spans]).lower()
    assert "paris" not in texts
    assert "foggy" not in texts
