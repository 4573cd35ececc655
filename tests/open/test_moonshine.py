"""Moonshine with its own weights, in this process and on a real server."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr
from harness.stats import word_errors

from parley.asr.messages import (
    AsrOptions,
    OnsetEvent,
    SpeechStartedEvent,
    SpeechStoppedEvent,
    TranscribeRequest,
    TranscriptEvent,
)
from parley.asr.reader import ReadOptions
from parley.asr.readers import load_reader
from parley.asr.readers.moonshine import FILES
from parley.asr.service import ChunkRequest
from parley.asr.utterances.pipeline import SegmentPipeline, SegmentPipelineLimits
from parley.asr.utterances.recordings import SegmentRecording, SegmentRecordingLimits, SegmentRounds
from parley.asr.utterances.worker import InlineReader
from parley.canaries.asking import ask_canaries
from parley.engines.registry import RECOGNIZERS
from parley.launcher.options import ROOT, ServerOptions
from parley.launcher.server import EmbeddedServer
from parley.runtime.onnx import Stop, open_session
from parley.triton.grpc_client import LoopbackClient
from parley.tts.english.pronouncer import EnglishFrontEnd, load_pronouncer
from parley.tts.kokoro import network as kokoro
from parley.tts.normalization.normalizer import TextNormalizer
from parley.vad.silero import FILE, SileroVad, bundled_folder
from parley_stages import Transcriber, open_server

MODELS_DIR = Path(os.environ.get("PARLEY_MODELS_DIR") or ROOT / "models")
WEIGHTS = MODELS_DIR / "moonshine-tiny-en"
RECORDING = MODELS_DIR / "test-recordings" / "two_cities.wav"
pytestmark = pytest.mark.skipif(
    not all(path.is_file() for path in (RECORDING, *(WEIGHTS / name for name in FILES.values()))),
    reason="needs the weights of moonshine and test-recordings",
)
SAID = (
    "it was the best of times it was the worst of times it was the age of wisdom it was the age of "
    "foolishness it was the epoch of belief"
)
LASTS_S = 10.4
REPEATED = (
    "Can you hear me? Can you hear me? Can you hear me? I want to cancel my order.",
    "Are you there? Are you there? Are you there? Please book a table for two.",
    "I want to cancel. I want to cancel. I want to cancel. My name is Ann.",
)
QUIET = np.zeros(12_800, np.int16)
CHUNK = 1_280
MODELS = ("moonshine", "moonshine_transcribe")


def plain(text):
    return "".join(c for c in text.lower().replace("-", " ") if c.isalnum() or c == " ").split()


@pytest.fixture(scope="module")
def speech():
    audio, rate = soundfile.read(RECORDING, dtype="int16")
    return soxr.resample(audio, rate, 16_000)[: int(LASTS_S * 16_000)]


@pytest.fixture(scope="module")
def reader():
    return load_reader(WEIGHTS, "moonshine", open_session)


@pytest.fixture(scope="module")
def vad():
    return SileroVad(open_session(bundled_folder() / FILE))


def texts_of(events):
    """What the turn says in the end, as the agent puts it together."""
    said = {}
    for event in events:
        if isinstance(event, TranscriptEvent) and event.is_final:
            if event.first in said:
                said = {at: text for at, text in said.items() if at < event.first} | {
                    event.first: event.before
                }
            said[event.utterance] = event.text
    return plain(" ".join(said.values()))


def test_a_person_is_understood_while_speaking_and_in_the_end(reader, vad, speech):
    rail = SegmentPipeline(reader, InlineReader(reader), vad, SegmentPipelineLimits(), model="moonshine")
    stream = rail.new_stream(AsrOptions(join_ms=8_000))
    call = np.concatenate([QUIET, speech, QUIET])
    events = []
    for at in range(0, len(call), CHUNK):
        (heard,) = rail.step([ChunkRequest(stream, call[at : at + CHUNK])])
        stream = heard.stream
        events += heard.reply.events
    wrong = [word for word in texts_of(events) if word not in SAID.split()]
    assert len(wrong) <= 1
    assert abs(len(texts_of(events)) - len(SAID.split())) <= 1
    transcripts = [event for event in events if isinstance(event, TranscriptEvent)]
    assert all(" ".join(word.text for word in event.words) == event.text for event in transcripts)
    finals = [word for event in transcripts if event.is_final for word in event.words]
    assert all(word.start_ms < word.end_ms <= len(call) // 16 for word in finals)
    assert sum(not event.is_final for event in transcripts) > 10
    assert all(event.confidence >= 0.45 for event in transcripts if event.text)


def test_a_recording_has_words_with_times(reader, vad, speech):
    recording = SegmentRecording(speech, TranscribeRequest(), reader, SegmentRecordingLimits())
    rounds = SegmentRounds(reader, vad)
    while not recording.done:
        rounds.run([recording])
        assert recording.error is None
    reply = recording.reply()
    assert len(set(plain(reply.text)) - set(SAID.split())) <= 1
    assert " ".join(word.text for word in reply.words) == reply.text
    ends = [(word.start_ms, word.end_ms) for word in reply.words]
    assert ends == sorted(ends)
    assert ends[-1][1] <= reply.duration_ms == len(speech) // 16
    assert reply.segments == []


def test_silence_and_noise_are_no_text(reader):
    noise = np.random.default_rng(0).normal(0, 30, 32_000).astype(np.int16)
    for audio in (np.zeros(0, np.int16), np.zeros(48_000, np.int16), noise):
        assert reader.read(audio, ReadOptions()).text == ""


def test_a_name_that_is_expected_is_written_as_it_was_said(reader, speech):
    """Boosting a word that the model nearly wrote by itself changes it, and nothing else."""
    stretch = speech[int(4.7 * 16_000) : int(8.5 * 16_000)]
    plain_text = reader.read(stretch, ReadOptions()).text
    boosted = reader.read(stretch, reader.options("en", ["age of Wisdom"], 2.0)).text
    assert "age of Wisdom" in boosted
    misled = reader.read(stretch, reader.options("en", ["Ljubljana", "quarterly report"], 1.0)).text
    assert misled == plain_text


@pytest.fixture(scope="module")
def say():
    """What Kokoro makes of a text, i16 at 16 kHz."""
    pronouncer = load_pronouncer(MODELS_DIR / "misaki-en", MODELS_DIR / "g2p-en")
    front_end = EnglishFrontEnd(TextNormalizer({}, tags=False), pronouncer)
    voices = kokoro.load_network(MODELS_DIR / "kokoro-82m", {"en": front_end}, threads=1)

    def say(text):
        sound = voices.make(voices.pronounce(text, "en"), "bf_emma", Stop())
        audio = soxr.resample(sound.audio, kokoro.SAMPLE_RATE, 16_000)
        return (audio * 32_767).clip(-32_768, 32_767).astype(np.int16)

    return say


@pytest.mark.parametrize("text", REPEATED)
def test_read_of_a_phrase_said_three_times_keeps_it_and_what_follows(reader, say, text):
    wrong = word_errors(plain(text), plain(reader.read(say(text), ReadOptions()).text))
    assert wrong <= 2


async def hear(port, key, audio):
    recognizer = RECOGNIZERS["moonshine"](port, key, timeout_s=20.0)
    await recognizer.start(AsrOptions(join_ms=8_000))
    events = []
    for at in range(0, len(audio), CHUNK):
        events += (await recognizer.push(audio[at : at + CHUNK])).events
    events += (await recognizer.flush()).events
    async with asyncio.timeout(30):
        while sum(isinstance(event, SpeechStoppedEvent) for event in events) > sum(
            isinstance(event, TranscriptEvent) and event.is_final for event in events
        ):
            await asyncio.sleep(0.02)
            events += (await recognizer.push(audio[:0])).events
    await recognizer.close()
    return events


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    options = ServerOptions(
        profile="open",
        load_models=MODELS,
        state_dir=tmp_path_factory.mktemp("moonshine"),
        grpc_port=0,
        http_port=0,
        metrics_port=0,
        environment={"PARLEY_MODELS_DIR": str(MODELS_DIR)},
    )
    with EmbeddedServer(options) as running:
        yield running


async def test_streams_share_the_model_on_a_real_server(server, speech):
    port = LoopbackClient(server.endpoints.grpc)
    try:
        calls = [hear(port, f"call-{number}", np.concatenate([speech, QUIET])) for number in range(2)]
        for events in await asyncio.gather(*calls):
            assert len(set(texts_of(events)) - set(SAID.split())) <= 1
            began = [event for event in events if isinstance(event, SpeechStartedEvent)]
            assert len([event for event in events if isinstance(event, OnsetEvent)]) >= len(began) >= 3
    finally:
        await port.close()


async def test_clients_find_the_model_for_recordings(server, speech):
    async with open_server(server.endpoints.grpc) as stages, Transcriber(stages) as transcriber:
        reply = await transcriber.transcribe(speech)
    assert len(set(plain(reply.text)) - set(SAID.split())) <= 1
    assert plain(" ".join(word.text for word in reply.words)) == plain(reply.text)
    assert reply.segments == [], "these are for models without times of words"


def test_the_canaries_are_answered(server):
    results = ask_canaries(server.endpoints.grpc, dict.fromkeys(MODELS, ""), 20.0)
    assert {result.model: result.detail for result in results if not result.ok} == {}
