"""Whatever happens to calls, in whatever order: each ends once, and nothing is left of it."""

from __future__ import annotations

import asyncio

from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_tool_executor import Rig
from virtual_loop import VirtualLoop

from parley.agent.tools import STARTED
from parley.errors import UnknownToolCallError
from parley.protocol import ToolCancelled, ToolRequest, ToolResponse, ToolRun

NAMES = (
    *("open_door", "get_weather", "slow", "broken", "stubborn", "quick", "unknown"),
    *("report", "frail", "steady", "patient"),
)
STEPS = st.one_of(
    st.tuples(st.just("call"), st.sampled_from(NAMES)),
    st.tuples(st.just("answer"), st.integers(0, 12)),
    st.tuples(st.just("cancel"), st.integers(0, 12)),
    st.tuples(st.just("pass"), st.sampled_from((0.0, 0.0, 0.3, 2.0, 10.0))),
    st.tuples(st.sampled_from(("drop", "interrupt", "close")), st.none()),
)


def answer(rig, call_id, answered):
    """Only what the client could know to be wrong is refused; ``answered`` gets the call if it is not."""
    asked, cancelled = ({event.call_id for event in rig.of(kind)} for kind in (ToolRequest, ToolCancelled))
    events = len(rig.events)
    try:
        rig.executor.resolve(ToolResponse(call_id=call_id))
    except UnknownToolCallError:
        assert call_id not in asked or call_id in answered
    else:
        assert call_id in asked - answered
        answered |= {call_id} - cancelled
    assert len(rig.events) == events


async def play(steps):
    rig, tasks, answered = Rig(), [], set()
    for kind, value in steps:
        if kind == "call":
            call_id = f"call-{len(tasks)}"
            tasks.append(rig.begin(value, {"city": "Rome", "id": call_id}, call_id, turn=1 + len(tasks) // 3))
        elif kind == "answer":
            answer(rig, f"call-{value}", answered)
        elif kind == "cancel":
            if value < len(tasks):
                tasks[value].cancel()
        elif kind == "pass":
            await asyncio.sleep(value)
        elif kind in ("drop", "interrupt"):
            rig.executor.drop(1 + (len(tasks) - 1) // 3)
            rig.executor.forget_results()
            if kind == "interrupt":
                rig.executor.on_interrupted()
        else:
            rig.executor.close()
    in_background = {one.call.id for one in rig.executor.background}
    ending = rig.executor.close()
    at_close, delivered = len(rig.events), [one.call.id for one in rig.delivered]
    if tasks or ending:
        _, late = await asyncio.wait({*tasks, *ending}, timeout=3)
        assert not late
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert rig.server.running == 0
    assert rig.executor._running == {}
    assert all(task.cancelled() or isinstance(task.result(), str) for task in tasks)
    assert all(isinstance(event, ToolRun) for event in rig.events[at_close:]), (
        "nothing is asked after the end"
    )
    asked = [event.call_id for event in rig.of(ToolRequest)]
    cancelled = [event.call_id for event in rig.of(ToolCancelled)]
    assert sorted(asked) == sorted([*cancelled, *answered]), "each request has exactly one end"
    runs = [event.call_id for event in rig.of(ToolRun)]
    assert len(runs) == len(set(runs))
    assert not set(runs) & set(asked)
    assert [one.call.id for one in rig.delivered] == delivered, "nothing comes after the end"
    assert len(delivered) == len(set(delivered))
    assert all(one.result for one in rig.delivered)
    done = {f"call-{n}": task.result() for n, task in enumerate(tasks) if not task.cancelled()}
    started = {call_id for call_id, result in done.items() if result == STARTED}
    closed = any(kind == "close" for kind, _ in steps)
    assert closed or started <= {*delivered, *in_background}
    assert {arguments["id"] for arguments in rig.server.ran} <= set(runs), "every run is reported"


# Its call has run when the turn is cancelled, but its result has not been read yet.
@example([("call", "quick"), ("pass", 0.0), ("pass", 0.0), ("cancel", 0)])
# It is cancelled once more while it cleans up.
@example([("call", "stubborn"), ("pass", 0.3), ("cancel", 0), ("pass", 0.3), ("cancel", 0)])
@settings(max_examples=400, deadline=None)
@given(st.lists(STEPS, max_size=30))
def test_every_call_ends_once(steps):
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(play(steps))
        assert runner.get_loop().problems == []
