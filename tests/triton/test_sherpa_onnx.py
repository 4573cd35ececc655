"""The models for what sherpa-onnx packs, on a real server with small networks, whose tokens are no words."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from rails import hear, read_clips

from parley.asr.families import load_model, new_reader
from parley.asr.messages import AsrOptions, TranscribeReply, TranscribeRequest, TranscriptEvent
from parley.asr.pipeline.step import ChunkRequest
from parley.asr.segments.pipeline import SegmentPipeline, SegmentPipelineLimits
from parley.asr.segments.recordings import SegmentRecording, SegmentRecordingLimits, SegmentRounds
from parley.asr.segments.utterance import Window
from parley.asr.segments.worker import InlineReader
from parley.errors import UnsupportedLanguageError
from parley.inference import ModelRequest, struct_tensor, tensor_struct
from parley.launcher.options import OPEN_PROFILE, ROOT, ServerOptions
from parley.launcher.server import EmbeddedServer
from parley.protocol import VadOptions
from parley.runtime.onnx import open_session
from parley.vad.silero import FILE, SileroVad, bundled_folder

STREAMS, RECORDINGS = "sherpa_onnx", "sherpa_onnx_transcribe"
SMALL = ROOT / "tests/data/sherpa_onnx"
FAMILIES = {STREAMS: "zipformer", RECORDINGS: "zipformer_ctc"}
WINDOWS = {STREAMS: Window(20_000, 10_000), RECORDINGS: Window(28_000, 15_000)}
CHUNK = 1_280


@pytest.fixture(scope="module")
def clips():
    return [clip.audio for clip in read_clips(ROOT / "tests/data/asr_eval")[:4]]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    options = ServerOptions(
        profile=OPEN_PROFILE,
        load_models=(STREAMS, RECORDINGS),
        state_dir=tmp_path_factory.mktemp("sherpa") / "state",
        grpc_port=0,
        http_port=0,
        metrics_port=0,
        environment={
            **{f"PARLEY_WEIGHTS_{model.upper()}": str(SMALL / own) for model, own in FAMILIES.items()},
            **{f"PARLEY_{model.upper()}_BATCH": "4" for model in FAMILIES},
        },
    )
    with EmbeddedServer(options) as running:
        yield running


@pytest.fixture(scope="module")
def readers():
    return {
        model: new_reader(load_model(SMALL / family, "moonshine", open_session))
        for model, family in FAMILIES.items()
    }


@pytest.fixture(scope="module")
def vad():
    return SileroVad(open_session(bundled_folder() / FILE))


def spoken(event):
    return event.text, [(word.text, word.start_ms, word.end_ms) for word in event.words]


async def transcribe(port, audio, **options):
    message = struct_tensor(TranscribeRequest(**options), batched=True)
    request = ModelRequest(RECORDINGS, {"AUDIO": audio[None], "REQUEST": message}, ("REPLY",), timeout_s=60.0)
    return tensor_struct((await port.infer(request))["REPLY"], TranscribeReply)


async def test_recordings_have_the_words_that_the_library_finds_with_their_times(port, clips, readers, vad):
    replies = await asyncio.gather(*(transcribe(port, clip) for clip in clips))
    limits = SegmentRecordingLimits(VadOptions(silence_ms=300), WINDOWS[RECORDINGS])
    for clip, reply in zip(clips, replies, strict=True):
        own = SegmentRecording(clip, TranscribeRequest(), readers[RECORDINGS], limits)
        while not own.done:
            SegmentRounds(readers[RECORDINGS], vad).run([own])
        assert spoken(reply) == spoken(own.reply())
        assert len(reply.words) > 1
        assert reply.segments == []
        assert reply.language == "en"


async def test_a_stream_has_the_words_that_the_library_finds_with_their_times(port, clips, readers, vad):
    reader = readers[STREAMS]
    pipeline = SegmentPipeline(
        reader, InlineReader(reader), vad, SegmentPipelineLimits(window=WINDOWS[STREAMS]), model=STREAMS
    )
    events = await hear(port, "sherpa", clips[0], CHUNK, model=STREAMS, partial_interval_ms=0)
    stream, expected = pipeline.new_stream(AsrOptions(partial_interval_ms=0)), []
    for at in range(0, len(clips[0]) + 1, CHUNK):
        last = at + CHUNK > len(clips[0])
        (result,) = pipeline.step([ChunkRequest(stream, clips[0][at : at + CHUNK], flush=last)])
        stream = result.stream
        expected += result.reply.events
    finals, own = (
        [spoken(event) for event in found if isinstance(event, TranscriptEvent) and event.is_final]
        for found in (events, expected)
    )
    assert finals == own
    assert finals[0][1]


async def test_another_language_is_refused(port, clips):
    with pytest.raises(UnsupportedLanguageError, match="only en"):
        await transcribe(port, clips[0], language="de")


async def test_silence_is_no_text(port):
    reply = await transcribe(port, np.zeros(32_000, np.int16))
    assert (reply.text, reply.words) == ("", [])
