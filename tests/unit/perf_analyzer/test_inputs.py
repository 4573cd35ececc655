"""What is sent to each model fits its configuration and its messages."""

import base64
import json

import msgspec
import numpy as np
import pytest
from perf_analyzer.export import Runner, explain
from perf_analyzer.inputs import REPOSITORY, drive_of, to_json
from tritonclient.utils import triton_to_np_dtype

from parley.asr.messages import AsrRequest, TranscribeRequest
from parley.launcher.models import read_config
from parley.launcher.options import GPU_PROFILE, TINY_PROFILE
from parley.llm.messages import LlmRequest
from parley.tts.messages import SpeechRequest

MESSAGES = {
    "parakeet_transcribe": TranscribeRequest,
    "parakeet_features": TranscribeRequest,
    "parakeet_ensemble": TranscribeRequest,
    "moonshine_transcribe": TranscribeRequest,
    "parakeet_tdt": AsrRequest,
    "nemotron_streaming": AsrRequest,
    "moonshine": AsrRequest,
    "whisper": AsrRequest,
    "whisper_transcribe": TranscribeRequest,
    "sherpa_onnx": AsrRequest,
    "sherpa_onnx_transcribe": TranscribeRequest,
    "qwen3": LlmRequest,
    "chatterbox": SpeechRequest,
    "espeak": SpeechRequest,
    "piper": SpeechRequest,
    "hibari": SpeechRequest,
    "kokoro": SpeechRequest,
}
WITHOUT_MESSAGE = {"smart_turn", "speaker_embedding", "parakeet_encoder", "parakeet_decoder"}
LEFT_OUT = {
    "embeddings",
    "parakeet_text",
    "s3gen",
    "t3",
    "voice_agent",
    "voice_enrollment",
}


def steps_of(model):
    """What the model is sent in the tiny profile, as the program reads it; requests of sequences nested."""
    return json.loads(to_json(drive_of(model, TINY_PROFILE).steps))["data"]


def flat(steps):
    return [step for one in steps for step in (one if isinstance(one, list) else [one])]


def texts(model, name="REQUEST"):
    return [step[name]["content"][0] for step in flat(steps_of(model))]


def test_every_model_of_the_repository_is_driven_or_left_out():
    models = {path.parent.name for path in REPOSITORY.glob("*/config.pbtxt")}
    assert models == {*MESSAGES, *WITHOUT_MESSAGE, *LEFT_OUT}
    assert {model for model in models if drive_of(model, TINY_PROFILE) is None} == LEFT_OUT


@pytest.mark.parametrize("model", [*MESSAGES, *sorted(WITHOUT_MESSAGE)])
def test_tensors_are_those_of_the_configuration(model):
    config = read_config(REPOSITORY / model, GPU_PROFILE)
    inputs = {tensor.name: tensor for tensor in config.input}
    sequences = config.HasField("sequence_batching")
    steps = steps_of(model)
    assert all(isinstance(one, list) == sequences for one in steps)
    for step in flat(steps):
        assert set(step) <= set(inputs)
        assert set(step) >= {name for name, tensor in inputs.items() if not tensor.optional}
        for name, tensor in step.items():
            check_tensor(tensor, inputs[name])


def check_tensor(tensor, wanted):
    shape = tensor["shape"]
    assert len(shape) == len(wanted.dims)
    assert all(allowed in (-1, size) for size, allowed in zip(shape, wanted.dims, strict=True))
    kind = type(wanted).DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[wanted.data_type]
    if kind.name == "TYPE_STRING":
        assert len(tensor["content"]) == np.prod(shape)
    elif tensor["content"]:
        dtype = triton_to_np_dtype(kind.name.removeprefix("TYPE_"))
        values = np.frombuffer(base64.b64decode(tensor["content"]["b64"]), dtype)
        assert values.size == np.prod(shape)
        assert np.isfinite(values).all()
    else:
        assert np.prod(shape) == 0


@pytest.mark.parametrize("model", MESSAGES)
def test_messages_are_those_of_the_model(model):
    found = [msgspec.json.decode(text, type=MESSAGES[model], strict=True) for text in texts(model)]
    assert found


@pytest.mark.parametrize("model", ["parakeet_tdt", "nemotron_streaming", "moonshine"])
def test_the_last_piece_of_a_stream_ends_the_utterance(model):
    for stream in steps_of(model):
        flushes = [json.loads(step["REQUEST"]["content"][0])["flush"] for step in stream]
        assert len(flushes) > 3
        assert flushes == [False] * (len(flushes) - 1) + [True]


def test_requests_of_one_model_have_no_ids_that_could_meet():
    for model in ("qwen3", "espeak", "chatterbox"):
        assert {json.loads(text)["request_id"] for text in texts(model)} == {""}


def test_the_program_streams_only_where_responses_come_one_by_one(tmp_path):
    runner = Runner("host:1", tmp_path, limit_s=1)
    assert "--streaming" in runner.command("espeak", 4, streaming=True)
    plain = runner.command("parakeet_encoder", 4, streaming=False)
    assert "--streaming" not in plain
    assert plain[plain.index("--concurrency-range") + 1] == "4"


def test_the_reason_of_a_failure_is_found():
    said = "*** Measurement Settings ***\n  Batch size: 1\nFailed.\nThread [0] had error: overloaded: x\n\n"
    assert explain(said) == "Failed. Thread [0] had error: overloaded: x"
    assert explain("nothing\nto see\n") == "nothing to see"
    assert explain("") == ""
