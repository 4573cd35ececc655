"""A turn that was stopped."""

from __future__ import annotations

import asyncio

import pytest
from agent_fakes import FakeChat, FakeSynthesizer, says

from parley.agent.config import AgentConfig, AgentDeadlines
from parley.agent.endpointer import UserTurn
from parley.agent.response import LlmResponse, SystemPrompt
from parley.agent.speech import SpeechSettings
from parley.agent.tools import ToolExecutor
from parley.agent.turn import AgentTurn, TurnOutput, TurnTiming
from parley.errors import InferenceError
from parley.llm.history import History
from parley.protocol import Audio, ErrorEvent, ResponseText


class Room:
    """A turn whose events are written down."""

    def __init__(self, answer):
        self.sent = []
        self.chat, self.synthesizer = FakeChat(), FakeSynthesizer()
        config = AgentConfig(deadlines=AgentDeadlines(llm_retries=0))
        self.chat.answers.append(answer)
        stage = TurnOutput(
            self.synthesizer,
            SpeechSettings(None, "en", 16_000),
            config,
            lambda event, audio: self.sent.append(event),
        )
        thinker = LlmResponse(
            self.chat,
            SystemPrompt(History("", 1_000)),
            tools=ToolExecutor((), self.sent.append, config),
            sampling=config.sampling,
            config=config,
        )
        self.turn = AgentTurn(1, "s-1", "s-1.1", stage, thinker)
        self.task = asyncio.create_task(self.turn.run())


LONG = "A long answer, that goes on and on. And on and on."


async def test_a_stopped_turn_is_silent_even_before_its_task_has_ended():
    room = Room(says(LONG))
    room.turn.release(TurnTiming())
    await asyncio.sleep(0.3)
    room.turn.stop()
    before = len(room.sent)
    assert before
    await room.task
    assert len(room.sent) == before


async def test_a_turn_that_is_not_given_makes_audio_and_says_nothing():
    room = Room(says(LONG))
    await asyncio.sleep(5)
    assert room.sent == []
    assert room.synthesizer.requests
    given = asyncio.get_running_loop().time()
    room.turn.release(TurnTiming(UserTurn(detected_at=given)))
    await asyncio.sleep(0.001)
    assert isinstance(room.sent[0], ResponseText)
    assert any(isinstance(event, Audio) for event in room.sent)
    await room.task
    written = "".join(event.text for event in room.sent if isinstance(event, ResponseText))
    assert written == LONG
    assert room.turn.metrics(interrupted=False).first_audio_ms == 0


async def test_failure_of_a_held_turn_is_reported_on_its_release():
    room = Room([InferenceError("x")])
    await asyncio.sleep(1)
    assert room.sent == []
    assert room.turn.failed
    room.turn.release(TurnTiming())
    assert isinstance(room.sent[0], ErrorEvent)
    await room.task


async def test_a_paused_turn_goes_on_where_it_was():
    room = Room(says(LONG))
    room.turn.release(TurnTiming())
    await asyncio.sleep(1)
    room.turn.pause(playback=True)
    before, played = len(room.sent), room.turn.playout.played_ms(asyncio.get_running_loop().time())
    await asyncio.sleep(3)
    assert len(room.sent) == before
    assert room.turn.playout.played_ms(asyncio.get_running_loop().time()) == played
    room.turn.resume()
    began = asyncio.get_running_loop().time()
    await room.task
    pieces = [event for event in room.sent if isinstance(event, Audio)]
    length_ms = sum(event.samples for event in pieces) / 16
    assert asyncio.get_running_loop().time() - began == pytest.approx((length_ms - played) / 1000, abs=0.05)
    offsets = [event.offset_ms for event in pieces]
    assert offsets == sorted(offsets)
