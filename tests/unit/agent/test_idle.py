"""When a session without input is closed."""

from __future__ import annotations

import pytest
from agent_fakes import FakeCall, open_call, says

from parley.agent.config import AgentConfig, AgentDeadlines
from parley.protocol import (
    Audio,
    Closed,
    Playback,
    Respond,
    Say,
    SilenceOptions,
    Start,
    TurnMetrics,
)

IDLE_S = 5.0
CONFIG = AgentConfig(deadlines=AgentDeadlines(idle_s=IDLE_S))
ANNOUNCEMENT = Say(text="This is a long announcement of the railway company. " * 20)


async def test_a_client_that_only_listens_hears_all_of_it():
    call = await open_call(config=CONFIG, microphone=False)
    call.send(ANNOUNCEMENT)
    metrics, closed = await call.wait_for(TurnMetrics), await call.wait_for(Closed)
    await call.check_nothing_left()
    last = call.outlet.of(Audio)[-1]
    assert last.offset_ms > 45_000
    assert closed.reason == "idle"
    assert call.at_ms(closed) - call.at_ms(metrics) == pytest.approx(IDLE_S * 1000, abs=450)


async def test_a_client_that_waits_for_a_slow_answer_is_not_idle():
    call = FakeCall(CONFIG)
    call.chat.first_s = 12.0
    call.chat.answers.append(says("Here I am."))
    await call.start(microphone=False)
    await call.request(Respond(), TurnMetrics)
    assert call.outlet.reason is None
    assert [request.text for request in call.synthesizer.requests] == ["Here I am."]


async def test_prompts_to_a_client_that_is_gone_do_not_keep_it():
    call = FakeCall(CONFIG)
    await call.start(Start(silence=SilenceOptions(prompt_after_ms=1_000)), microphone=False)
    closed = await call.wait_for(Closed)
    await call.check_nothing_left()
    assert closed.reason == "idle"
    assert 3 <= len(call.synthesizer.requests) <= 5, "a prompt after each second of silence"


async def test_any_request_is_a_sign_of_life():
    call = await open_call(config=CONFIG, microphone=False)
    for at_ms in (4_000, 8_000, 12_000):
        await call.until(at_ms)
        call.send(Playback(response_id="none", played_ms=0))
    closed = await call.wait_for(Closed)
    await call.check_nothing_left()
    assert call.at_ms(closed) == pytest.approx(17_000, abs=750)
