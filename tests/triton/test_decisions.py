"""Questions about a conversation with the real server."""

from __future__ import annotations

import asyncio

import pytest

from parley import protocol
from parley_client import AgentAudio, DecisionQuestion, connect

WAIT_S = 120.0
QUESTIONS = [
    DecisionQuestion(name="upset", question="Is the user angry?"),
    DecisionQuestion(name="topic", question="What is it?", kind="choice", options=["a story", "a timer"]),
    DecisionQuestion(name="urgent", question="Is it urgent?", kind="score", context=1),
]


async def test_questions_are_answered_behind_the_first_audio(server):
    seen, decisions = [], []
    async with (
        connect(server.endpoints.grpc, decisions=QUESTIONS, greeting="") as call,
        asyncio.timeout(WAIT_S),
    ):
        # On a busy machine the answers may come too late for a turn.
        while len({one.name for one in decisions}) < len(QUESTIONS):
            call.send_text("tell me a story")
            async for event in call:
                seen.append(event)
                if isinstance(event, protocol.TurnMetrics):
                    break
            decisions = [event for event in seen if isinstance(event, protocol.Decision)]
    assert {one.name: list(one.probabilities) for one in decisions} == {
        "upset": ["yes", "no"],
        "topic": ["a story", "a timer"],
        "urgent": ["1", "2", "3", "4", "5"],
    }
    for one in decisions:
        assert sum(one.probabilities.values()) == pytest.approx(1.0, abs=0.001)
        assert one.value == max(one.probabilities, key=lambda answer: one.probabilities[answer])
    kinds = [type(event) for event in seen]
    assert kinds.index(AgentAudio) < kinds.index(protocol.Decision)
    assert not [event for event in seen if isinstance(event, protocol.ErrorEvent)]
