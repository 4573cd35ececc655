"""The metrics of a conversation, on the pages of the real server."""

from __future__ import annotations

import asyncio

import pytest
import pytest_asyncio
from metrics_page import read_page, total, until_metrics
from notes import Notes
from prometheus_client.parser import text_string_to_metric_families

from parley.agent.metrics import (
    ERRORS,
    FALSE_INTERRUPTIONS,
    FAMILIES,
    GPU_MEMORY,
    LLM_FALLBACKS,
    TTS_FALLBACKS,
    UNJUDGED,
    UNSCORED,
)
from parley.launcher.options import ROOT
from parley.protocol import Connected, TurnMetrics
from parley.triton.model_metrics import MODEL_FAMILIES, REQUEST_ERRORS
from parley_client import connect
from parley_client.audio.files import read_speech
from parley_client.cli.conversation import ScriptedConversation
from parley_client.cli.demo_tools import DEMO_TOOLS
from parley_client.cli.script import ScriptTurn

TIME = ROOT / "tests/data/conversation/02-weather.wav"
AGENT = {"model": "nemotron_streaming"}
SESSIONS = "voice_agent_active_sessions"
COUNTED = (
    ("voice_agent_e2e_latency_seconds_count", {}),
    ("voice_agent_sessions_ended_total", {"reason": "ended"}),
    ("parley_first_response_seconds_count", {"model": "qwen3"}),
    ("parley_first_response_seconds_count", {"model": "espeak"}),
    ("parley_batches_total", AGENT),
)
"""By each process that takes part in a turn."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def conversation(server):
    """One turn with a tool: the page before, during and after it, and the events between.

    Sessions of earlier tests may still end when it begins.
    """
    before, notes = until_metrics(server, lambda page: total(page, SESSIONS) == 0), Notes()
    async with connect(server.endpoints.grpc, tools=DEMO_TOOLS) as call:
        script = [ScriptTurn(name="weather", samples=read_speech(TIME))]
        (report,) = await ScriptedConversation(call, notes, record=False).run(script)
        during = await asyncio.to_thread(until_metrics, server, lambda page: total(page, SESSIONS) == 1)
    assert report.problem == ""
    after = until_metrics(server, lambda page: is_counted(before, page))
    return before, during, after, notes


def is_counted(before, page):
    """Whether each process has written its part, and the end of the session."""
    return total(page, SESSIONS) == 0 and all(growth(before, page, name, labels) for name, labels in COUNTED)


def growth(before, after, name, labels):
    key = name, tuple(sorted(labels.items()))
    return after.get(key, 0) - before.get(key, 0)


def grown(conversation, name, **labels):
    before, _, after, _ = conversation
    return growth(before, after, name, labels)


def test_a_turn_is_in_every_histogram_of_its_stages(conversation):
    *_, notes = conversation
    turns = [event for event in notes.of(TurnMetrics) if event.e2e_ms is not None]
    assert grown(conversation, "voice_agent_e2e_latency_seconds_count") == len(turns) == 1
    total_s = grown(conversation, "voice_agent_e2e_latency_seconds_sum")
    assert total_s == pytest.approx(turns[0].e2e_ms / 1000, abs=1e-3)
    assert grown(conversation, "voice_agent_asr_latency_seconds_count", **AGENT) == 1
    assert grown(conversation, "voice_agent_llm_ttft_seconds_count", model="qwen3") == 1
    assert grown(conversation, "voice_agent_llm_total_seconds_count", model="qwen3") == 1
    assert grown(conversation, "voice_agent_tool_seconds_count") == 1
    assert grown(conversation, "voice_agent_tts_ttfb_seconds_count", model="espeak") >= 1


def test_sessions_audio_and_tokens_are_counted(conversation):
    before, during, after, notes = conversation
    assert grown(conversation, "voice_agent_sessions_total", outcome="opened") == 1
    assert grown(conversation, "voice_agent_sessions_ended_total", reason="ended") == 1
    assert grown(conversation, "voice_agent_audio_bytes_received_total") >= 2 * len(read_speech(TIME))
    assert grown(conversation, "voice_agent_audio_bytes_sent_total") > 0
    tokens = sum(event.completion_tokens for event in notes.of(TurnMetrics))
    assert grown(conversation, "voice_agent_tokens_generated_total", model="qwen3") == tokens > 0

    assert [total(page, SESSIONS) for page in (before, during, after)] == [0, 1, 0]
    assert total(after, "voice_agent_sessions_limit") > 0
    assert total(after, "voice_agent_draining") == 0


def test_models_count_requests_and_batches(conversation):
    assert grown(conversation, "parley_first_response_seconds_count", model="qwen3") >= 1
    assert grown(conversation, "parley_first_response_seconds_count", model="espeak") >= 1
    steps = grown(conversation, "parley_batches_total", **AGENT)
    assert 0 < steps <= grown(conversation, "parley_batch_items_total", **AGENT)
    assert grown(conversation, "parley_batch_seconds_total", **AGENT) > 0


def test_names_types_and_labels_are_the_documented_ones(server, conversation):
    families = {family.name: family for family in text_string_to_metric_families(read_page(server))}
    after_incidents = {
        GPU_MEMORY,
        LLM_FALLBACKS,
        TTS_FALLBACKS,
        UNJUDGED,
        UNSCORED,
        FALSE_INTERRUPTIONS,
        ERRORS,
        REQUEST_ERRORS,
    }
    for expected in (*FAMILIES, *MODEL_FAMILIES):
        family = families.get(expected.name.removesuffix("_total"))
        if family is None:
            assert expected in after_incidents, expected.name
            continue
        assert family.type == expected.kind
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(expected.labels)


def test_no_session_is_a_label(server, conversation):
    *_, notes = conversation
    page = read_page(server)
    (connected,) = notes.of(Connected)
    assert connected.session_id not in page
