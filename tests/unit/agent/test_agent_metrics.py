"""What the agent measures of its sessions."""

from __future__ import annotations

import asyncio
from typing import get_args

import pytest
from agent_fakes import CHUNK_MS, FakeCall, open_call, says

from parley.agent import metrics as names
from parley.agent.config import AgentConfig, AgentDeadlines
from parley.agent.host import Incoming
from parley.agent.metrics import AgentMetrics
from parley.agent.turn import TurnRecord
from parley.agent.turns import ResumeReason
from parley.asr.messages import OnsetEvent, OnsetLostEvent
from parley.errors import InferenceError, UnsupportedVoiceError
from parley.llm.messages import TextDelta
from parley.metrics import MetricsRecorder
from parley.protocol import (
    CANARY_PREFIX,
    AgentState,
    BargeInOptions,
    Closed,
    Discard,
    Interrupted,
    Paused,
    Resumed,
    Start,
    Text,
    TurnMetrics,
    TurnOptions,
    encode,
)

STORY = "Once there was a robot in a house by the sea, and it was happy. It waved at all the boats."


class Recorded:
    """All that was recorded in a call."""

    def __init__(self, metrics):
        self._changes = metrics.drain()

    def count(self, family, *values):
        return self._changes.counts.get((family, tuple(zip(family.labels, values, strict=True))), 0)

    def gauge(self, family, *values):
        return self._changes.values[family, tuple(zip(family.labels, values, strict=True))]

    def observed(self, family):
        return [value for other, _, value in self._changes.observations if other is family]

    def labels(self, family):
        return {labels for other, labels, _ in self._changes.observations if other is family}


async def test_a_turn_is_measured_by_the_figures_of_its_event():
    call = await open_call(hears=[(200, 1_000, "what time is it")], answers=[says("It is late.")])
    turn = await call.wait_for(TurnMetrics)
    recorded = Recorded(call.metrics)
    assert recorded.observed(names.E2E_LATENCY) == [pytest.approx(turn.e2e_ms / 1000)]
    assert recorded.observed(names.ASR_LATENCY) == [pytest.approx(turn.asr_final_ms / 1000)]
    assert recorded.observed(names.LLM_TTFT) == [pytest.approx(turn.llm_first_token_ms / 1000)]
    assert turn.llm_first_token_ms <= turn.first_segment_ms <= turn.first_audio_ms
    answers = call.headroom._board.answers(0)
    assert (list(answers["ms"]), list(answers["calls"])) == ([turn.e2e_ms], [1])
    assert recorded.observed(names.LLM_TOTAL) == [pytest.approx(turn.llm_total_ms / 1000)]
    assert recorded.labels(names.ASR_LATENCY) == {(("model", "fake_asr"),)}
    assert recorded.labels(names.LLM_TTFT) == {(("model", "qwen3"),)}
    assert recorded.count(names.TURNS, "answer", "complete") == 1
    assert recorded.count(names.TOKENS, "qwen3") == turn.completion_tokens > 0
    assert recorded.count(names.SENT) > 0
    assert recorded.count(names.SESSIONS, "opened") == 1
    assert recorded.gauge(names.ACTIVE, "agent_0") == 1
    assert recorded.gauge(names.LIMIT, "agent_0") == AgentConfig().max_sessions
    assert recorded.gauge(names.DRAINING, "agent_0") == 0
    await call.end()
    ended = Recorded(call.metrics)
    assert ended.count(names.ENDED, "ended") == 1
    assert ended.gauge(names.ACTIVE, "agent_0") == 0


async def test_the_time_to_the_answer_includes_the_silence():
    call = await open_call(hears=[(200, 1_000, "what time is it")], answers=[says("It is late.")])
    turn = await call.wait_for(TurnMetrics)
    # The fake recogniser notices the end of speech after 300 ms of silence.
    assert turn.e2e_ms - turn.first_audio_ms == pytest.approx(300, abs=CHUNK_MS)


async def test_received_audio_is_counted_in_bytes():
    call = await open_call(microphone=False)
    call.send(audio=bytes(640))
    call.send(audio=bytes(1280))
    assert Recorded(call.metrics).count(names.RECEIVED) == 1920


async def test_a_barge_in_is_measured_from_its_onset_to_the_pause():
    call = await open_call(
        hears=[(200, 1_000, "tell me a story"), (2_500, 3_300, "stop")], answers=[says(STORY), says("Okay.")]
    )
    await call.wait_for(Interrupted)
    (paused,) = call.outlet.of(Paused)
    recorded = Recorded(call.metrics)
    (seconds,) = recorded.observed(names.BARGE_IN)
    # Audio of the onset had arrived at the end of its chunk.
    assert seconds * 1000 == pytest.approx(call.at_ms(paused) - paused.at_ms, abs=CHUNK_MS)
    assert recorded.count(names.TURNS, "answer", "interrupted") == 1


async def test_a_barge_in_is_measured_where_playback_is_not_paused():
    call = FakeCall()
    call.hears((200, 1_000, "tell me a story"), (2_500, 3_300, "stop"))
    call.chat.answers += [says(STORY), says("Okay.")]
    await call.start(Start(barge_in=BargeInOptions(pause_playback=False)))
    await call.wait_for(Interrupted)
    assert call.outlet.of(Paused) == []
    (seconds,) = Recorded(call.metrics).observed(names.BARGE_IN)
    assert 0 < seconds < 1


async def test_a_noise_over_the_agent_is_a_false_interruption():
    call = FakeCall(hears=[(200, 1_000, "tell me a story")])
    call.recognition.script += [(2_500, OnsetEvent(at_ms=2_404)), (2_600, OnsetLostEvent())]
    call.chat.answers.append(says(STORY))
    await call.start()
    await call.wait_for(Resumed)
    recorded = Recorded(call.metrics)
    assert recorded.count(names.FALSE_INTERRUPTIONS, "noise") == 1
    assert recorded.observed(names.BARGE_IN) == []


async def test_a_failed_answer_is_no_complete_turn():
    call = FakeCall()
    call.hears((200, 1_000, "what time is it"))
    call.chat.answers.append([TextDelta(text="The first thing. "), InferenceError("broken")])
    await call.start()
    await call.wait_for(TurnMetrics)
    recorded = Recorded(call.metrics)
    assert recorded.count(names.ERRORS, "llm", InferenceError.code) == 1
    assert recorded.count(names.TURNS, "answer", "failed") == 1
    assert recorded.count(names.TURNS, "answer", "complete") == 0
    assert recorded.observed(names.E2E_LATENCY) == [], "an apology is no answer"


async def test_speech_failure_is_counted_as_an_error_of_tts():
    call = FakeCall(hears=[(200, 1_000, "what time is it")], answers=[says("It is late.")])
    call.synthesizer.failures.append(InferenceError("no voice"))
    await call.start()
    await call.wait_for(TurnMetrics)
    assert Recorded(call.metrics).count(names.ERRORS, "tts", InferenceError.code) == 1


@pytest.mark.parametrize(("token_s", "slow"), [(0.0, 0), (3.0, 1)])
async def test_answer_later_than_the_goal_is_counted_as_slow(token_s, slow):
    call = FakeCall(hears=[(200, 1_000, "what time is it")], answers=[says("It is late.")])
    call.chat.token_s = token_s
    await call.start()
    turn = await call.wait_for(TurnMetrics)
    assert (turn.e2e_ms > 1_000) == bool(slow)
    assert Recorded(call.metrics).count(names.SLOW) == slow


def test_tools_do_not_make_a_server_late():
    answers = []
    metrics = AgentMetrics(
        instance="", goal_ms=1_000, metrics=MetricsRecorder(names.FAMILIES), on_answer=answers.append
    )
    for tool_ms in (None, 2_000, 4_000):
        figures = TurnMetrics(turn=1, e2e_ms=2_500, tool_ms=tool_ms)
        metrics.on_turn(TurnRecord(figures, "complete", "answer", spoken=True), "asr", "llm")
    assert answers == [2_500, 500, 0]


@pytest.mark.parametrize(("after_s", "outcome"), [(0.05, "abandoned"), (2.0, "closed")])
async def test_a_call_that_ends_during_an_answer_is_measured(after_s, outcome):
    call = FakeCall(hears=[(200, 1_000, "tell me a story")], answers=[says(STORY)])
    call.chat.token_s = 0.02
    await call.start()
    await call.wait_for(AgentState, 2)  # it thinks
    await asyncio.sleep(after_s)
    await call.end()
    recorded = Recorded(call.metrics)
    assert recorded.count(names.TURNS, "answer", outcome) == 1
    assert len(recorded.observed(names.E2E_LATENCY)) == (outcome == "closed")


async def test_typed_text_has_no_time_of_recognition():
    call = await open_call(answers=[says("It is late.")])
    await call.request(Text(text="what time is it"), TurnMetrics)
    recorded = Recorded(call.metrics)
    assert recorded.count(names.TURNS, "answer", "complete") == 1
    assert recorded.observed(names.ASR_LATENCY) == []
    assert recorded.observed(names.E2E_LATENCY) == []
    assert len(recorded.observed(names.LLM_TTFT)) == 1


async def test_an_answer_that_waits_for_the_agent_has_no_time_to_the_first_audio():
    call = FakeCall(hears=[(3_000, 3_600, "what time is it")], answers=[says("It is late.")])
    await call.start(Start(greeting=STORY, barge_in=BargeInOptions(enabled=False)))
    await call.wait_for(TurnMetrics, 2)
    recorded = Recorded(call.metrics)
    assert recorded.count(names.TURNS, "say", "complete") == 1
    assert recorded.count(names.TURNS, "answer", "complete") == 1
    assert recorded.observed(names.E2E_LATENCY) == []


async def test_a_discarded_turn_leaves_no_time_for_a_later_one():
    call = FakeCall(hears=[(200, 1_000, "tell me a story")])
    await call.start(Start(turn=TurnOptions(detection="manual")))
    await call.until(3_000)
    call.send(Discard())
    await call.until(8_000)
    call.send(Text(text="hello"))
    call.chat.answers.append(says("Hello."))
    await call.wait_for(TurnMetrics)
    assert Recorded(call.metrics).observed(names.E2E_LATENCY) == []


async def test_sound_counts_as_one_false_interruption():
    call = await open_call(
        hears=[(200, 1_000, "tell me a story"), (2_500, 5_500, "uh-huh")], answers=[says(f"{STORY} {STORY}")]
    )
    await call.wait_for(TurnMetrics)
    recorded = Recorded(call.metrics)
    counted = sum(recorded.count(names.FALSE_INTERRUPTIONS, reason) for reason in get_args(ResumeReason))
    assert counted == 1


@pytest.mark.parametrize(
    ("config", "start", "code", "outcome"),
    [
        (AgentConfig(max_sessions=0), Start(), "too_many_sessions", "full"),
        (AgentConfig(), Start(language="xx"), "unsupported_language", "invalid"),
    ],
)
async def test_a_refused_session_is_counted_with_its_error(config, start, code, outcome):
    call = await open_call(start, config=config, microphone=False)
    recorded = Recorded(call.metrics)
    assert recorded.count(names.SESSIONS, outcome) == 1
    assert recorded.count(names.SESSIONS, "opened") == 0
    assert recorded.count(names.ERRORS, "connection", code) == 1
    call.send(end=True)


async def test_a_session_that_cannot_be_opened_has_failed():
    call = FakeCall(AgentConfig(deadlines=AgentDeadlines(asr_outage_s=0.0)))
    call.recognition.start_failures.append(InferenceError("no recogniser"))
    await call.start(microphone=False)
    await call.check_nothing_left()
    recorded = Recorded(call.metrics)
    assert (recorded.count(names.SESSIONS, "opened"), recorded.count(names.SESSIONS, "failed")) == (0, 1)
    assert recorded.count(names.ERRORS, "asr", InferenceError.code) == 1
    assert recorded.count(names.ENDED, "failed") == 1


async def test_an_unknown_voice_is_an_invalid_option_and_no_failure():
    call = FakeCall()
    call.synthesizer.voices = None  # it knows its voices only when it is asked
    call.synthesizer.stored["missing"] = UnsupportedVoiceError("there is no such voice")
    await call.start(Start(voice="missing"), microphone=False)
    await call.wait_for(Closed)
    await call.check_nothing_left()
    recorded = Recorded(call.metrics)
    assert recorded.count(names.ERRORS, "tts", "unsupported_voice") == 1
    assert recorded.count(names.SESSIONS, "invalid") == 1
    assert recorded.count(names.SESSIONS, "failed") == 0
    assert recorded.count(names.ENDED, "failed") == 0


async def test_a_session_that_a_shutdown_ends_before_it_is_open_has_not_left():
    call = FakeCall()
    call.host.handle(Incoming(call.id, message=encode(Start()), start=True), call.outlet)
    await call.host.shut_down()
    recorded = Recorded(call.metrics)
    assert recorded.count(names.SESSIONS, "stopping") == 1
    assert recorded.count(names.SESSIONS, "left") == 0
    assert recorded.count(names.ENDED, "shutdown") == 1


async def test_a_request_without_a_session_is_an_error():
    call = FakeCall()
    call.send(Text(text="hello"))
    assert Recorded(call.metrics).count(names.ERRORS, "connection", "session_not_found") == 1


async def test_a_stopping_host_is_draining():
    call = await open_call()
    stopping = asyncio.create_task(call.host.shut_down())
    await asyncio.sleep(0)
    assert Recorded(call.metrics).gauge(names.DRAINING, "agent_0") == 1
    await stopping
    await call.hang_up()
    assert Recorded(call.metrics).count(names.ENDED, "shutdown") == 1


async def test_canaries_are_not_measured():
    call = await open_call(session_id=f"{CANARY_PREFIX}1")
    await call.end()
    recorded = Recorded(call.metrics)
    assert recorded.count(names.SESSIONS, "opened") == 0
    assert recorded.count(names.ENDED, "ended") == 0
    assert recorded.count(names.RECEIVED) == 0
    assert recorded.gauge(names.ACTIVE, "agent_0") == 0


async def test_chunk_overhead_is_sampled_without_network_time():
    metrics = MetricsRecorder(names.FAMILIES)
    agent = names.AgentMetrics(instance="", goal_ms=1_000.0, metrics=metrics)
    session = names.SessionMetrics(agent, lambda _: None, lambda: "", "")
    for _ in range(640):
        session.on_chunk(0.005, 0.003)
    observed = Recorded(metrics).observed(names.CHUNK_OVERHEAD)
    assert observed == [pytest.approx(0.002)] * 10
