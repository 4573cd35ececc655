"""The client for whole recordings, against a server that answers what the test says."""

from __future__ import annotations

import argparse

import grpc
import numpy as np
import pytest
import soundfile
from fake_unary import serving
from rich.console import Console

from parley.errors import InferenceError, ModelUnavailableError, OverloadedError
from parley_client.cli.commands import transcribe
from parley_stages import Transcriber, open_server

AUDIO = np.arange(1_000, dtype=np.int16)


@pytest.fixture
async def triton():
    async with serving(b'{"text": "hello", "duration_ms": 62}') as fake:
        yield fake


@pytest.fixture
def recording(tmp_path):
    path = tmp_path / "a.wav"
    soundfile.write(path, AUDIO, 16_000)
    return str(path)


async def run(triton, *arguments):
    parser = argparse.ArgumentParser()
    transcribe.add_arguments(parser)
    return await transcribe.run(parser.parse_args([*arguments, "--server", triton.address]), Console())


async def test_a_recording_goes_in_and_its_text_comes_back(triton):
    async with open_server(triton.address) as server, Transcriber(server) as transcriber:
        reply = await transcriber.transcribe(AUDIO)
    assert (reply.text, reply.duration_ms) == ("hello", 62)
    (request,) = triton.requests
    assert request.model_name == "parakeet_transcribe"
    assert [(tensor.name, tensor.datatype, list(tensor.shape)) for tensor in request.inputs] == [
        ("AUDIO", "INT16", [1, 1_000]),
        ("REQUEST", "BYTES", [1, 1]),
    ]
    assert np.array_equal(np.frombuffer(request.raw_input_contents[0], "<i2"), AUDIO)


async def test_a_recording_of_24_minutes_is_one_message(triton):
    async with open_server(triton.address) as server, Transcriber(server) as transcriber:
        await transcriber.transcribe(np.zeros(24 * 60 * 16_000, np.int16))
    assert len(triton.requests[0].raw_input_contents[0]) == 24 * 60 * 32_000


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        ((grpc.StatusCode.INTERNAL, "overloaded: later"), OverloadedError),
        ((grpc.StatusCode.NOT_FOUND, "unknown model"), ModelUnavailableError),
        ((grpc.StatusCode.INTERNAL, "something else"), InferenceError),
    ],
)
async def test_failures_have_their_codes(triton, failure, error):
    triton.failure = failure
    async with open_server(triton.address) as server, Transcriber(server) as transcriber:
        with pytest.raises(error):
            await transcriber.transcribe(AUDIO)


@pytest.mark.parametrize("answer", [None, b"garbage", b"{}"])
async def test_an_answer_that_cannot_be_read_is_a_failure(triton, answer):
    triton.answer = answer
    async with open_server(triton.address) as server, Transcriber(server) as transcriber:
        with pytest.raises(InferenceError, match="read"):
            await transcriber.transcribe(AUDIO)


async def test_the_model_that_the_server_has_is_asked(triton):
    triton.ready = {"moonshine_transcribe"}
    async with open_server(triton.address) as server, Transcriber(server) as transcriber:
        await transcriber.transcribe(AUDIO)
        triton.ready = {"parakeet_transcribe", "moonshine_transcribe"}
        await transcriber.transcribe(AUDIO)
    assert [request.model_name for request in triton.requests] == [
        "moonshine_transcribe",
        "parakeet_transcribe",
    ]


async def test_models_that_refuse_all_requests_of_a_plain_server_are_passed_over(triton):
    triton.ready = {"whisper_transcribe"}
    triton.refusing = {
        "parakeet_transcribe": "not_in_profile: parakeet_transcribe is not part of the profile open",
        "moonshine_transcribe": "weights_not_found: moonshine_transcribe has no weights on this server",
    }
    async with open_server(triton.address) as server, Transcriber(server) as transcriber:
        await transcriber.transcribe(AUDIO)
        await transcriber.transcribe(AUDIO)
    assert [request.model_name for request in triton.requests] == ["whisper_transcribe"] * 2
    assert triton.probed == ["parakeet_transcribe", "moonshine_transcribe", "whisper_transcribe"]


async def test_refusing_model_that_is_named_is_refused_with_the_ones_that_serve(triton, recording):
    triton.ready = {"whisper_transcribe"}
    triton.refusing = {"parakeet_transcribe": "not_in_profile: it is not part of the profile open"}
    with pytest.raises(ModelUnavailableError, match=r"it has whisper_transcribe\."):
        await run(triton, recording, "--model", "parakeet")


async def test_segments_are_printed_where_words_have_no_times(triton, recording, capsys):
    part = b'{"text": "Hello.", "start_ms": 100, "end_ms": 900, "confidence": 0.8}'
    triton.answer = b'{"text": "Hello.", "segments": [' + part + b"]}"
    assert await run(triton, recording, "--words") == 0
    out, err = capsys.readouterr()
    assert out.split() == ["0.10", "0.90", "80%", "Hello."]
    assert "no times of words" in err


async def test_hint_about_a_language_is_printed_once(triton, recording, capsys):
    triton.failure = (
        grpc.StatusCode.INTERNAL,
        "unsupported_language: language 'es' is not one of the model's",
    )
    assert await run(triton, recording, recording, "--language", "es") == 1
    error = capsys.readouterr().err
    assert error.count("(unsupported_language)") == 2
    assert error.count("make fetch MODEL=whisper-base") == 1
