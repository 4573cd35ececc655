"""The metrics of a conversation, on the pages of the real server."""

from __future__ import annotations

import pytest
import pytest_asyncio
from metrics_page import read_metrics, read_page
from notes import Notes
from prometheus_client.parser import text_string_to_metric_families

from parley.agent.metrics import (
    ERRORS,
    FALSE_INTERRUPTIONS,
    FAMILIES,
    GPU_MEMORY,
    TTS_FALLBACKS,
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


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def conversation(server):
    """One turn with a tool: the page before, the page after, and the events between."""
    before, notes = read_metrics(server), Notes()
    async with connect(server.endpoints.grpc, tools=DEMO_TOOLS) as call:
        script = [ScriptTurn(name="weather", samples=read_speech(TIME))]
        (report,) = await ScriptedConversation(call, notes, record=False).run(script)
        during = read_metrics(server)
    assert report.problem == ""
    return before, during, read_metrics(server), notes


def grown(conversation, name, **labels):
    before, _, after, _ = conversation
    key = name, tuple(sorted(labels.items()))
    return after.get(key, 0) - before.get(key, 0)


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
    _, during, after, notes = conversation
    assert grown(conversation, "voice_agent_sessions_total", outcome="opened") == 1
    assert grown(conversation, "voice_agent_sessions_ended_total", reason="ended") == 1
    assert grown(conversation, "voice_agent_audio_bytes_received_total") >= 2 * len(read_speech(TIME))
    assert grown(conversation, "voice_agent_audio_bytes_sent_total") > 0
    tokens = sum(event.completion_tokens for event in notes.of(TurnMetrics))
    assert grown(conversation, "voice_agent_tokens_generated_total", model="qwen3") == tokens > 0

    def total(page, name):
        return sum(value for (other, _), value in page.items() if other == name)

    assert total(during, "voice_agent_active_sessions") == total(after, "voice_agent_active_sessions") + 1
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
    after_incidents = {GPU_MEMORY, TTS_FALLBACKS, UNSCORED, FALSE_INTERRUPTIONS, ERRORS, REQUEST_ERRORS}
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
