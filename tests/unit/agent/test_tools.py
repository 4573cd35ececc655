"""Tool calls."""

from __future__ import annotations

import asyncio
import dataclasses
import json

import pytest
from agent_fakes import FakeCall, calls, open_call, says, spoken

from parley.agent.config import AgentConfig
from parley.chat import ToolCall
from parley.llm.messages import Completed, TextDelta, ToolCalled
from parley.protocol import (
    Closed,
    ErrorEvent,
    Interrupted,
    ResponseText,
    Start,
    Text,
    Tool,
    ToolCancelled,
    ToolRequest,
    ToolResponse,
    ToolRun,
    TurnMetrics,
    Update,
    Updated,
)
from parley.tools.base import ToolOutcome

TOOLS = Start(tools=[Tool(name="get_weather"), Tool(name="get_time")])


async def asked(*answers, config=None, start=TOOLS, server_tools=None) -> FakeCall:
    call = FakeCall(config)
    call.host._engines = dataclasses.replace(call.host._engines, server_tools=server_tools)
    call.hears((200, 1_000, "what's the weather"))
    call.chat.answers += answers
    await call.start(start)
    return call


class FakeServerTools:
    """One tool, ``look_up``."""

    tools = (
        Tool(name="look_up", description="Looks.", parameters={"properties": {"word": {"type": "string"}}}),
    )
    names = ("look_up", "out_of_order")

    def __init__(self, takes_s=0.5):
        self.takes_s = takes_s
        self.running = 0

    def timeout_s(self, name):
        return 30.0

    async def call(self, name, arguments, *, traceparent="", on_progress=None):
        self.running += 1
        try:
            await asyncio.sleep(self.takes_s)
        finally:
            self.running -= 1
        return ToolOutcome({"found": arguments})

    async def close(self):
        pass


def results(call: FakeCall) -> list[object]:
    """The results of tools in the model's last request."""
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
    await call.request(ToolResponse(call_id=weather.call_id, output={"sky": "sunny"}), TurnMetrics)
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
    assert call.outlet.codes == ["tool_timeout"]


async def test_failed_tool_is_reported_to_the_model():
    call = await asked(calls(("get_weather", {})), says("Sorry."))
    request = await call.wait_for(ToolRequest)
    call.send(ToolResponse(call_id=request.call_id, output="no such city", is_error=True))
    await call.end(TurnMetrics)
    assert results(call) == [{"error": "no such city"}]


@pytest.mark.parametrize(
    ("output", "prompt"),
    [
        ('{"sky": "sunny"}', '{"sky":"sunny"}'),
        ({"sky": "sunny"}, '{"sky":"sunny"}'),
        ('[{"sky": "sunny"}]', '[{"sky":"sunny"}]'),
        ("It is sunny.", '"It is sunny."'),
        ("{It is sunny.}", '"{It is sunny.}"'),
        ("1.10", '"1.10"'),
        ("007", '"007"'),
        (8, "8"),
        (None, "null"),
        (json.loads("[" * 900 + "]" * 900), '{"error":"the result is nested too deep"}'),
        ("[" * 900 + "]" * 900, f'"{"[" * 900}{"]" * 900}"'),
    ],
)
async def test_a_result_reaches_the_model_as_what_it_is(output, prompt):
    call = await asked(calls(("get_weather", {})), says("Sunny."))
    request = await call.wait_for(ToolRequest)
    call.send(ToolResponse(call_id=request.call_id, output=output))
    await call.end(TurnMetrics)
    assert call.chat.requests[-1].messages[-1].content == prompt
    assert call.outlet.codes == []


async def test_call_ids_are_unique_though_the_model_repeats_its_own():
    call = await open_call(
        TOOLS,
        hears=[(200, 1_000, "weather"), (4_000, 4_500, "again")],
        answers=[calls(("get_weather", {})), says("Sunny."), calls(("get_weather", {})), says("Sunny.")],
    )
    for count in (1, 2):
        request = await call.wait_for(ToolRequest, count)
        await call.request(ToolResponse(call_id=request.call_id, output=count), TurnMetrics, count)
    await call.end()
    assert len({request.call_id for request in call.outlet.of(ToolRequest)}) == 2


async def test_rounds_of_tools_are_bounded():
    rounds = [calls(("get_weather", {})) for _ in range(2)]
    call = await asked(*rounds, says("Okay."), config=AgentConfig(max_tool_rounds=2))
    for count in (1, 2):
        request = await call.wait_for(ToolRequest, count)
        call.send(ToolResponse(call_id=request.call_id, output=count))
    await call.end(TurnMetrics)
    assert len(call.outlet.of(ToolRequest)) == 2
    assert [bool(request.tools) for request in call.chat.requests] == [True, True, False]


async def test_text_before_a_tool_call_is_spoken_while_it_runs():
    announced = [
        TextDelta(text="Let me check."),
        ToolCalled(call=ToolCall(id="x", name="get_weather", arguments={})),
        Completed(finish_reason="tool_calls"),
    ]
    call = await asked(announced, says("It is sunny."))
    request = await call.wait_for(ToolRequest)
    await call.until(call.at_ms(request) + 3_000)
    assert [spoken.text for spoken in call.synthesizer.requests] == ["Let me check."]
    await call.request(ToolResponse(call_id=request.call_id, output="sunny"), TurnMetrics)
    await call.end()
    assert [spoken.text for spoken in call.synthesizer.requests] == ["Let me check.", "It is sunny."]
    assert len({text.response_id for text in call.outlet.of(ResponseText)}) == 1
    assert call.chat.requests[-1].messages[-2].content == "Let me check."


async def test_the_servers_tools_are_offered_and_run():
    tools = FakeServerTools()
    call = await asked(calls(("look_up", {"word": "x"})), says("Found it."), server_tools=tools)
    await call.end(TurnMetrics)
    assert [tool.name for tool in call.chat.requests[0].tools] == ["get_weather", "get_time", "look_up"]
    assert call.chat.warmed[0].tools == call.chat.requests[0].tools
    assert results(call) == [{"found": {"word": "x"}}]
    (run,) = call.outlet.of(ToolRun)
    assert (run.name, run.is_error, run.duration_ms) == ("look_up", False, 500)
    assert call.outlet.of(ToolRequest) == []


async def test_an_update_keeps_the_servers_tools_of_the_sessions_beginning():
    tools = FakeServerTools()
    call = await asked(says("Hello."), server_tools=tools)
    tools.tools = (*tools.tools, Tool(name="out_of_order"))
    await call.wait_for(TurnMetrics)
    await call.request(Update(tools=[]), Updated)
    await call.request(Text(text="and now"), TurnMetrics, 2)
    await call.end()
    assert [tool.name for tool in call.chat.requests[-1].tools] == ["look_up"]


async def test_a_tool_may_not_have_the_name_of_one_of_the_servers():
    for name in FakeServerTools.names:
        call = await asked(start=Start(tools=[Tool(name=name)]), server_tools=FakeServerTools())
        assert call.outlet.codes == ["invalid_message"]
        assert call.outlet.reason == "failed"
        await call.hang_up()


async def test_replaceable_tool_of_the_server_is_run_by_the_client():
    tools = FakeServerTools()
    config = AgentConfig(replaceable_tools=True)
    own = Start(tools=[Tool(name="look_up")])
    call = await asked(
        calls(("look_up", {"word": "x"})), says("Found."), config=config, start=own, server_tools=tools
    )
    request = await call.wait_for(ToolRequest)
    assert call.chat.requests[0].tools == list(FakeServerTools.tools)
    await call.request(ToolResponse(call_id=request.call_id, output="canned"), TurnMetrics)
    await call.end()
    assert results(call) == ["canned"]
    assert call.outlet.of(ToolRun) == []


async def test_replaceable_tool_that_is_unavailable_or_unknown_needs_a_description():
    config = AgentConfig(replaceable_tools=True)
    for name, problem in (("out_of_order", "or not now"), ("lookup", "did you mean look_up?")):
        call = await asked(
            start=Start(tools=[Tool(name=name)]), config=config, server_tools=FakeServerTools()
        )
        assert call.outlet.codes == ["invalid_message"]
        assert problem in call.outlet.of(ErrorEvent)[0].message
        await call.hang_up()
    described = Start(tools=[Tool(name="out_of_order", description="Works again.")])
    call = await asked(says("Hello."), start=described, config=config, server_tools=FakeServerTools())
    await call.end(TurnMetrics)
    assert [tool.name for tool in call.chat.requests[0].tools] == ["out_of_order", "look_up"]


async def test_an_interruption_stops_tools_of_both_kinds():
    tools = FakeServerTools(takes_s=20)
    call = await asked(calls(("get_weather", {}), ("look_up", {})), server_tools=tools)
    request = await call.wait_for(ToolRequest)
    await asyncio.sleep(0.1)
    assert tools.running == 1
    await call.request(Text(text="never mind"), Interrupted)
    cancelled = await call.wait_for(ToolCancelled)
    assert (cancelled.call_id, cancelled.reason) == (request.call_id, "interrupted")
    assert (await call.wait_for(ToolRun)).is_error
    await asyncio.sleep(0.1)
    assert tools.running == 0


async def test_the_end_of_a_call_stops_tools_of_both_kinds():
    tools = FakeServerTools(takes_s=20)
    call = await asked(calls(("get_weather", {}), ("look_up", {})), server_tools=tools)
    await call.end(ToolRequest)
    assert [event.reason for event in call.outlet.of(ToolCancelled)] == ["closed"]
    assert isinstance(call.outlet.events[-1], Closed)
    assert tools.running == 0


async def test_slow_tool_is_bridged_by_a_phrase_outside_the_history():
    call = await asked(calls(("get_weather", {})), calls(("get_time", {})), says("It is sunny."))
    for count in (1, 2):
        request = await call.wait_for(ToolRequest, count)
        await asyncio.sleep(4)
        call.send(ToolResponse(call_id=request.call_id, output="sunny"))
    await call.wait_for(TurnMetrics)
    await call.request(Text(text="and tomorrow"), TurnMetrics, 2)
    await call.end()
    filler, answer, _ = spoken(call)
    assert filler in AgentConfig().fillers["en"]
    assert answer == "It is sunny."
    assert call.outlet.of(ResponseText)[0].text == "It ", "what is written is the answer alone"
    remembered = " ".join(message.content for message in call.chat.requests[-1].messages)
    assert filler not in remembered


async def test_phrases_can_be_changed_and_switched_off():
    for config, said in (
        (AgentConfig(fillers={"en": ["Hm."]}, filler_after_s=0.5), ["Hm.", "It is sunny."]),
        (AgentConfig(filler_after_s=0.0), ["It is sunny."]),
        (AgentConfig(fillers={"de": ["Moment."]}), ["It is sunny."]),
    ):
        call = await asked(calls(("get_weather", {})), says("It is sunny."), config=config)
        request = await call.wait_for(ToolRequest)
        await asyncio.sleep(3)
        await call.request(ToolResponse(call_id=request.call_id, output="sunny"), TurnMetrics)
        await call.end()
        assert spoken(call) == said
