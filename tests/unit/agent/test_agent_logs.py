"""What a session writes into the log, and the ids of its lines."""

from __future__ import annotations

import logging

import pytest
from agent_fakes import FakeCall, open_call, says
from test_agent_traces import Spans

from parley.agent.config import AgentConfig
from parley.errors import InferenceError
from parley.logs import current_ids
from parley.protocol import CANARY_PREFIX, Start, TurnMetrics

CONFIG = AgentConfig(asr=("fake_asr",), llm=("fake_llm",))
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def lines():
    """Messages with the ids of their context."""
    found = []

    class Handler(logging.Handler):
        def emit(self, record):
            found.append((record.getMessage(), current_ids()))

    handler, logger = Handler(), logging.getLogger("parley")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield found
    logger.removeHandler(handler)
    logger.setLevel(before)


async def hold(call, *answers):
    call.hears((200, 1_000, "what time is it"))
    call.chat.answers += answers
    await call.start(Start(traceparent=PARENT))
    await call.end(TurnMetrics)


async def test_every_line_of_a_call_has_its_ids(lines):
    spans = Spans()
    call = FakeCall(CONFIG, session_id="call-7", tracing=spans.tracing)
    await hold(call, [InferenceError("broken")])
    messages = [message for message, _ in lines]
    assert messages[0] == "call-7: opened"
    assert messages[-1] == "call-7: closed: ended"
    assert any("inference_failed: broken" in message for message in messages)
    assert {ids.session for _, ids in lines} == {"call-7"}
    assert {ids.trace_id for _, ids in lines} == {PARENT.split("-")[1]}
    span = spans.one("turn").context.span_id
    (turn,) = [ids for message, ids in lines if ": turn 1 " in message]
    assert turn.span_id == f"{span:016x}"
    assert turn.request.startswith("call-7-")


async def test_without_a_trace_of_its_own_a_session_has_the_caller_s(lines):
    await hold(FakeCall(CONFIG), says("It is noon."))
    assert {ids.trace_id for _, ids in lines} == {PARENT.split("-")[1]}
    (turn,) = [message for message, _ in lines if ": turn 1 " in message]
    assert "complete, first audio " in turn
    assert turn.endswith(" ms after speech")


async def test_health_checks_are_not_in_the_log(lines):
    call = await open_call(config=CONFIG, session_id=f"{CANARY_PREFIX}1")
    await call.end()
    assert lines == []
