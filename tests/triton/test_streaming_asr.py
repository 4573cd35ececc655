"""The streaming recogniser inside the real server, with and without other models for final texts."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest
from metrics_page import read_metrics, until_metrics
from rails import QUIET, final_text, hear, read_clips, serve, simple

from parley.asr.messages import (
    AsrFallbackEvent,
    AsrOptions,
    OnsetEvent,
    SpeechStartedEvent,
    SpeechStoppedEvent,
    TranscriptEvent,
)
from parley.asr.service import ChunkRequest
from parley.asr.streaming import encoder as streaming_checkpoint
from parley.asr.streaming.final_transcripts import FinalTranscriber, FinalTranscriptPolicy
from parley.asr.streaming.pipeline import StreamingLimits, StreamingPipeline
from parley.engines.recognizers import ModelRecognizer
from parley.errors import InvalidMessageError, ParleyError
from parley.inference import ModelRequest, SequenceFlags, text_tensor
from parley.launcher.options import ROOT
from parley.models.nemotron_streaming import load_recognizer
from parley.runtime.onnx import open_session
from parley.triton.grpc_client import LoopbackClient
from parley.vad.silero import FILE, SileroVad, bundled_folder

MODEL = "nemotron_streaming"
OTHER = "parakeet_transcribe"
FINALS = "PARLEY_NEMOTRON_STREAMING_FINALS"
ENCODERS = ("parakeet_encoder", "parakeet_decoder")
EXPORT = ROOT / "models" / streaming_checkpoint.DEFAULT
CLIPS = ROOT / "tests/data/asr_eval"
LOOK_AHEADS = (80, 160, 560, 1120)

pytestmark = pytest.mark.skipif(not EXPORT.is_dir(), reason="its weights are not there")


@pytest.fixture(scope="session")
def clips():
    return read_clips(CLIPS)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A server on which the streaming model's own texts are final."""
    with serve(tmp_path_factory.mktemp("own"), (MODEL,), **{FINALS: "own"}) as running:
        yield running


@pytest.fixture
async def port(alone):
    port = LoopbackClient(alone.endpoints.grpc, max_calls=256)
    yield port
    await port.close()


@pytest.fixture
def key(request):
    """A correlation id that no other test has."""
    return request.node.name


@pytest.fixture(scope="module")
def local():
    """The same without a server."""
    return make_local()


def make_local(beam_size=None):
    export = streaming_checkpoint.load(EXPORT)
    recognizer, chunks = load_recognizer(
        export, LOOK_AHEADS, open_session, slots=4, audio=200_000, beam_size=beam_size
    )
    vad = SileroVad(open_session(bundled_folder() / FILE))
    final_transcriber = FinalTranscriber(FinalTranscriptPolicy(MODEL), None, None, lambda: 0.0)
    return StreamingPipeline(
        export.checkpoint,
        recognizer,
        vad,
        final_transcriber,
        chunks=chunks,
        default_ms=160,
        limits=StreamingLimits(),
    )


def hear_locally(rail, audio, chunk, **options):
    stream, events = rail.new_stream(AsrOptions(**options)), []
    for at in range(0, len(audio), chunk):
        (heard,) = rail.step([ChunkRequest(stream, audio[at : at + chunk])])
        stream = heard.stream
        events += heard.reply.events
    rail.release(stream)
    return events


def counted(page):
    """The fallback counter by (from, to, reason)."""
    return {
        tuple(dict(labels)[label] for label in ("from_model", "to_model", "reason")): value
        for (name, labels), value in page.items()
        if name == "parley_asr_fallback_total"
    }


def replaced(events):
    return [
        (event.from_model, event.to_model, event.reason)
        for event in events
        if isinstance(event, AsrFallbackEvent)
    ]


@pytest.mark.parametrize("lookahead_ms", LOOK_AHEADS)
async def test_partial_texts_come_while_it_is_spoken_and_a_final_one_at_the_end(
    port, clips, local, key, lookahead_ms
):
    clip = max(clips, key=lambda clip: len(clip.audio))
    events = await hear(port, key, clip.audio, 1280, model=MODEL, lookahead_ms=lookahead_ms)
    assert isinstance(events[0], OnsetEvent)
    assert isinstance(events[1], SpeechStartedEvent)
    assert isinstance(events[-2], SpeechStoppedEvent)
    partials = [event for event in events if isinstance(event, TranscriptEvent) and not event.is_final]
    assert partials
    assert final_text(events)
    assert simple(events) == simple(hear_locally(local, clip.audio, 1280, lookahead_ms=lookahead_ms))


async def test_64_sequences_with_ends_idles_and_errors_hear_what_each_hears_alone(port, clips, local, key):
    rng = random.Random(0)
    calls = []
    for number in range(64):
        clip = clips[number % len(clips)]
        audio = (
            np.concatenate([clip.audio, clips[-1 - number % len(clips)].audio])
            if number % 8 == 0
            else clip.audio
        )
        calls.append((audio, rng.choice((320, 1280, 1600, 8000)), rng.choice(LOOK_AHEADS)))
    expected = [
        hear_locally(local, audio, chunk, lookahead_ms=lookahead) for audio, chunk, lookahead in calls
    ]

    async def talk(number):
        audio, chunk, lookahead = calls[number]
        caller = random.Random(number)
        recognizer = ModelRecognizer(port, f"{key}-{number}", model=MODEL, timeout_s=60)
        await asyncio.sleep(caller.random())
        await recognizer.start(AsrOptions(lookahead_ms=lookahead))
        events = []
        for at in range(0, len(audio), chunk):
            if caller.random() < 0.02:
                await asyncio.sleep(caller.random())
            if caller.random() < 0.05:
                with pytest.raises(ParleyError):
                    await push_garbage(port, f"{key}-{number}")
            events += (await recognizer.push(audio[at : at + chunk])).events
        await recognizer.close()
        return events

    found = await asyncio.gather(*(talk(number) for number in range(64)))
    assert [simple(events) for events in found] == [simple(events) for events in expected]
    assert sum(isinstance(event, TranscriptEvent) and event.is_final for own in found for event in own) >= 64


async def push_garbage(port, key):
    await port.infer(
        ModelRequest(
            MODEL,
            {"AUDIO": QUIET[None], "REQUEST": text_tensor(b"garbage", batched=True)},
            ("REPLY",),
            sequence=SequenceFlags(key),
            timeout_s=60,
        )
    )


async def test_a_look_ahead_that_does_not_exist_is_refused(port, key):
    with pytest.raises(InvalidMessageError):
        await port.infer(
            ModelRequest(
                MODEL,
                {
                    "AUDIO": QUIET[None],
                    "REQUEST": text_tensor(b'{"options":{"lookahead_ms":100}}', batched=True),
                },
                ("REPLY",),
                sequence=SequenceFlags(key, start=True, end=True),
            )
        )


async def test_a_final_text_of_another_model_and_what_happens_without_it(tmp_path, clips, key):
    chosen = clips[:6]
    with serve(tmp_path, (*ENCODERS, OTHER, MODEL), **{FINALS: OTHER}) as server:
        port = LoopbackClient(server.endpoints.grpc)
        heard = await asyncio.gather(
            *(hear(port, f"{key}-{n}", clip.audio, 1280, model=MODEL) for n, clip in enumerate(chosen))
        )
        texts = [final_text(events) for events in heard]
        assert sum(text == clip.text for text, clip in zip(texts, chosen, strict=True)) >= 5
        assert [replaced(events) for events in heard] == [[]] * 6
        assert counted(read_metrics(server)) == {}
        await port.close()


async def test_without_the_other_model_its_own_text_is_final(tmp_path, clips, local, key):
    with serve(tmp_path, (MODEL,), **{FINALS: OTHER}) as server:
        port = LoopbackClient(server.endpoints.grpc)
        events = await hear(port, key, clips[0].audio, 1280, model=MODEL)
        expected = hear_locally(local, clips[0].audio, 1280)
        assert replaced(events) == [(OTHER, MODEL, "model_unavailable")]
        assert [event for event in simple(events) if not isinstance(event, AsrFallbackEvent)] == simple(
            expected
        )
        assert counted(until_metrics(server, counted)) == {(OTHER, MODEL, "model_unavailable"): 1}
        await port.close()


async def test_beam_search_follows_its_setting(tmp_path, clips, key):
    beam = {"PARLEY_NEMOTRON_STREAMING_DECODING": "beam", "PARLEY_NEMOTRON_STREAMING_BEAM_SIZE": "3"}
    rail = make_local(beam_size=3)
    with serve(tmp_path, (MODEL,), **{FINALS: "own"}, **beam) as server:
        port = LoopbackClient(server.endpoints.grpc)
        chosen = clips[:6]
        heard = await asyncio.gather(
            *(
                hear(port, f"{key}-{n}", clip.audio, 1280, model=MODEL, nbest=3)
                for n, clip in enumerate(chosen)
            )
        )
        await port.close()
    for clip, events in zip(chosen, heard, strict=True):
        assert simple(events) == simple(hear_locally(rail, clip.audio, 1280))
        (final,) = [event for event in events if isinstance(event, TranscriptEvent) and event.is_final]
        assert len(final.alternatives) == 3
        assert final.alternatives[0].text == final.text


async def test_torch_hears_the_same_inside_the_server(tmp_path, clips, local, key):
    """The engine of the gpu profile, on a CPU: the same steps and sizes, operation by operation."""
    settings = {
        "PARLEY_NEMOTRON_STREAMING_ENGINE": "torch",
        "PARLEY_NEMOTRON_STREAMING_LOOKAHEADS_MS": "160",
        "PARLEY_NEMOTRON_STREAMING_ROW_BUCKETS": "1,4",
    }
    chosen = sorted(clips, key=lambda clip: len(clip.audio))[-3:]
    with serve(tmp_path, (MODEL,), **{FINALS: "own"}, **settings) as running:
        port = LoopbackClient(running.endpoints.grpc, max_calls=16)
        try:
            heard = await asyncio.gather(
                *(hear(port, f"{key}-{n}", clip.audio, 1280, model=MODEL) for n, clip in enumerate(chosen))
            )
        finally:
            await port.close()
    for clip, events in zip(chosen, heard, strict=True):
        assert final_text(events)
        assert simple(events) == simple(hear_locally(local, clip.audio, 1280))
