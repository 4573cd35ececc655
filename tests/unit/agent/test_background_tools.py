"""Tools that do not block: the conversation goes on, and the result is announced in silence."""

from __future__ import annotations

import asyncio
import json

import pytest
from agent_fakes import FakeCall, calls, now, says, spoken
from msgspec.structs import replace
from test_tools import asked

from parley.agent.config import AgentConfig, AgentDeadlines
from parley.agent.tools import STARTED
from parley.agent.user_idle import UserIdleSettings
from parley.chat import ToolCall
from parley.checkpoint import BackgroundCall
from parley.protocol import (
    Closed,
    Interrupt,
    Interrupted,
    Respond,
    ResponseDone,
    SilenceOptions,
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
from parley.tools.base import ToolOutcome

REPORT = Tool(name="get_report", mode="background")
QUIET = replace(REPORT, announce=False)
FRAIL = replace(REPORT, cancel_on_interruption=True)
STEADY = Tool(name="get_report", cancel_on_interruption=False)
"""It blocks, and goes on when the user interrupts."""
ASKS = calls(("get_report", {"year": 2026}))
BUSY = "I am working on it."


async def begun(*answers, tool=REPORT, config=None, **start) -> FakeCall:
    """A call in which the agent has begun a report, and has said so if the tool does not block."""
    first = [ASKS] if tool.mode == "blocking" else [ASKS, says(BUSY)]
    call = await asked(*first, *answers, start=Start(tools=[tool], **start), config=config)
    await call.wait_for(ToolRequest)
    if tool.mode == "background":
        await call.wait_for(TurnMetrics)
    return call


def answer(call: FakeCall, output="ready", number=0, **fields) -> None:
    call.send(ToolResponse(call_id=call.outlet.of(ToolRequest)[number].call_id, output=output, **fields))


def tool_messages(call: FakeCall, index: int = -1) -> list[str]:
    """The results of tools in one of the model's prompts."""
    return [message.content for message in call.chat.requests[index].messages if message.role == "tool"]


async def test_the_answer_goes_on_while_the_tool_runs():
    call = await begun()
    assert tool_messages(call) == [STARTED]
    assert spoken(call) == [BUSY]
    await call.request(Text(text="and tomorrow"), TurnMetrics, 2)
    assert call.outlet.of(ToolCancelled) == []
    await call.end()


async def test_a_result_that_comes_in_silence_is_announced():
    call = await begun(says("Your report is ready."))
    answer(call, {"pages": 3})
    await call.end(TurnMetrics, 2)
    assert spoken(call) == [BUSY, "Your report is ready."]
    *_, made, result = call.chat.requests[-1].messages
    assert (made.tool_calls[0].name, made.tool_calls[0].arguments) == ("get_report", {"year": 2026})
    assert (result.role, result.content) == ("tool", '{"pages":3}')
    assert result.tool_call_id == made.tool_calls[0].id
    ids = [one.id for message in call.chat.requests[-1].messages for one in message.tool_calls]
    assert len(set(ids)) == 2


async def test_the_answer_to_a_result_need_not_call_what_each_answer_must():
    call = await begun(says("It is ready."), must_call="*")
    answer(call)
    await call.wait_for(TurnMetrics, 2)
    await call.end()
    assert [request.must_call for request in call.chat.requests] == ["*", "", ""]


async def test_a_result_that_is_not_announced_is_in_the_next_prompt():
    call = await begun(says("It is ready, by the way."), tool=QUIET)
    answer(call)
    await asyncio.sleep(5)
    assert len(call.chat.requests) == 2
    await call.request(Text(text="hello"), TurnMetrics, 2)
    await call.end()
    assert tool_messages(call) == [STARTED, '"ready"']


async def test_a_result_during_an_answer_waits_for_its_end():
    call = await begun(says("This is a long answer that takes its time."), says("It is ready."))
    call.send(Text(text="tell me something"))
    await asyncio.sleep(1)
    answer(call)
    await call.wait_for(ResponseDone, 2)
    await asyncio.sleep(0.2)
    assert len(call.chat.requests) == 3, "it is still being played"
    await call.end(TurnMetrics, 3)
    assert call.outlet.of(Interrupted) == []
    assert tool_messages(call, 2) == [STARTED]
    assert tool_messages(call, 3) == [STARTED, '"ready"']


@pytest.mark.parametrize("eagerness", ["off", "normal"])
async def test_a_result_while_the_user_speaks_is_in_the_prompt_of_the_answer(eagerness):
    call = FakeCall(answers=[ASKS, says(BUSY), says("Noon, and your report is ready.")])
    call.hears((200, 1_000, "my report"), (6_000, 8_000, "what time is it"))
    await call.start(Start(tools=[REPORT], turn=TurnOptions(eagerness=eagerness)))
    await call.wait_for(TurnMetrics)
    await call.until(7_000)
    answer(call)
    await call.end(TurnMetrics, 2)
    assert len(call.chat.requests) == 3
    assert call.chat.prompt()[-2:] == [("tool", '"ready"'), ("user", "what time is it")]
    assert call.outlet.of(Interrupted) == []


async def test_a_result_while_something_is_heard_that_is_no_speech_is_announced_afterwards():
    call = FakeCall(answers=[ASKS, says(BUSY), says("It is ready.")])
    call.hears((200, 1_000, "my report"), (6_000, 8_000, ""))
    await call.start(Start(tools=[REPORT]))
    await call.wait_for(TurnMetrics)
    await call.until(7_000)
    answer(call)
    await asyncio.sleep(1)
    assert len(call.chat.requests) == 2
    await call.end(TurnMetrics, 2)
    assert tool_messages(call) == [STARTED, '"ready"']


async def test_an_interruption_does_not_cancel_the_call():
    call = await begun(says("Never mind the weather."), says("Yes?"), says("It is ready."))
    call.send(Text(text="weather"))
    await asyncio.sleep(0.5)
    await call.request(Text(text="stop"), TurnMetrics, 3)
    assert len(call.outlet.of(Interrupted)) == 1
    assert call.outlet.of(ToolCancelled) == []
    answer(call)
    await call.end(TurnMetrics, 4)
    assert tool_messages(call)[-1] == '"ready"'


async def test_an_interruption_cancels_a_call_that_asks_for_it():
    call = await begun(says("Never mind the weather."), says("Yes?"), tool=FRAIL)
    call.send(Text(text="weather"))
    await asyncio.sleep(0.5)
    await call.request(Text(text="stop"), TurnMetrics, 3)
    assert [event.reason for event in call.outlet.of(ToolCancelled)] == ["interrupted"]
    answer(call)
    await asyncio.sleep(5)
    await call.end()
    assert len(call.chat.requests) == 4, "the user's own words are answered, and nothing else"
    assert json.loads(tool_messages(call)[-1])["error"].startswith("cancelled because")
    assert call.outlet.codes == []


@pytest.mark.parametrize("result_first", [True, False])
async def test_result_and_interruption_at_once_leave_one_result(result_first):
    for tool in (REPORT, FRAIL):
        call = await begun(says("Never mind the weather."), says("Yes?"), tool=tool)
        call.send(Text(text="weather"))
        await asyncio.sleep(0.5)
        if result_first:
            answer(call)
        call.send(Text(text="stop"))
        if not result_first:
            answer(call)
        await call.wait_for(TurnMetrics, 3)
        await asyncio.sleep(5)
        results = tool_messages(call)
        assert len(results) == 2
        assert ("cancelled because" in results[1]) == (tool is FRAIL and not result_first)
        assert call.outlet.codes == []
        await call.end()


async def test_a_blocking_tool_may_go_on_after_an_interruption():
    call = await begun(says("Yes?"), says("It is ready."), tool=STEADY)
    await call.request(Text(text="wait"), TurnMetrics, 2)
    assert call.outlet.of(ToolCancelled) == []
    assert tool_messages(call) == [STARTED]
    answer(call)
    await call.end(TurnMetrics, 3)
    assert tool_messages(call) == [STARTED, '"ready"']


async def test_a_blocking_tool_that_may_go_on_waits_as_before():
    call = await begun(says("It is ready."), tool=STEADY)
    await asyncio.sleep(1)
    answer(call)
    await call.end(TurnMetrics)
    assert tool_messages(call) == ['"ready"']


async def test_ten_results_at_once_are_announced_in_two_answers():
    tools = [replace(REPORT, name=f"report_{n}") for n in range(10)]
    asks = calls(*((tool.name, {}) for tool in tools))
    config = AgentConfig(max_background_tools=10)
    call = await asked(asks, says(BUSY), start=Start(tools=tools), config=config)
    await call.wait_for(TurnMetrics)
    for number in range(10):
        answer(call, number, number)
    await call.wait_for(TurnMetrics, 3)
    await asyncio.sleep(5)
    await call.end()
    assert len(call.chat.requests) == 4
    assert tool_messages(call)[10:] == [str(number) for number in range(10)]


async def test_more_calls_than_allowed_are_refused_to_the_model():
    tools = [replace(REPORT, name=f"report_{n}") for n in range(3)]
    asks = calls(*((tool.name, {}) for tool in tools))
    call = await asked(asks, says(BUSY), start=Start(tools=tools), config=AgentConfig(max_background_tools=2))
    await call.end(TurnMetrics)
    assert len(call.outlet.of(ToolRequest)) == 2
    results = [json.loads(text) for text in tool_messages(call)]
    assert results[:2] == [json.loads(STARTED)] * 2
    assert results[2]["error"].startswith("2 tools are running already")


async def test_a_call_that_runs_already_is_not_made_again():
    call = await begun(ASKS, says("It is on its way."), calls(("get_report", {"year": 2025})), says(BUSY))
    await call.request(Text(text="my report"), TurnMetrics, 2)
    assert "running already" in json.loads(tool_messages(call)[-1])["error"]
    await call.request(Text(text="that of last year too"), TurnMetrics, 3)
    await call.end()
    assert [event.arguments["year"] for event in call.outlet.of(ToolRequest)] == [2026, 2025]


async def test_a_tool_that_never_ends_times_out():
    config = AgentConfig(deadlines=AgentDeadlines(background_tool_s=30.0, idle_s=600.0))
    call = await begun(says("Sorry, no report."), config=config)
    at = now()
    await call.end(TurnMetrics, 2)
    assert now() - at >= 25
    assert [event.reason for event in call.outlet.of(ToolCancelled)] == ["timeout"]
    assert call.outlet.codes == ["tool_timeout"]
    assert tool_messages(call) == [STARTED, '{"error":"timeout"}']
    assert spoken(call)[-1] == "Sorry, no report."


async def test_a_failure_is_announced_too():
    call = await begun(says("Sorry."))
    answer(call, "no such year", is_error=True)
    await call.end(TurnMetrics, 2)
    assert tool_messages(call)[-1] == '{"error":"no such year"}'


async def test_a_long_result_is_cut():
    call = await begun(says("It is long."), config=AgentConfig(max_tool_output=100))
    answer(call, "x" * 1_000)
    await call.end(TurnMetrics, 2)
    assert tool_messages(call)[-1].endswith("(cut after 100 characters)")


async def test_a_second_result_is_refused():
    call = await begun(says("It is ready."))
    answer(call)
    answer(call)
    await call.end(TurnMetrics, 2)
    assert call.outlet.codes == ["unknown_tool_call"]


async def test_the_end_of_the_call_cancels_what_runs_and_drops_its_result():
    call = await begun()
    await call.hang_up()
    call.send(end=True)
    answer(call)
    await call.check_nothing_left()
    assert [event.reason for event in call.outlet.of(ToolCancelled)] == ["closed"]
    assert isinstance(call.outlet.events[-1], Closed)
    assert len(call.chat.requests) == 2


async def test_without_automatic_answers_a_result_only_waits_in_the_history():
    start = Start(tools=[REPORT], turn=TurnOptions(answer=False))
    call = await asked(ASKS, says(BUSY), says("Ready."), start=start)
    await call.until(3_000)
    await call.request(Respond(), TurnMetrics)
    answer(call)
    await asyncio.sleep(5)
    assert len(call.chat.requests) == 2
    await call.request(Respond(), TurnMetrics, 2)
    await call.end()
    assert tool_messages(call) == [STARTED, '"ready"']


async def test_the_user_is_not_asked_to_speak_while_a_result_is_awaited():
    silence = SilenceOptions(prompt_after_ms=2_000, hang_up_after_ms=6_000)
    call = await begun(says("It is ready."), silence=silence)
    await asyncio.sleep(20)
    assert spoken(call) == [BUSY]
    answer(call)
    await call.wait_for(Closed)
    assert spoken(call)[1:3] == ["It is ready.", UserIdleSettings().prompts[0]]
    assert call.outlet.reason == "silence"


async def test_progress_is_an_event_and_not_read_by_the_model():
    call = await begun(says("It is ready."))
    for share in (0.1, 0.5):
        answer(call, {"share": share}, final=False)
    progress = await call.wait_for(ToolProgress, 2)
    assert (progress.turn, progress.name, progress.output) == (1, "get_report", {"share": 0.5})
    await asyncio.sleep(5)
    assert len(call.chat.requests) == 2
    answer(call)
    await call.end(TurnMetrics, 2)
    assert tool_messages(call) == [STARTED, '"ready"']


async def test_progress_is_bounded():
    call = await begun(says("It is ready."))
    answer(call, "x" * 4_001, final=False)
    answer(call, json.loads("[" * 70 + "]" * 70), final=False)
    for number in range(105):
        answer(call, number, final=False)
    await asyncio.sleep(0.1)
    assert len(call.outlet.of(ToolProgress)) == 100
    assert call.outlet.codes == ["invalid_message"] * 7
    answer(call)
    answer(call, final=False)
    await call.end(TurnMetrics, 2)
    assert call.outlet.codes[7:] == ["unknown_tool_call"]


class ReportService:
    """One tool of the server's, ``make_report``, that reports its progress."""

    names = ("make_report",)

    def __init__(self, takes_s=3.0, limit_s=30.0, **options):
        self.tools = (Tool(name="make_report", mode="background", **options),)
        self.takes_s, self.limit_s = takes_s, limit_s
        self.running = 0

    def timeout_s(self, name):
        return self.limit_s

    async def call(self, name, arguments, *, traceparent="", on_progress=None):
        self.running += 1
        try:
            for step in range(200):
                on_progress({"progress": step, "total": 200, "message": None})
            await asyncio.sleep(self.takes_s)
            return ToolOutcome({"pages": 3})
        finally:
            self.running -= 1

    async def close(self):
        pass


SERVICE_ASKS = calls(("make_report", {}))


async def test_a_tool_of_the_server_may_run_in_the_background():
    tools = ReportService()
    call = await asked(SERVICE_ASKS, says("Yes."), says("It is ready."), server_tools=tools)
    await call.end(TurnMetrics, 2)
    assert tool_messages(call) == [STARTED, '{"pages":3}']
    (run,) = call.outlet.of(ToolRun)
    assert (run.is_error, run.duration_ms) == (False, 3_000)
    assert len(call.outlet.of(ToolProgress)) == 100
    assert call.outlet.codes == []


@pytest.mark.parametrize("way", ["time", "end", "interruption"])
async def test_a_tool_of_the_server_is_stopped(way):
    tools = ReportService(1_000.0, 5.0, cancel_on_interruption=True)
    call = await asked(SERVICE_ASKS, says("Yes, I will do that for you now."), server_tools=tools)
    await call.wait_for(ToolProgress)
    await asyncio.sleep(0.5)
    if way == "interruption":
        call.send(Interrupt())
    if way == "end":
        await call.end()
    else:
        await call.wait_for(ToolRun)
        await asyncio.sleep(2)
    assert tools.running == 0
    (run,) = call.outlet.of(ToolRun)
    assert run.is_error
    assert call.outlet.codes == (["tool_timeout"] if way == "time" else [])


async def test_a_result_in_the_tick_of_the_end_starts_no_timer():
    call = await begun(silence=SilenceOptions(prompt_after_ms=2_000))
    conversation = call.host._sessions[call.id]._conversation
    conversation.close()
    made = ToolCall(id="late", name="get_report", arguments={})
    conversation._on_tool_result(BackgroundCall(turn=1, call=made, result="{}"))
    assert conversation._user_idle._timer is None
    await call.end()
    assert len(call.chat.requests) == 2, "nothing is announced"
