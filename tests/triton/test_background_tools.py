"""A tool that does not block, in a conversation with the real server."""

from __future__ import annotations

import asyncio

from parley import protocol
from parley_client import ToolOptions, ToolTable, connect, report_progress
from parley_client.cli.demo_tools import get_weather

WAIT_S = 30.0


async def until(call, kind):
    """The events up to the next one of a kind."""
    seen = []
    async with asyncio.timeout(WAIT_S):
        async for event in call:
            seen.append(event)
            if isinstance(event, kind):
                return seen
    raise AssertionError(f"no {kind.__name__} came: {seen}")


def written(events):
    return "".join(event.text for event in events if isinstance(event, protocol.ResponseText))


async def test_a_result_is_announced_after_the_turns_beside_which_it_was_made(server):
    release = asyncio.Event()

    async def look_up(**arguments):
        report_progress("asked")
        await release.wait()
        return {"temperature": 8, "sky": "foggy", **arguments}

    (offered,) = ToolTable([get_weather]).definitions
    table = ToolTable()
    options = ToolOptions(offered.name, offered.description, offered.parameters, background=True)
    table.add(look_up, options)
    async with connect(server.endpoints.grpc, tools=table, greeting="") as call:
        call.send_text("what's the weather in paris")
        seen = await until(call, protocol.TurnMetrics)
        call.send_text("tell me a story")
        seen += await until(call, protocol.TurnMetrics)
        release.set()
        announced = await until(call, protocol.TurnMetrics)
    assert [event.output for event in seen if isinstance(event, protocol.ToolProgress)] == ["asked"]
    assert len([event for event in seen if isinstance(event, protocol.ToolRequest)]) == 1
    assert written(announced) == "It's 8 degrees and foggy in Paris."
    assert not [event for event in (*seen, *announced) if isinstance(event, protocol.ErrorEvent)]
