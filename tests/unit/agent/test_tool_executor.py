"""ToolExecutor: the result of every call, and no call left behind."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from parley.agent.config import AgentConfig
from parley.agent.tools import ToolExecutor, make_call_id
from parley.chat import ToolCall
from parley.checkpoint import CHECKPOINT_VERSION, AgentTurnState, RoundState, SessionState
from parley.errors import UnknownToolCallError
from parley.protocol import ErrorEvent, Tool, ToolCancelled, ToolRequest, ToolResponse, ToolRun
from parley.tools.base import ToolOutcome
from parley.tools.combined import CombinedTools

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CLIENT_TOOLS = [
    Tool(name="get_weather", parameters=CITY),
    Tool(name="open_door"),
    Tool(name="report", mode="background"),
    Tool(name="frail", mode="background", cancel_on_interruption=True),
    Tool(name="steady", cancel_on_interruption=False),
]

SUFFIX = "0123456789abcdef"
"""Of a call's id: random in the agent; parameters of tests are the same in every process."""


class FakeServerTools:
    """Tools with given behaviour."""

    names = ("slow", "broken", "stubborn", "quick", "patient")
    tools = tuple(Tool(name=name, mode="background" if name == "patient" else "blocking") for name in names)

    def __init__(self):
        self.running = 0
        self.ran = []
        """Arguments of all calls."""

    def timeout_s(self, name):
        return {"slow": 2.0, "patient": 4.0}.get(name)

    async def call(self, name, arguments, *, traceparent="", on_progress=None):
        self.running += 1
        self.ran.append(arguments)
        try:
            if name == "broken":
                raise ValueError("what the user said")
            if name in ("stubborn", "patient"):
                await self._clean_up_slowly()
            if name == "slow":
                await asyncio.sleep(1_000)
            return ToolOutcome({"got": dict(arguments)})
        finally:
            self.running -= 1

    async def _clean_up_slowly(self):
        try:
            await asyncio.sleep(1_000)
        finally:
            await asyncio.sleep(0.5)

    async def close(self):
        pass


class Rig:
    def __init__(self, built_in=None, **config):
        self.events = []
        self.more = asyncio.Event()
        self.server = FakeServerTools()
        self.delivered = []
        self.executor = ToolExecutor(
            CLIENT_TOOLS,
            self._emit,
            AgentConfig(**config),
            self.server,
            built_in,
            on_result=self.delivered.append,
        )

    def _emit(self, event):
        self.events.append(event)
        self.more.set()

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def codes(self):
        return [event.code for event in self.of(ErrorEvent)]

    def begin(self, name, arguments=None, call_id="call-1-1", turn=1):
        call = ToolCall(id=call_id, name=name, arguments=arguments or {})
        return asyncio.create_task(self.executor.call(turn, call))

    async def call(self, *args, **kwargs):
        return json.loads(await self.begin(*args, **kwargs))

    async def asked(self, count=1):
        while len(self.of(ToolRequest)) < count:
            self.more.clear()
            await self.more.wait()


@asynccontextmanager
async def rig(**config):
    """A executor; afterwards nothing may be left of it."""
    made = Rig(**config)
    yield made
    await asyncio.sleep(5)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert made.server.running == 0
    assert made.executor._running == {}


async def test_the_model_may_correct_a_call_once_in_a_turn():
    async with rig() as executor:
        first = await executor.call("get_weather", {"city": 5})
        assert first["error"].startswith(
            "invalid arguments for get_weather: arguments.city: 5 is not of type"
        )
        assert first["error"].endswith("Correct the call, or do without it.")
        assert executor.codes == []
        second = await executor.call("get_weather", {}, "call-1-2")
        assert "'city' is a required property" in second["error"]
        assert second["error"].endswith("Do not call it again.")
        assert executor.codes == ["invalid_tool_call"]
        assert executor.of(ToolRequest) == []
        later = await executor.call("get_weather", {}, "call-2-1", turn=2)
        assert later["error"].endswith("or do without it.")
        assert executor.codes == ["invalid_tool_call"]


async def test_tools_that_do_not_exist_count_as_invalid_calls():
    async with rig() as executor:
        await executor.call("close_door")
        output = await executor.call("fly", call_id="call-1-2")
        assert output == {"error": "there is no tool fly. Do not call it again."}
        assert executor.codes == ["invalid_tool_call"]


async def test_a_valid_call_after_an_invalid_one_is_made():
    async with rig() as executor:
        await executor.call("get_weather", {"city": 5})
        task = executor.begin("get_weather", {"city": "Rome"}, "call-1-2")
        await executor.asked()
        executor.executor.resolve(ToolResponse(call_id="call-1-2", output="sunny"))
        assert json.loads(await task) == "sunny"


async def test_second_tool_response_is_refused():
    async with rig() as executor:
        task = executor.begin("open_door")
        await executor.asked()
        executor.executor.resolve(ToolResponse(call_id="call-1-1", output=1))
        for _ in range(2):
            with pytest.raises(UnknownToolCallError, match="has been answered"):
                executor.executor.resolve(ToolResponse(call_id="call-1-1", output=2))
            executor.executor.drop(1)  # its turn is over, and it was not cancelled
        assert json.loads(await task) == 1
        with pytest.raises(UnknownToolCallError, match="was never made"):
            executor.executor.resolve(ToolResponse(call_id="call-9-9"))


async def time_out(executor):
    await executor.call("open_door")


async def interrupt(executor):
    task = executor.begin("open_door")
    await executor.asked()
    executor.executor.drop(1)
    await task


async def cancel(executor):
    task = executor.begin("open_door")
    await executor.asked()
    task.cancel()
    await asyncio.wait([task])


async def close(executor):
    task = executor.begin("open_door")
    await executor.asked()
    executor.executor.close()
    await task


@pytest.mark.parametrize(
    ("end", "reason", "why"),
    [
        (time_out, "timeout", "took too long"),
        (interrupt, "interrupted", "was cancelled"),
        (cancel, "interrupted", "was cancelled"),
        (close, "closed", "was cancelled"),
    ],
)
async def test_a_response_that_crosses_the_cancellation_is_dropped(caplog, end, reason, why):
    caplog.set_level("DEBUG")
    async with rig() as executor:
        await end(executor)
        assert [event.reason for event in executor.of(ToolCancelled)] == [reason]
        before = list(executor.events)
        for _ in range(2):
            executor.executor.resolve(ToolResponse(call_id="call-1-1", output="what the user said"))
        assert executor.events == before
        assert executor.executor.result_of("call-1-1") is None
    assert f"tool call call-1-1 is dropped: the call {why}" in caplog.text
    assert "what the user said" not in caplog.text


async def test_a_client_cannot_answer_for_the_server():
    async with rig() as executor:
        task = executor.begin("slow")
        await asyncio.sleep(0.1)
        for ended in (False, True):
            with pytest.raises(UnknownToolCallError, match="was run by the server" if ended else "is run by"):
                executor.executor.resolve(ToolResponse(call_id="call-1-1"))
            await task
        dropped = executor.begin("slow", call_id="call-1-2")
        await asyncio.sleep(0.1)
        executor.executor.drop(1)
        await dropped
        with pytest.raises(UnknownToolCallError, match="was run by the server"):
            executor.executor.resolve(ToolResponse(call_id="call-1-2"))


async def test_tool_timeout_is_reported_to_the_client(caplog):
    async with rig() as executor:
        assert await executor.call("open_door") == {"error": "timeout"}
        (cancelled,) = executor.of(ToolCancelled)
        assert (cancelled.call_id, cancelled.reason, cancelled.turn) == ("call-1-1", "timeout", 1)
        assert executor.codes == ["tool_timeout"]
        assert caplog.text.count("tool open_door did not answer") == 1


@pytest.mark.parametrize(
    ("end", "reason"), [(lambda executor: executor.drop(1), "interrupted"), (ToolExecutor.close, "closed")]
)
async def test_dropped_tool_call_is_reported_to_the_client(end, reason):
    async with rig() as executor:
        tasks = [executor.begin("open_door", call_id=f"call-1-{n}") for n in (1, 2, 3)]
        await executor.asked(3)
        executor.executor.resolve(ToolResponse(call_id="call-1-2", output="done"))
        end(executor.executor)
        end(executor.executor)
        assert [event.call_id for event in executor.of(ToolCancelled)] == ["call-1-1", "call-1-3"]
        assert {event.reason for event in executor.of(ToolCancelled)} == {reason}
        # The tasks that wait were not cancelled: they get an answer.
        outputs = [json.loads(text) for text in await asyncio.gather(*tasks)]
        assert outputs == [{"error": "cancelled"}, "done", {"error": "cancelled"}]


async def test_a_call_that_begins_a_moment_too_late_is_not_made():
    async with rig() as executor:
        task = executor.begin("open_door")
        executor.executor.drop(1)
        assert json.loads(await task) == {"error": "cancelled"}
        assert executor.events == []


async def test_after_the_end_nothing_is_asked_for():
    async with rig() as executor:
        executor.executor.close()
        assert await executor.call("open_door") == {"error": "the session is over"}
        assert executor.events == []


async def test_a_turn_that_is_cancelled_takes_its_calls_with_it():
    async with rig() as executor:
        client, server = executor.begin("open_door"), executor.begin("slow", call_id="call-1-2")
        await executor.asked()
        client.cancel()
        server.cancel()
        await asyncio.wait([client, server])
        assert client.cancelled()
        assert server.cancelled()
        assert [event.reason for event in executor.of(ToolCancelled)] == ["interrupted"]
        assert [event.call_id for event in executor.of(ToolRun)] == ["call-1-2"]
        executor.executor.drop(1)
        assert len(executor.events) == 3


async def test_a_tool_of_the_servers_is_run_and_reported():
    async with rig() as executor:
        assert await executor.call("quick", {"a": 1}) == {"got": {"a": 1}}
        (run,) = executor.events
        assert (run.name, run.arguments, run.is_error, run.turn) == ("quick", {"a": 1}, False, 1)


async def test_a_tool_of_the_servers_has_a_limit_of_its_own():
    async with rig() as executor:
        assert await executor.call("slow") == {"error": "timeout"}
        (run,) = executor.of(ToolRun)
        assert (run.is_error, run.duration_ms) == (True, 2_000)
        assert executor.codes == ["tool_timeout"]
        assert executor.of(ToolCancelled) == []


async def test_a_tool_that_breaks_is_a_result_and_its_words_are_not_logged(caplog):
    async with rig() as executor:
        assert await executor.call("broken") == {"error": "the tool failed"}
        assert executor.of(ToolRun)[0].is_error
    assert "ValueError" in caplog.text
    assert "what the user said" not in caplog.text


async def test_a_dropped_tool_of_the_servers_is_stopped_and_cleans_up_undisturbed():
    async with rig() as executor:
        task = executor.begin("stubborn")
        await asyncio.sleep(0.1)
        executor.executor.drop(1)
        task.cancel()  # as a turn does that is interrupted
        await asyncio.sleep(0.4)
        assert executor.server.running == 1, "it still cleans up"
        await asyncio.wait([task])
        assert executor.server.running == 0


async def test_memory_of_calls_that_are_over_is_bounded():
    async with rig() as executor:
        for number in range(1_000):
            await executor.call("quick", call_id=f"call-1-{number}")
        assert len(executor.executor._ended) <= 256


async def test_a_response_to_a_call_that_was_forgotten_is_refused():
    async with rig() as executor:
        await interrupt(executor)
        executor.executor.resolve(ToolResponse(call_id="call-1-1"))
        for number in range(256):
            await executor.call("quick", call_id=f"call-2-{number}", turn=2)
        with pytest.raises(UnknownToolCallError, match="was never made"):
            executor.executor.resolve(ToolResponse(call_id="call-1-1"))


def test_call_ids_of_the_same_place_in_two_sessions_differ():
    first, second = make_call_id(1, 1), make_call_id(1, 1)
    assert first != second
    assert first.startswith("call-1-1-")


def restored(*calls, turns=3, results=()):
    """The state of a session in whose last turn these tools were called; no calls: that turn is over."""
    made = [ToolCall(id=f"call-{turns}-{n}", name=name, arguments={}) for n, name in enumerate(calls, 1)]
    rounds = [RoundState(calls=made, results={call.id: "1" for call in made if call.name in results})]
    agent = AgentTurnState(turn=turns, response_id="r", rounds=rounds) if calls else None
    return SessionState(version=CHECKPOINT_VERSION, turns=turns, agent=agent)


@pytest.mark.parametrize(
    ("state", "call_id", "why"),
    [
        # Whether a call that has a result was cancelled is not in the state: its result may be "timeout".
        (restored("open_door", results=["open_door"]), "call-3-1", "ended at another server"),
        (restored("open_door"), "call-3-2", "was never made"),
        (restored("open_door"), "call-2-1", "ended at another server"),
        (restored("open_door"), "call-4-1", "was never made"),
        (restored("quick"), "call-3-1", "was run by the server"),
        (restored("quick", results=["quick"]), "call-3-1", "was run by the server"),
        (restored(), "call-3-1", "ended at another server"),
        (restored(), "call-4-1", "was never made"),
        (restored(), f"call-3-1-{SUFFIX}", "ended at another server"),
        (restored(), f"call-4-1-{SUFFIX}", "was never made"),
        *(
            (restored(), call_id, "was never made")
            for call_id in ("", "3", "call-0-1", "call--3-1", "call-3-1x")
        ),
        (restored(), f"call-{'0' * 9_000}3-1", "was never made"),
    ],
)
async def test_response_to_a_call_of_another_server_is_dropped(caplog, state, call_id, why):
    caplog.set_level("DEBUG")
    async with rig() as executor:
        executor.executor.restore(state)
        if why == "ended at another server":
            executor.executor.resolve(ToolResponse(call_id=call_id))
            assert f"tool call {call_id} is dropped: the call {why}" in caplog.text
        else:
            with pytest.raises(UnknownToolCallError, match=why) as refused:
                executor.executor.resolve(ToolResponse(call_id=call_id))
            assert len(str(refused.value)) < 200  # whatever the client has sent
        assert executor.events == []
        executor.executor.close()


async def test_a_call_that_goes_on_is_answered_once_or_cancelled():
    async with rig() as executor:
        executor.executor.restore(restored("open_door", "get_weather"))
        executor.executor.resolve(ToolResponse(call_id="call-3-1", output=1))
        assert executor.executor.result_of("call-3-1") == "1"
        with pytest.raises(UnknownToolCallError, match="has been answered"):
            executor.executor.resolve(ToolResponse(call_id="call-3-1", output=2))
        executor.executor.drop(3)
        assert [event.call_id for event in executor.of(ToolCancelled)] == ["call-3-2"]
        executor.executor.resolve(ToolResponse(call_id="call-3-2"))
        assert len(executor.events) == 1


class BuiltInTools(FakeServerTools):
    """One tool of the session itself."""

    names = ("note",)
    tools = (Tool(name="note"),)


async def test_a_built_in_tool_without_a_result_is_run_again_after_a_move():
    built_in = BuiltInTools()
    async with rig(built_in=built_in) as executor:
        executor.executor.restore(restored("note", "quick"))
        assert json.loads(await executor.begin("note", call_id="call-3-1", turn=3)) == {"got": {}}
        assert "may have been done" in await executor.begin("quick", call_id="call-3-2", turn=3)
        assert (len(built_in.ran), len(executor.server.ran)) == (1, 0)
        assert [event.name for event in executor.of(ToolRun)] == ["note"]


async def test_built_in_tools_of_several_owners_change_with_the_session():
    notes, others = BuiltInTools(), FakeServerTools()
    others.names, others.tools = ("confirm",), ()
    built_in = CombinedTools(notes, others)
    async with rig(built_in=built_in) as executor:
        assert {tool.name for tool in executor.executor.offered} >= {"note", "open_door", "quick"}
        assert "there is no tool confirm" in (await executor.call("confirm"))["error"]
        others.tools = (Tool(name="confirm"),)
        executor.executor.change(CLIENT_TOOLS, only=("note", "confirm", "quick"))
        assert [tool.name for tool in executor.executor.offered] == ["note", "confirm", "quick"]
        assert await executor.call("confirm", call_id="call-2-1", turn=2) == {"got": {}}
        assert await executor.call("quick", call_id="call-2-2", turn=2) == {"got": {}}
        assert "there is no tool open_door" in (await executor.call("open_door", turn=2))["error"]
        executor.executor.change(CLIENT_TOOLS)
        assert "open_door" in {tool.name for tool in executor.executor.offered}


async def test_calls_under_way_go_on_when_their_tool_is_offered_no_more():
    async with rig() as executor:
        task = executor.begin("open_door")
        await executor.asked()
        executor.executor.change(CLIENT_TOOLS, only=())
        executor.executor.resolve(ToolResponse(call_id="call-1-1", output=1))
        assert await task == "1"
        executor.executor.restore(restored("get_weather"))
        executor.executor.resolve(ToolResponse(call_id="call-3-1", output=2))
        assert executor.executor.result_of("call-3-1") == "2"


async def test_an_answer_of_the_greatest_size_is_cut():
    async with rig(max_tool_output=100) as executor:
        task = executor.begin("open_door")
        await executor.asked()
        executor.executor.resolve(ToolResponse(call_id="call-1-1", output=["x" * 250_000]))
        assert await task == '["' + "x" * 98 + "… (cut after 100 characters)"
