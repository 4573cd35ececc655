"""A turn that was stopped."""

from __future__ import annotations

import asyncio

from agent_fakes import FakeChat, FakeRail, FakeSynthesizer, now, says

from parley.agent.config import AgentConfig
from parley.agent.engines import Engines
from parley.agent.tools import ToolDesk
from parley.agent.turn import Turn, TurnContext
from parley.agent.voice import Speaker
from parley.llm.history import History


async def test_a_stopped_turn_is_silent_even_before_its_task_has_ended():
    sent = []
    chat, config = FakeChat(), AgentConfig()
    chat.answers.append(says("A long answer, that goes on and on. And on and on."))
    context = TurnContext(
        session="s",
        engines=Engines(FakeRail(), chat, FakeSynthesizer()),
        history=History("", 1_000),
        tools=(),
        desk=ToolDesk((), sent.append, config),
        speaker=Speaker(None, "en", 16_000),
        config=config,
        emit=lambda event, audio: sent.append(event),
    )
    turn = Turn(1, context, now(), None)
    task = asyncio.create_task(turn.run())
    await asyncio.sleep(0.3)
    turn.stop()
    before = len(sent)
    assert before
    await task
    assert len(sent) == before
