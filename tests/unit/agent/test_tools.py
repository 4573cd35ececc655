"""Tool calls."""

from __future__ import annotations

import json

from agent_fakes import FakeCall, calls, says

from parley.agent.config import AgentConfig
from parley.llm.messages import Completed, TextDelta, ToolCall, ToolCalled
from parley.protocol import ResponseText, Start, Tool, ToolRequest, ToolResponse, TurnMetrics

TOOLS = Start(tools=[Tool(name="get_weather"), Tool(name="get_time")])


async def asked(*answers, config=None) -> FakeCall:
    call = FakeCall(config)
    call.hears((200, 1_000, "what's the weather"))
    call.chat.answers += answers
    await call.start(TOOLS)
    return call


def results(call: FakeCall) -> list[object]:
    """What the model was told by tools in its last request."""
    return [
        json.loads(message.content) for message in call.chat.requests[-1].messages if message.role == "tool"
    ]


async def test_calls_at_the_same_time_may_be_answered_in_any_order():
    call = await asked(
        calls(("get_weather", {"city": "Paris"}), ("get_time", {"city": "Rome"})), says("Sunny, and noon.")
    )
    await call.wait_for(ToolRequest, 2)
    weather, time = call.outlet.of(ToolRequest)
    assert weather.call_id != time.call_id
    call.send(ToolResponse(call_id=time.call_id, output="12:00"))
    call.send(ToolResponse(call_id=weather.call_id, output={"sky": "sunny"}))
    await call.wait_for(TurnMetrics)
    await call.end()
    assert results(call) == [{"sky": "sunny"}, "12:00"]


async def test_a_tool_that_does_not_answer_becomes_an_error_for_the_model():
    call = await asked(calls(("get_weather", {})), says("Sorry, that did not work."))
    request = await call.wait_for(ToolRequest)
    metrics = await call.wait_for(TurnMetrics)
    assert metrics.tool_ms == 10_000
    assert results(call) == [{"error": "timeout"}]
    assert call.outlet.codes == ["tool_timeout"]
    call.send(ToolResponse(call_id=request.call_id, output={}))
    await call.end()
    assert call.outlet.codes == ["tool_timeout", "unknown_tool_call"]


async def test_an_unknown_tool_is_not_asked_for():
    call = await asked(calls(("open_door", {})), says("Sorry."))
    await call.wait_for(TurnMetrics)
    await call.end()
    assert call.outlet.of(ToolRequest) == []
    (told,) = results(call)
    assert told == {"error": "there is no tool open_door. Correct the call, or do without it."}


async def test_a_failed_tool_is_told_to_the_model():
    call = await asked(calls(("get_weather", {})), says("Sorry."))
    request = await call.wait_for(ToolRequest)
    call.send(ToolResponse(call_id=request.call_id, output="no such city", is_error=True))
    await call.wait_for(TurnMetrics)
    await call.end()
    assert results(call) == [{"error": "no such city"}]


async def test_a_second_answer_to_the_same_call_is_refused():
    call = await asked(calls(("get_weather", {})), says("Sunny."))
    request = await call.wait_for(ToolRequest)
    call.send(ToolResponse(call_id=request.call_id, output=1))
    call.send(ToolResponse(call_id=request.call_id, output=2))
    await call.wait_for(TurnMetrics)
    await call.end()
    assert results(call) == [1]
    assert call.outlet.codes == ["unknown_tool_call"]


async def test_call_ids_are_unique_though_the_model_repeats_its_own():
    call = FakeCall()
    call.hears((200, 1_000, "weather"), (4_000, 4_500, "again"))
    call.chat.answers += [
        calls(("get_weather", {})),
        says("Sunny."),
        calls(("get_weather", {})),
        says("Sunny."),
    ]
    await call.start(TOOLS)
    for count in (1, 2):
        request = await call.wait_for(ToolRequest, count)
        call.send(ToolResponse(call_id=request.call_id, output=count))
        await call.wait_for(TurnMetrics, count)
    await call.end()
    assert len({request.call_id for request in call.outlet.of(ToolRequest)}) == 2


async def test_rounds_of_tools_are_bounded():
    call = await asked(*[calls(("get_weather", {})) for _ in range(9)], config=AgentConfig(max_tool_rounds=2))
    for count in (1, 2):
        request = await call.wait_for(ToolRequest, count)
        call.send(ToolResponse(call_id=request.call_id, output=count))
    await call.wait_for(TurnMetrics)
    await call.end()
    assert len(call.outlet.of(ToolRequest)) == 2
    assert [bool(request.tools) for request in call.chat.requests] == [True, True, False]


async def test_what_is_said_before_a_call_is_spoken_while_the_tool_runs():
    announced = [
        TextDelta(text="Let me check."),
        ToolCalled(call=ToolCall(id="x", name="get_weather", arguments={})),
        Completed(finish_reason="tool_calls"),
    ]
    call = await asked(announced, says("It is sunny."))
    request = await call.wait_for(ToolRequest)
    await call.until(call.at_ms(request) + 3_000)
    assert [spoken.text for spoken in call.synthesizer.requests] == ["Let me check."]
    call.send(ToolResponse(call_id=request.call_id, output="sunny"))
    await call.wait_for(TurnMetrics)
    await call.end()
    assert [spoken.text for spoken in call.synthesizer.requests] == ["Let me check.", "It is sunny."]
    assert len({text.response_id for text in call.outlet.of(ResponseText)}) == 1
    assert call.chat.requests[-1].messages[-2].content == "Let me check."


async def test_a_long_result_is_cut():
    call = await asked(calls(("get_weather", {})), says("Sunny."), config=AgentConfig(max_tool_output=100))
    request = await call.wait_for(ToolRequest)
    call.send(ToolResponse(call_id=request.call_id, output="x" * 1_000))
    await call.wait_for(TurnMetrics)
    await call.end()
    assert call.chat.requests[-1].messages[-1].content == '"' + "x" * 99 + "… (cut after 100 characters)"
