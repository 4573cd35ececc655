"""The ensemble for voices on the real server, beside the model that stores them."""

from __future__ import annotations

import asyncio
import os

import numpy as np
import pytest
from leftovers import ANY_PORTS
from perf_analyzer.inputs import Source
from perf_analyzer.models import DRIVES
from perf_analyzer.runner import Runner, provide_program
from same_voice import assert_same_voice

from chatterbox.test_voice_enrollment import as_file, speech
from parley.errors import ConsentMissingError, ReferenceTooQuietError, ReferenceTooShortError
from parley.inference import ModelRequest, struct_tensor, tensor_struct
from parley.launcher import EmbeddedServer, ServerOptions
from parley.launcher.models import read_parameters
from parley.launcher.options import ROOT, TINY_PROFILE
from parley.triton.grpc_client import LoopbackClient
from parley.tts.voice_messages import EnrollVoice, VoicesReply
from parley_torch.tts.voices.objects import FolderObjects
from parley_torch.tts.voices.store import VoiceStore

ENSEMBLE = "voice_ensemble"
MODELS = ("voice_reference", "voice_conditionals", ENSEMBLE, "voice_enrollment")
OUTPUTS = ("SPEAKER_EMBEDDING", "T3_PROMPT_TOKENS", "SPEAKER", "PROMPT_TOKENS", "PROMPT_MEL", "WARNINGS")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ensemble-voices")


@pytest.fixture(scope="module")
def server(tmp_path_factory, weights, folder):
    own = {"PARLEY_WEIGHTS_VOICE_CONDITIONALS": weights["PARLEY_WEIGHTS_CHATTERBOX"]}
    options = ServerOptions(
        load_models=MODELS,
        state_dir=tmp_path_factory.mktemp("ensemble-state"),
        environment=weights | own | {"PARLEY_VOICES": str(folder)},
        **ANY_PORTS,
    )
    with EmbeddedServer(options) as running:
        yield running


@pytest.fixture
async def client(server):
    client = LoopbackClient(server.endpoints.grpc)
    yield client
    await client.close()


async def send(client, model, audio, outputs, **fields):
    message = EnrollVoice(**{"name": "Anna", "consent": "I agree. Anna", **fields})
    inputs = {"REQUEST": struct_tensor(message), "AUDIO": np.frombuffer(audio, np.uint8)}
    return await client.infer(ModelRequest(model, inputs, outputs, timeout_s=60.0))


async def test_a_voice_is_what_is_stored(client, folder):
    audio = as_file(speech(8.0))
    made = await send(client, ENSEMBLE, audio, OUTPUTS)
    reply = await send(client, "voice_enrollment", audio, ("REPLY",), voice_id="anna")
    (summary,) = tensor_struct(reply["REPLY"], VoicesReply).voices
    voice = await VoiceStore(FolderObjects(folder, 1 << 24)).get("anna")
    assert_same_voice(made, voice)
    assert summary.details.warnings == []
    assert bytes(made["WARNINGS"].reshape(-1)[0]) == b"[]"


async def test_errors_of_the_checks_keep_their_codes(client):
    with pytest.raises(ConsentMissingError):
        await send(client, ENSEMBLE, as_file(speech(8.0)), OUTPUTS, consent="")
    with pytest.raises(ReferenceTooShortError):
        await send(client, ENSEMBLE, as_file(speech(2.0)), OUTPUTS)
    silent, good = await asyncio.gather(
        send(client, ENSEMBLE, as_file(np.zeros(160_000, np.float32)), OUTPUTS),
        send(client, ENSEMBLE, as_file(speech(8.0)), OUTPUTS),
        return_exceptions=True,
    )
    assert isinstance(silent, ReferenceTooQuietError)
    assert good["PROMPT_MEL"].shape[1] == 80


@pytest.mark.parametrize("model", ["voice_reference", "voice_conditionals", ENSEMBLE])
def test_perf_analyzer_drives_it(server, tmp_path, model):
    provide_program()
    parameters = read_parameters(ROOT / "model_repository" / model, TINY_PROFILE, os.environ)
    drive = DRIVES[model]
    steps = drive.make(Source(TINY_PROFILE, parameters))
    figures = Runner(server.endpoints.grpc, tmp_path, limit_s=100).run(model, drive, steps, 1, scale=0.5)
    assert figures.requests >= 4
    assert 0 < figures.p50 <= figures.p95 <= figures.p99
