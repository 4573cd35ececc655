"""The recogniser's models inside the real server."""

from __future__ import annotations

import asyncio
import json
import shutil

import numpy as np
import pytest
from local_models import LocalModels
from rails import QUIET, final_text, hear, read_clips, serve, simple
from safetensors.torch import save_file

from parley.asr import checkpoint
from parley.asr.decoding.boosting import PhraseAutomaton, compile_phrases
from parley.asr.messages import AsrOptions, OnsetEvent, SpeechStartedEvent, SpeechStoppedEvent
from parley.asr.parakeet.networks import TOKEN_OUTPUTS, piece_inputs, read_decoded
from parley.asr.parakeet.pipeline import OfflinePipeline
from parley.asr.parakeet.stream import StreamLimits
from parley.asr.service import ChunkRequest
from parley.engines.recognizers import ModelRecognizer
from parley.errors import (
    InferenceError,
    InvalidAudioError,
    InvalidInputError,
    InvalidMessageError,
    ModelUnavailableError,
    SessionNotFoundError,
    TooManySessionsError,
)
from parley.inference import ModelRequest, SequenceFlags, text_tensor
from parley.launcher.options import ROOT
from parley.triton.grpc_client import LoopbackClient
from parley_torch.asr.weights import read_weights

CLIPS = ROOT / "tests/data/conversation"
MODELS = ("parakeet_encoder", "parakeet_decoder", "parakeet_tdt")
MAX_SESSIONS = 8
NOTHING = np.zeros(0, np.int16)


@pytest.fixture(scope="session")
def clips():
    """What a caller says."""
    return read_clips(CLIPS)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    sessions = {"PARLEY_PARAKEET_TDT_MAX_SESSIONS": str(MAX_SESSIONS)}
    with serve(tmp_path_factory.mktemp("asr"), MODELS, **sessions) as running:
        yield running


@pytest.fixture
def key(request):
    """A correlation id that no other test has."""
    return request.node.name


def hear_locally(audio, chunk):
    """The same without a server."""
    export = checkpoint.load(ROOT / "models" / checkpoint.DEFAULT)
    pipeline = OfflinePipeline(export, LocalModels.open(export), StreamLimits())
    stream, events = pipeline.new_stream(AsrOptions()), []
    for at in range(0, len(audio), chunk):
        (heard,) = pipeline.step([ChunkRequest(stream, audio[at : at + chunk])])
        stream = heard.stream
        events += heard.reply.events
    return events


async def send(port, key, audio=NOTHING, message=b"{}", *, start=False, end=False):
    return await port.infer(
        ModelRequest(
            "parakeet_tdt",
            {"AUDIO": audio[None], "REQUEST": text_tensor(message, batched=True)},
            ("REPLY",),
            sequence=SequenceFlags(key, start=start, end=end),
            timeout_s=20,
        )
    )


@pytest.mark.parametrize("chunk_ms", [20, 100])
async def test_a_recording_is_heard_from_its_beginning_to_its_end(port, clips, key, chunk_ms):
    clip = clips[1]
    events = await hear(port, key, clip.audio, chunk_ms * 16)
    onset, started, *partials, stopped, _ = events
    assert isinstance(onset, OnsetEvent)
    assert isinstance(started, SpeechStartedEvent)
    assert isinstance(stopped, SpeechStoppedEvent)
    assert onset.at_ms == started.at_ms
    assert partials
    assert not any(event.is_final for event in partials)
    assert final_text(events) == clip.text
    assert abs(started.at_ms - 550) < 100
    assert abs(stopped.at_ms - (len(clip.audio) / 16 - 550)) < 150
    assert simple(events) == simple(hear_locally(clip.audio, chunk_ms * 16))


async def test_sequences_at_once_hear_what_each_hears_alone(port, clips, key):
    chosen = clips[:6]
    alone = [await hear(port, f"{key}-{n}", clip.audio, 1600) for n, clip in enumerate(chosen)]
    together = await asyncio.gather(
        *(hear(port, f"{key}-{n}", clip.audio, 1600) for n, clip in enumerate(chosen))
    )
    assert [simple(events) for events in together] == [simple(events) for events in alone]


async def test_nearly_everything_a_caller_says_is_understood(port, clips, key):
    wrong = [
        (clip.text, text)
        for number, clip in enumerate(clips)
        if (text := final_text(await hear(port, f"{key}-{number}", clip.audio, 16_000))) != clip.text
    ]
    assert len(wrong) <= 1, wrong


async def test_audio_is_served_together(port, clips, key):
    async def largest_batch(number):
        recognizer = ModelRecognizer(port, f"{key}-{number}", model="parakeet_tdt", timeout_s=20)
        await recognizer.start(AsrOptions())
        audio = clips[number].audio
        batches = [(await recognizer.push(audio[at : at + 320])).batch for at in range(0, 16_000, 320)]
        await recognizer.close()
        return max(batches)

    assert max(await asyncio.gather(*(largest_batch(number) for number in range(6)))) > 1


async def test_flush_brings_the_final_text_at_once(port, clips, key):
    recognizer = ModelRecognizer(port, key, model="parakeet_tdt", timeout_s=20)
    await recognizer.start(AsrOptions())
    await recognizer.push(clips[1].audio[: -len(QUIET)])
    reply = await recognizer.flush()
    await recognizer.close()
    assert final_text(reply.events) == clips[1].text


async def test_start_again_begins_anew(port, clips, key):
    await send(port, key, clips[0].audio[:9000], start=True)
    reply = await send(port, key, clips[0].audio[:1600], start=True)
    assert json.loads(reply["REPLY"].item())["stream_ms"] == 100
    await send(port, key, end=True)


async def test_invalid_request_is_refused_and_the_stream_lives_on(port, key):
    await send(port, key, start=True)
    with pytest.raises(InvalidMessageError):
        await send(port, key, message=b"garbage")
    with pytest.raises(InvalidMessageError):
        await send(port, key, message=b'{"flush": "perhaps"}')
    with pytest.raises(InvalidAudioError):
        await send(port, key, np.zeros(160_001, np.int16))
    with pytest.raises(InferenceError, match="INT16"):  # Triton's own check of the tensor's type
        await send(port, key, np.zeros(160, np.float32))
    reply = await send(port, key, np.zeros(1600, np.int16), end=True)
    assert json.loads(reply["REPLY"].item())["stream_ms"] == 100


async def test_a_bad_stream_does_not_disturb_its_neighbours(port, clips, key):
    async def misbehave():
        for _ in range(20):
            with pytest.raises(InvalidMessageError):
                await send(port, f"{key}-bad", message=b"garbage", start=True)

    events, _ = await asyncio.gather(hear(port, key, clips[1].audio, 1600), misbehave())
    assert simple(events) == simple(hear_locally(clips[1].audio, 1600))


async def test_a_chunk_without_start_is_refused(port, key):
    with pytest.raises(InferenceError, match="START"):
        await send(port, key, np.zeros(160, np.int16))


async def test_stream_beyond_the_limit_is_refused_until_another_ends(port, key):
    keys = [f"{key}-{number}" for number in range(MAX_SESSIONS)]
    for name in keys:
        await send(port, name, start=True)
    with pytest.raises(TooManySessionsError):
        await send(port, f"{key}-more", start=True)
    with pytest.raises(SessionNotFoundError):
        await send(port, f"{key}-more")
    await send(port, keys[0], end=True)
    await send(port, f"{key}-more", start=True, end=True)
    for name in keys[1:]:
        await send(port, name, end=True)


async def test_an_idle_stream_is_freed(tmp_path, key):
    repository = tmp_path / "repository"
    models = ("parakeet_tdt",)
    for model in models:
        shutil.copytree(ROOT / "model_repository" / model, repository / model)
    config = repository / "parakeet_tdt/configs/tiny.pbtxt"
    patient = "max_sequence_idle_microseconds: 60000000"
    assert patient in config.read_text()
    config.write_text(config.read_text().replace(patient, "max_sequence_idle_microseconds: 500000"))
    with serve(tmp_path, models, repository=repository, PARLEY_PARAKEET_TDT_MAX_SESSIONS="1") as server:
        port = LoopbackClient(server.endpoints.grpc)
        await send(port, key, start=True)

        async def until_there_is_room():
            while True:
                try:
                    return await send(port, f"{key}-next", start=True, end=True)
                except TooManySessionsError:
                    continue

        await asyncio.wait_for(until_there_is_room(), 20)
        with pytest.raises((InferenceError, SessionNotFoundError), match="START"):
            await send(port, key)
        await port.close()


async def test_a_missing_network_is_named_and_what_does_not_need_it_goes_on(tmp_path, clips, key):
    with serve(tmp_path, ("parakeet_tdt",)) as server:
        port = LoopbackClient(server.endpoints.grpc)
        await send(port, key, clips[0].audio[:8000], start=True)
        with pytest.raises(ModelUnavailableError, match="parakeet_encoder"):
            await send(port, key, clips[0].audio[8000:])
        reply = await send(port, key, QUIET, end=True)
        # The piece that failed was not heard.
        assert json.loads(reply["REPLY"].item())["stream_ms"] == 1000
        await port.close()


async def test_networks_refuse_input_that_makes_no_sense(port):
    features = np.full((1, 80, 20), np.nan, np.float32)
    with pytest.raises(InvalidInputError, match="finite"):
        await port.infer(
            ModelRequest("parakeet_encoder", {"FEATURES": features, "LENGTH": np.array([[20]])}, ("ENCODED",))
        )


async def decode(port):
    """What the decoder model makes of encoded speech, with phrases for one of two rows."""
    export = checkpoint.load(ROOT / "models" / checkpoint.DEFAULT)
    config = json.loads((export.folder / "config.json").read_text())
    encoded = np.random.default_rng(0).standard_normal((2, config["encoder_hidden_size"], 24))
    phrases = compile_phrases(["london", "the weather"], 4.0, export.vocabulary)
    inputs = piece_inputs(
        encoded.astype(np.float32) * 2, np.full(2, 24), [PhraseAutomaton.nothing(), phrases]
    )
    result = await port.infer(ModelRequest("parakeet_decoder", inputs, TOKEN_OUTPUTS))
    return read_decoded(result)


async def test_the_decoder_searches_with_a_beam_where_its_setting_says_so(tmp_path, port):
    greedy = await decode(port)
    with serve(tmp_path, ("parakeet_decoder",), PARLEY_PARAKEET_DECODER_DECODING="beam") as server:
        own_port = LoopbackClient(server.endpoints.grpc)
        beam = await decode(own_port)
        await own_port.close()
    assert all(len(row.tokens.ids) for row in greedy)
    assert not any(row.alternatives for row in greedy)
    assert all(row.alternatives[0][0] == row.tokens.ids.tolist() for row in beam)


def write_torch_weights(folder):
    export = checkpoint.load(ROOT / "models" / checkpoint.DEFAULT)
    folder.mkdir()
    for name in checkpoint.DESCRIPTION:
        shutil.copy(export.folder / name, folder)
    weights = read_weights(export.folder, export.encoder, export.decoder)
    save_file(
        {name: tensor.contiguous() for name, tensor in weights.items()}, folder / checkpoint.WEIGHTS_FILE
    )
    return folder


async def test_networks_on_torch_hear_the_same_inside_the_server(tmp_path, clips, key):
    """The engine of the gpu profile, on a CPU: the same runs and sizes, operation by operation.

    The weights are in the form for torch, without the ONNX files.
    """
    folder = write_torch_weights(tmp_path / "weights")
    settings = {f"PARLEY_WEIGHTS_{model.upper()}": str(folder) for model in MODELS if "parakeet" in model} | {
        "PARLEY_PARAKEET_ENCODER_ENGINE": "torch",
        "PARLEY_PARAKEET_ENCODER_FRAME_BUCKETS": "400,2000",
        "PARLEY_PARAKEET_ENCODER_ROW_BUCKETS": "1,2",
        "PARLEY_PARAKEET_ENCODER_MAX_RUN_FRAMES": "2000",
        "PARLEY_PARAKEET_DECODER_ENGINE": "torch",
        "PARLEY_PARAKEET_DECODER_ROW_BUCKETS": "1,2",
        "PARLEY_PARAKEET_DECODER_PIECE_FRAMES": "20",
    }
    chosen = clips[:2]
    with serve(tmp_path, MODELS, **settings) as server:
        port = LoopbackClient(server.endpoints.grpc)
        try:
            heard = await asyncio.gather(
                *(hear(port, f"{key}-{n}", clip.audio, 4_000) for n, clip in enumerate(chosen))
            )
        finally:
            await port.close()
    for clip, events in zip(chosen, heard, strict=True):
        assert simple(events) == simple(hear_locally(clip.audio, 4_000))
