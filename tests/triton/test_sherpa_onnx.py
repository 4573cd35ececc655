"""The models for what sherpa-onnx packs, on a real server with small networks, whose tokens are no words."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np
import pytest
from rails import hear, read_clips

from parley.asr.messages import AsrOptions, TranscribeReply, TranscribeRequest, TranscriptEvent
from parley.asr.readers import load_reader
from parley.asr.service import ChunkRequest
from parley.asr.utterances.pipeline import SegmentPipeline, SegmentPipelineLimits
from parley.asr.utterances.recordings import SegmentRecording, SegmentRecordingLimits, SegmentRounds
from parley.asr.utterances.utterance import Window
from parley.asr.utterances.worker import InlineReader
from parley.errors import UnsupportedLanguageError
from parley.inference import ModelRequest, struct_tensor, tensor_struct
from parley.launcher.options import OPEN_PROFILE, ROOT, ServerOptions
from parley.launcher.server import EmbeddedServer
from parley.protocol import ResponseText, Transcript, TurnMetrics, VadOptions
from parley.runtime.onnx import open_session
from parley.vad.silero import FILE, SileroVad, bundled_folder
from parley_client import AgentAudio, connect

STREAMS, RECORDINGS = "sherpa_onnx", "sherpa_onnx_transcribe"
SMALL = ROOT / "tests/data/sherpa_onnx"
FAMILIES = {STREAMS: "zipformer", RECORDINGS: "zipformer_ctc"}
WINDOWS = {STREAMS: Window(20_000, 10_000), RECORDINGS: Window(28_000, 15_000)}
CHUNK = 1_280
TURN_S = 120.0
ANSWER = b"""data: {"choices": [{"delta": {"content": "I see."}, "finish_reason": "stop"}]}

data: [DONE]

"""


class ChatServer(BaseHTTPRequestHandler):
    """A language model elsewhere, which has one answer to everything."""

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write(ANSWER)

    def log_message(self, *_):
        pass


@contextmanager
def chat_server():
    """Its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), ChatServer)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def clips():
    return [clip.audio for clip in read_clips(ROOT / "tests/data/asr_eval")[:4]]


@pytest.fixture(scope="module")
def chat_url():
    with chat_server() as url:
        yield url


@pytest.fixture(scope="module")
def server(tmp_path_factory, chat_url):
    options = ServerOptions(
        profile=OPEN_PROFILE,
        load_models=(STREAMS, RECORDINGS, "espeak", "voice_agent"),
        state_dir=tmp_path_factory.mktemp("sherpa") / "state",
        grpc_port=0,
        http_port=0,
        metrics_port=0,
        environment={
            **{f"PARLEY_WEIGHTS_{model.upper()}": str(SMALL / own) for model, own in FAMILIES.items()},
            **{f"PARLEY_{model.upper()}_BATCH": "4" for model in FAMILIES},
            "PARLEY_VOICE_AGENT_ASR": STREAMS,
            "PARLEY_VOICE_AGENT_LLM": "openai_chat",
            "PARLEY_VOICE_AGENT_LLM_URL": chat_url,
            "PARLEY_VOICE_AGENT_LLM_MODEL": "any",
            "PARLEY_VOICE_AGENT_TTS": "espeak",
            "PARLEY_VOICE_AGENT_TTS_FALLBACK": "",
            "PARLEY_VOICE_AGENT_TURN": "none",
        },
    )
    with EmbeddedServer(options) as running:
        yield running


@pytest.fixture(scope="module")
def readers():
    return {
        model: load_reader(SMALL / family, "moonshine", open_session) for model, family in FAMILIES.items()
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


async def test_a_call_is_held_with_it(server, clips):
    """What it understands is no words, but each utterance has its text, its answer, and the next turn."""
    async with asyncio.timeout(2 * TURN_S), connect(server.endpoints.grpc) as call:
        for turn, clip in enumerate(clips[:2], 1):
            speech = np.concatenate([clip, np.zeros(32_000, np.int16)])
            for at in range(0, len(speech), CHUNK):
                await call.send_audio(speech[at : at + CHUNK])
                await asyncio.sleep(CHUNK / 16_000)
            events = []
            async for event in call:
                events.append(event)
                if isinstance(event, TurnMetrics):
                    break
            finals = [event.text for event in events if isinstance(event, Transcript) and event.is_final]
            assert any(finals), (turn, events)
            answer = "".join(event.text for event in events if isinstance(event, ResponseText))
            assert "I see." in answer
            assert sum(len(event.samples) for event in events if isinstance(event, AgentAudio)) > 0
