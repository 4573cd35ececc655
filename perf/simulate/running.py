"""Calls, several at once."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from parley import protocol
from parley.errors import ParleyError
from parley_client.call import Call
from parley_client.options import Deadlines
from parley_client.triton import TritonTransport
from simulate.caller import Caller
from simulate.log import CallLog
from simulate.rendering import Studio
from simulate.scenario import Scenario
from simulate.tool_scripts import make_table

_DEADLINES = Deadlines(connect_s=30.0)
_STAGGER_S = 0.7  # between the beginnings of calls that are held at once


@dataclass(frozen=True)
class Job:
    """One call that is to be made."""

    scenario: Scenario
    seed: int = 0
    """Of the room's noise: a repetition does not sound quite the same."""


async def run_calls(
    server: str,
    jobs: Sequence[Job],
    studio: Studio,
    *,
    parallel: int,
    turn: protocol.TurnOptions | None,
    on_done: Callable[[CallLog], None] = lambda _: None,
) -> list[CallLog]:
    """Make the calls, at most ``parallel`` at a time, in their order.

    Args:
        server: ``host:port`` of Triton's gRPC endpoint.
        jobs: what calls.
        studio: has the sounds of their scenarios.
        parallel: how many at once.
        turn: for the sessions whose scenario says nothing about it; None: the server's choice.
        on_done: is told of each call that is over.
    """
    waiting = list(reversed(jobs))
    logs: list[CallLog] = []

    async def work(number: int) -> None:
        await asyncio.sleep(number * _STAGGER_S)
        while waiting:
            job = waiting.pop()
            log = await _call(server, job, studio, turn)
            logs.append(log)
            on_done(log)

    async with asyncio.TaskGroup() as group:
        for number in range(parallel):
            group.create_task(work(number), name=f"caller {number + 1}")
    return logs


async def _call(server: str, job: Job, studio: Studio, turn: protocol.TurnOptions | None) -> CallLog:
    table = make_table(job.scenario.tools)
    start = msgspec.structs.replace(job.scenario.start, tools=table.definitions)
    if turn is not None and start.turn == protocol.TurnOptions():
        start = msgspec.structs.replace(start, turn=turn)
    call_id = str(uuid.uuid4())
    transport = TritonTransport(server)
    try:
        stream = await transport.open(call_id, _DEADLINES.connect_s)
        call = Call(stream, call_id, start, tools=table, deadlines=_DEADLINES)
        try:
            await call.open()
            return await Caller(call, job.scenario, studio, job.seed).run()
        finally:
            await call.aclose()
    except ParleyError as error:
        return CallLog(job.scenario, failure=error.to_wire())
    finally:
        await transport.close()
