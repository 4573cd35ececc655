"""A turn that was stopped."""

from __future__ import annotations

import asyncio

from agent_fakes import FakeSynthesizer

from parley.agent.config import AgentConfig
from parley.agent.response import FixedText
from parley.agent.speech import SpeechSettings
from parley.agent.turn import AgentTurn, TurnOutput, TurnTiming


async def test_stopped_turn_sends_nothing_before_its_task_has_ended():
    sent = []
    voice = SpeechSettings(None, "en", 16_000)
    output = TurnOutput(FakeSynthesizer(), voice, AgentConfig(), lambda event, _: sent.append(event))
    turn = AgentTurn(1, "s-1", "s-1.1", output, FixedText("A long text, that goes on and on. And on and on."))
    running = asyncio.create_task(turn.run())
    turn.release(TurnTiming())
    await asyncio.sleep(0.3)
    turn.stop()
    before = len(sent)
    assert before
    await running
    assert len(sent) == before
