"""Voices made by the real server of real recordings, and spoken with, on small random weights."""

from __future__ import annotations

import asyncio
import io
import json
import uuid

import numpy as np
import pytest
import soundfile
from leftovers import ANY_PORTS

from parley.canaries.asking import ask_canaries, profile_models
from parley.engines.speech import ChatterboxSpeaker
from parley.errors import (
    ConsentMissingError,
    InvalidMessageError,
    ReferenceAudioError,
    ReferenceClippedError,
    ReferenceNotMonoError,
    ReferenceTooLongError,
    ReferenceTooQuietError,
    ReferenceTooShortError,
    UnsupportedSampleRateError,
    UnsupportedVoiceError,
    VoiceExistsError,
    VoiceStoreRefusedError,
)
from parley.inference import ModelRequest, struct_tensor, tensor_struct, text_tensor
from parley.launcher import EmbeddedServer, ServerOptions
from parley.launcher.options import ROOT
from parley.tts.messages import SpeakRequest
from parley.tts.voice_messages import ListVoices, VoicesReply
from parley_client.cli.program import main
from parley_stages import Voices, open_server

CLIPS = ROOT / "tests/data/asr_eval"
RATE = 16_000


def speech(seconds):
    """Sentences with pauses between them; f32 [n]."""
    pieces = []
    for path in sorted(CLIPS.glob("sentences-*.flac")):
        pieces += [soundfile.read(path, dtype="float32")[0], np.zeros(RATE // 4, np.float32)]
    return np.concatenate(pieces)[: int(seconds * RATE)]


def as_file(audio, rate=RATE, kind="WAV"):
    file = io.BytesIO()
    soundfile.write(file, audio, rate, format=kind)
    return file.getvalue()


@pytest.fixture
async def voices(chatterbox_server):
    async with open_server(chatterbox_server.endpoints.grpc) as server, Voices(server) as connection:
        yield connection


async def spoken(port, voice):
    request = SpeakRequest(request_id=uuid.uuid4().hex, text="Hello there.", voice=voice, seed=1)
    return np.concatenate([audio async for _, audio in ChatterboxSpeaker(port).speak(request)])


def test_every_model_of_chatterbox_answers_its_canary(chatterbox_server):
    address = chatterbox_server.endpoints.grpc
    models = {"chatterbox", "s3gen", "t3", "voice_enrollment"}
    results = ask_canaries(address, profile_models(address, 20), 20)
    answers = {result.model: result.detail for result in results if result.model in models}
    assert answers == dict.fromkeys(models, "answered")


async def test_a_voice_is_made_listed_spoken_with_and_forgotten(voices, port, voices_folder):
    before = [voice.voice_id for voice in await voices.list()]
    made = await voices.enroll(
        as_file(speech(9.0), kind="FLAC"), name="Anna", consent="I agree. Anna", languages=["en"]
    )
    assert made.voice_id.startswith("anna-")
    assert made.details.consent == "I agree. Anna"
    assert made.prompt_s == 4.0
    assert await voices.describe(made.voice_id) == made
    assert [voice.voice_id for voice in await voices.list()] == [*before, made.voice_id]
    (kept,) = voices_folder.glob(f"{made.voice_id}.*")
    assert kept.name == f"{made.voice_id}.{made.digest}.safetensors"

    audio = await spoken(port, made.voice_id)
    assert len(audio) > 24_000 / 4
    default = await spoken(port, None)
    assert len(audio) != len(default) or not np.array_equal(audio, default)

    await voices.delete(made.voice_id)
    assert [voice.voice_id for voice in await voices.list()] == before
    with pytest.raises(UnsupportedVoiceError):
        await spoken(port, "missing-12345678")


async def test_a_voice_that_came_with_the_weights_stays(voices):
    (built_in, *_) = [voice for voice in await voices.list() if voice.built_in]
    with pytest.raises(Exception, match="came with the weights") as caught:
        await voices.delete(built_in.voice_id)
    assert caught.value.code == "not_permitted"


def clipped():
    return as_file(np.clip(20 * speech(9.0), -1, 1))


@pytest.mark.parametrize(
    ("recording", "fields", "error"),
    [
        (as_file(speech(4.0)), {}, ReferenceTooShortError),
        (as_file(np.tile(speech(16.0), 2)), {}, ReferenceTooLongError),
        (clipped(), {}, ReferenceClippedError),
        (as_file(np.zeros(9 * RATE)), {}, ReferenceTooQuietError),
        (as_file(0.002 * speech(9.0)), {}, ReferenceTooQuietError),
        (as_file(np.stack([speech(9.0)] * 2, axis=1)), {}, ReferenceNotMonoError),
        (as_file(speech(9.0), 4_000), {}, UnsupportedSampleRateError),
        (as_file(speech(9.0), 96_000), {}, UnsupportedSampleRateError),
        (b"this is not a recording", {}, ReferenceAudioError),
        (b"", {}, ReferenceAudioError),
        (bytes(17 << 20), {"sample_rate": 48_000}, ReferenceAudioError),
        (as_file(speech(9.0)), {"consent": ""}, ConsentMissingError),
        (as_file(speech(9.0)), {"voice_id": "../anna"}, UnsupportedVoiceError),
        (as_file(speech(9.0)), {"name": ""}, InvalidMessageError),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else None,
)
async def test_unusable_recording_gets_its_error_code(voices, recording, fields, error):
    before = await voices.list()
    with pytest.raises(error) as caught:
        await voices.enroll(recording, **{"name": "Anna", "consent": "I agree.", **fields})
    assert type(caught.value) is error
    assert await voices.list() == before


async def test_voices_in_an_object_store(weights, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tests/unit")
    from fake_s3 import BUCKET, serving

    with serving() as s3:
        options = ServerOptions(
            state_dir=tmp_path / "state",
            load_models=("voice_enrollment",),
            environment={
                "PARLEY_WEIGHTS_VOICE_ENROLLMENT": weights["PARLEY_WEIGHTS_CHATTERBOX"],
                "PARLEY_VOICES": f"s3://{BUCKET}/team",
                "PARLEY_VOICES_ENDPOINT": s3.endpoint,
                "AWS_ACCESS_KEY_ID": s3.access_key,
                "AWS_SECRET_ACCESS_KEY": "secret",
                "NO_PROXY": "127.0.0.1",
            },
            **ANY_PORTS,
        )
        with EmbeddedServer(options) as server:
            async with open_server(server.endpoints.grpc) as stages, Voices(stages, timeout_s=30.0) as voices:
                made = await voices.enroll(as_file(speech(9.0)), name="Anna", consent="I agree.")
                assert list(s3.objects) == [f"team/{made.voice_id}.{made.digest}.safetensors"]
                assert made in [await voices.describe(voice.voice_id) for voice in await voices.list()]
                s3.access_key = "another"
                with pytest.raises(VoiceStoreRefusedError):
                    await voices.enroll(as_file(speech(9.0)), name="Bert", consent="I agree.")
                s3.access_key = "voice-keeper"
                await voices.delete(made.voice_id)
                assert not s3.objects


async def test_many_at_once_are_answered_in_order(voices):
    recording = as_file(speech(9.0))
    wanted = [
        voices.enroll(recording, name=name, consent="I agree.", voice_id="same")
        for name in ("Anna", "Bert", "Carl")
    ]
    results = await asyncio.gather(*wanted, return_exceptions=True)
    made = [result for result in results if not isinstance(result, BaseException)]
    assert len(made) == 1
    assert all(isinstance(result, VoiceExistsError) for result in results if result not in made)
    replaced = await voices.enroll(recording, name="Dora", consent="Yes.", voice_id="same", replace=True)
    assert (await voices.describe("same")).details.name == replaced.details.name == "Dora"
    await voices.delete("same")


async def test_raw_requests_are_answered(port):
    for message in (struct_tensor(ListVoices()), text_tensor(b'{"op":"list"}')):
        answer = await port.infer(ModelRequest("voice_enrollment", {"REQUEST": message}, ("REPLY",)))
        assert tensor_struct(answer["REPLY"], VoicesReply).voices
    with pytest.raises(InvalidMessageError):
        await port.infer(ModelRequest("voice_enrollment", {"REQUEST": text_tensor(b"{")}, ("REPLY",)))


def test_the_command(chatterbox_server, tmp_path, capsys):
    path = tmp_path / "anna.wav"
    path.write_bytes(as_file(speech(9.0)))
    server = ["--server", chatterbox_server.endpoints.grpc]
    enroll = ["voices", "enroll", str(path), "--name", "Anna", "--consent", "I agree.", "--json", *server]
    assert main(enroll) == 0
    made = json.loads(capsys.readouterr().out)
    assert main(["voices", "list", *server]) == 0
    assert made["voice_id"] in capsys.readouterr().out
    assert main(["voices", "delete", made["voice_id"], *server]) == 0
    assert main(["voices", "delete", made["voice_id"], *server]) == 1
    assert "unsupported_voice" in capsys.readouterr().err
