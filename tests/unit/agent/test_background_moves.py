"""Calls that go on elsewhere while tools run beside the conversation."""

from __future__ import annotations

import asyncio
import dataclasses
import json

import pytest
from agent_fakes import FakeCall, says
from moving_client import Kept
from msgspec.structs import replace
from test_background_tools import ASKS, BUSY, QUIET, REPORT, SERVICE_ASKS, ReportService, tool_messages
from test_resume import ANSWER, ASKED, CALL, TOOL, answering, history, progress, resumed, state

from parley.agent.config import AgentConfig, AgentDeadlines
from parley.agent.tools import STARTED
from parley.chat import ToolCall
from parley.checkpoint import BackgroundCall, Resume, RoundState, UserTurnState
from parley.protocol import (
    Checkpoint,
    Interrupt,
    Start,
    Text,
    Tool,
    ToolCancelled,
    ToolProgress,
    ToolRequest,
    ToolResponse,
    ToolRun,
    TurnMetrics,
    TurnOptions,
)


async def first_call(*answers, tool=REPORT, server_tools=None, **start) -> FakeCall:
    """A call with checkpoints whose agent has begun a report."""
    call = FakeCall(answers=[SERVICE_ASKS if server_tools else ASKS, says(BUSY), *answers])
    call.host._engines = dataclasses.replace(call.host._engines, server_tools=server_tools)
    call.hears((200, 1_000, "my report"))
    await call.start(Start(checkpoints=True, tools=[] if server_tools else [tool], **start))
    await call.wait_for(TurnMetrics)
    return call


async def moved(first: FakeCall, *answers, server_tools=None, config=None) -> FakeCall:
    """The call at another server."""
    kept = Kept.of(first.outlet.sent)
    await first.end()
    second = FakeCall(config, "second", answers=answers)
    second.host._engines = dataclasses.replace(second.host._engines, server_tools=server_tools)
    await second.start(replace(kept.settings, resume=kept.resume()))
    return second


async def test_a_tool_of_the_client_goes_on():
    first = await first_call()
    (request,) = first.outlet.of(ToolRequest)
    second = await moved(first, says("It is ready."))
    await asyncio.sleep(5)
    assert second.chat.requests == []
    assert second.outlet.of(ToolRequest) == []
    second.send(ToolResponse(call_id=request.call_id, output="half", final=False))
    second.send(ToolResponse(call_id=request.call_id, output="ready"))
    await second.end(TurnMetrics)
    assert second.outlet.of(ToolProgress)[0].name == "get_report"
    assert tool_messages(second) == [STARTED, '"ready"']


async def test_a_tool_of_the_client_has_its_time_anew():
    first = await first_call()
    config = AgentConfig(deadlines=AgentDeadlines(background_tool_s=20.0))
    second = await moved(first, says("Sorry."), config=config)
    await second.end(TurnMetrics)
    assert second.outlet.codes == ["tool_timeout"]
    assert [event.reason for event in second.outlet.of(ToolCancelled)] == ["timeout"]
    assert tool_messages(second)[-1] == '{"error":"timeout"}'


async def test_options_of_a_call_move_with_it():
    first = await first_call(tool=replace(QUIET, cancel_on_interruption=True))
    (running,) = Kept.of(first.outlet.sent).state.background
    assert (running.announce, running.cancel_on_interruption, running.result) == (False, True, None)
    second = await moved(first, says("This takes a while to say."), says("Yes?"))
    second.send(Text(text="hello"))
    await asyncio.sleep(0.5)
    await second.request(Interrupt(), ToolCancelled)
    await second.end()


async def test_a_tool_of_the_server_that_is_lost_becomes_an_error_for_the_model():
    first = await first_call(server_tools=ReportService(100.0))
    assert not first.outlet.of(Checkpoint)[-1].settled, "a planned move waits for its result"
    again = ReportService()
    second = await moved(first, says("Sorry, that was lost."), server_tools=again)
    await second.end(TurnMetrics)
    assert second.outlet.of(ToolRun) == []
    assert "may have been done" in json.loads(tool_messages(second)[-1])["error"]


async def test_a_result_that_waits_behind_an_answer_moves():
    first = await first_call(says("This answer takes some time to be spoken."))
    first.send(Text(text="hello"))
    await asyncio.sleep(0.5)
    first.send(ToolResponse(call_id=first.outlet.of(ToolRequest)[0].call_id, output="ready"))
    await asyncio.sleep(0.1)
    assert Kept.of(first.outlet.sent).state.background[0].result == '"ready"'
    second = await moved(first, says("It is ready."))
    await second.end(TurnMetrics, 2)
    assert [role for role, _ in second.chat.prompt()][-4:] == ["user", "assistant", "assistant", "tool"]
    assert tool_messages(second) == [STARTED, '"ready"']


async def test_a_result_that_was_not_announced_is_announced_elsewhere():
    call = ToolCall(id="call-1-1", name="get_report", arguments={})
    done = BackgroundCall(turn=1, call=call, result='"ready"')
    for resume in (
        Resume(state=state(turns=1, background=[done]), history=ASKED),
        Resume(state=state(turns=1, announce=True), history=ASKED),
    ):
        second = await resumed(resume, start=Start(tools=[REPORT], checkpoints=True))
        await second.until(3_000)
        assert len(second.chat.requests) == 1
        assert not Kept.of(second.outlet.sent).state.announce


async def test_a_result_is_not_announced_while_the_user_goes_on():
    resume = Resume(state=state(turns=1, announce=True, user=UserTurnState(text="what time")), history=ASKED)
    start = Start(tools=[REPORT], turn=TurnOptions(detection="manual"))
    second = await resumed(resume, start=start)
    await second.until(5_000)
    assert second.chat.requests == []


@pytest.mark.parametrize("listed", [False, True])
async def test_a_request_that_was_lost_with_its_server_is_answered_once(listed):
    """The checkpoint before a request has the call in its round, and perhaps in the background."""
    running = [BackgroundCall(turn=3, call=CALL)] if listed else []
    resume = answering(RoundState(calls=[CALL]))
    resume = replace(resume, state=replace(resume.state, background=running))
    start = Start(tools=[replace(TOOL, mode="background")])
    second = await resumed(resume, start=start)
    await second.wait_for(TurnMetrics)
    assert tool_messages(second) == [STARTED]
    second.send(ToolResponse(call_id=CALL.id, output="noon"))
    await second.wait_for(TurnMetrics, 2)
    assert tool_messages(second) == [STARTED, '"noon"']
    second.send(ToolResponse(call_id=CALL.id, output="noon"))
    await second.end()
    assert second.outlet.codes == ["unknown_tool_call"]


async def test_a_result_before_the_turn_goes_on_comes_behind_it():
    resume = answering(RoundState(calls=[CALL]), progress=progress(text=ANSWER))
    second = FakeCall(answers=[says("One moment."), says("Noon.")])
    start = Start(tools=[replace(TOOL, mode="background")], resume=resume)
    await second.start(start)
    second.send(ToolResponse(call_id=CALL.id, output="noon"))
    await second.wait_for(TurnMetrics, 2)
    assert tool_messages(second) == [STARTED, '"noon"']
    assert [role for role, _ in history(second)][-4:] == ["assistant", "assistant", "tool", "assistant"]


async def test_a_hostile_state_awaits_no_more_than_its_calls():
    many = [
        BackgroundCall(turn=1, call=ToolCall(id=f"call-1-{n}", name=f"f{n}", arguments={}))
        for n in range(129)
    ]
    second = await resumed(Resume(state=state(turns=1, background=many)))
    assert second.outlet.codes == ["invalid_message"]
    await second.hang_up()
    second = await resumed(
        Resume(state=state(turns=1, background=many[:128])), start=Start(tools=[Tool(name="f1")])
    )
    await second.end()
    assert len(second.outlet.of(ToolCancelled)) == 128
