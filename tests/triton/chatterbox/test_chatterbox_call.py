"""Conversations that are spoken by Chatterbox, and by espeak where it fails."""

from __future__ import annotations

import numpy as np
import pytest
from metrics_page import read_metrics, until_metrics

from parley.errors import UnsupportedVoiceError
from parley.launcher.options import ROOT
from parley.protocol import ErrorEvent, ResponseText, TurnMetrics
from parley_client import AgentAudio, connect
from parley_client.audio.files import read_speech

CLIPS = ROOT / "tests/data/conversation"
COUNTED = "parley_tts_fallback_total"


async def one_turn(server, voice):
    """Say hello; the answer's text, the words that came with its audio, its samples and all errors."""
    clip = CLIPS / "01-hello.wav"
    speech = np.append(read_speech(clip), np.zeros(16_000, np.int16))
    text, words, samples, errors = "", [], [], []
    async with connect(server.endpoints.grpc, voice=voice) as call:
        for start in range(0, len(speech), 1_600):
            await call.send_audio(speech[start : start + 1_600])
        async for event in call:
            if isinstance(event, ResponseText):
                text += event.text
            elif isinstance(event, AgentAudio):
                words += event.text.split()
                samples.append(event.samples)
            elif isinstance(event, ErrorEvent):
                errors.append(event.code)
            elif isinstance(event, TurnMetrics):
                break
    return text, words, np.concatenate(samples), errors


def counted(page):
    return [(dict(labels), value) for (name, labels), value in page.items() if name == COUNTED]


async def test_chatterbox_speaks(chatterbox_server):
    text, words, samples, errors = await one_turn(chatterbox_server, None)
    assert errors == []
    assert words == text.split()
    assert len(samples) > 8_000  # random weights, whose tokens are drawn anew: the length varies
    assert counted(read_metrics(chatterbox_server)) == []


async def test_missing_voice_is_refused_at_once(chatterbox_server):
    with pytest.raises(UnsupportedVoiceError):
        async with connect(chatterbox_server.endpoints.grpc, voice="missing"):
            pass
    assert counted(read_metrics(chatterbox_server)) == []


async def test_espeak_speaks_where_chatterbox_fails(chatterbox_server):
    text, words, samples, errors = await one_turn(chatterbox_server, "damaged")
    assert errors == ["tts_fallback"]
    assert words == text.split()
    assert len(samples) > 8_000
    ((labels, count),) = counted(until_metrics(chatterbox_server, counted))
    assert (labels["from_engine"], labels["reason"], count) == ("chatterbox", "voice_damaged", 1)
