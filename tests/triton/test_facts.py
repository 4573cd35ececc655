"""Sessions with ``facts``: against the real server, whose small model has learned its name by heart."""

from __future__ import annotations

import asyncio

import pytest

from parley import protocol
from parley_client import AgentAudio, connect

WAIT_S = 30.0


@pytest.mark.parametrize(("prompt", "knows"), [("You are Parley.", True), ("You are an assistant.", False)])
async def test_name_that_no_source_has_is_not_spoken(server, prompt, knows):
    shown, words = "", ""
    async with (
        connect(server.endpoints.grpc, system_prompt=prompt, facts="strict") as call,
        asyncio.timeout(WAIT_S),
    ):
        call.send_text("who are you")
        async for event in call:
            if isinstance(event, protocol.ResponseText):
                shown += event.text
            elif isinstance(event, AgentAudio):
                words += f" {event.text}"
            elif isinstance(event, protocol.TurnMetrics):
                break
    assert ("Parley" in shown) == ("Parley" in words) == knows
    assert words.strip()
    assert event.held_back[:1] == ([] if knows else ["name"])
