"""Tests of the agent run in virtual time."""

from __future__ import annotations

import asyncio

import pytest
from agent_fakes import FakeCall
from recorded_calls import RecordingLoop
from virtual_loop import VirtualLoop


def pytest_asyncio_loop_factories(config, item):
    return {"virtual": RecordingLoop if item.path.name == "test_replayed_calls.py" else VirtualLoop}


@pytest.fixture(autouse=True)
async def no_call_is_left_open():
    """End the calls that a test has left open, and check that nothing of them is left over."""
    yield
    own = asyncio.get_running_loop()  # other tests have loops of their own
    left = [call for loop, call in FakeCall.begun if loop is own and not call.outlet.finished]
    FakeCall.begun.clear()
    for call in left:
        await call.hang_up()
        call.send(end=True)
    for call in left:
        await call.check_nothing_left()
