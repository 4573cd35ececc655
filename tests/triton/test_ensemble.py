"""The ensemble for short recordings on the real server: its steps, its errors and its measurement."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import psutil
import pytest
import soundfile
from perf_analyzer.export import Runner, provide_program
from perf_analyzer.inputs import drive_of

from parley.asr.messages import TranscribeReply, TranscribeRequest
from parley.errors import InvalidAudioError, InvalidMessageError, ParleyError, UnsupportedLanguageError
from parley.inference import ModelRequest, struct_tensor, tensor_struct
from parley.launcher.options import ROOT, TINY_PROFILE, ServerOptions
from parley.launcher.processes import find_stubs
from parley.launcher.server import EmbeddedServer

ENSEMBLE = "parakeet_ensemble"
STEPS = ("parakeet_features", "parakeet_encoder", "parakeet_decoder", "parakeet_text")
MODEL = "parakeet_transcribe"
CLIPS = ROOT / "tests/data/asr_eval"
QUIET = np.zeros(8_000, np.int16)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    options = ServerOptions(
        load_models=(*STEPS, ENSEMBLE, MODEL),
        state_dir=tmp_path_factory.mktemp("ensemble") / "state",
        grpc_port=0,
        http_port=0,
        metrics_port=0,
    )
    with EmbeddedServer(options) as running:
        yield running


async def send(port, model, audio, **options):
    message = struct_tensor(TranscribeRequest(**options), batched=True)
    request = ModelRequest(model, {"AUDIO": audio[None], "REQUEST": message}, ("REPLY",), timeout_s=60.0)
    return tensor_struct((await port.infer(request))["REPLY"], TranscribeReply)


def said(reply):
    return reply.text, [(word.text, word.start_ms, word.end_ms) for word in reply.words]


async def test_sentences_are_read_as_by_the_model_that_calls_the_others(server, port):
    assert set(server.models) == {*STEPS, ENSEMBLE, MODEL}
    entries = [entry for entry in json.loads((CLIPS / "manifest.json").read_text()) if entry["text"]]
    same = 0
    for entry in entries[:12]:
        audio, _ = soundfile.read(CLIPS / entry["file"], dtype="int16")
        audio = np.concatenate([QUIET, audio, QUIET])
        reply, expected = await send(port, ENSEMBLE, audio), await send(port, MODEL, audio)
        assert reply.duration_ms == expected.duration_ms
        same += said(reply) == said(expected)
    # The others have a pause, and are read in parts there.
    assert same >= 9


@pytest.mark.parametrize(
    ("options", "seconds", "error"),
    [
        ({"language": "xx"}, 1, UnsupportedLanguageError),
        ({"phrases": ["Ann"]}, 1, InvalidMessageError),
        ({}, 61, InvalidAudioError),
    ],
)
async def test_errors_of_a_step_keep_their_codes(port, options, seconds, error):
    with pytest.raises(error):
        await send(port, ENSEMBLE, np.zeros(seconds * 16_000, np.int16), **options)
    assert (await send(port, ENSEMBLE, QUIET)).text == ""


@pytest.mark.parametrize("model", ["parakeet_features", ENSEMBLE])
def test_perf_analyzer_drives_it(server, tmp_path, model):
    provide_program()
    runner = Runner(server.endpoints.grpc, tmp_path, limit_s=60)
    figures = runner.run(model, drive_of(model, TINY_PROFILE), 2, scale=0.1)
    assert figures.requests >= 5
    assert 0 < figures.p50 <= figures.p95 <= figures.p99


async def test_ensemble_works_after_a_step_was_reloaded(server, port):
    (stub,) = [one for one in find_stubs(server.pid) if one.model == "parakeet_text"]
    psutil.Process(stub.pid).kill()
    async with asyncio.timeout(100):
        while not server.restarts().get("parakeet_text"):  # noqa: ASYNC110 - the supervisor has no event
            await asyncio.sleep(0.2)
        while (reply := await try_send(port)) is None:  # noqa: ASYNC110 - nor has Triton
            await asyncio.sleep(0.2)
    assert reply.duration_ms == 500


async def try_send(port):
    """The reply to silence; None: the step is still being loaded."""
    try:
        return await send(port, ENSEMBLE, QUIET)
    except ParleyError:
        return None
