"""The model between Triton's requests and the service, with small networks."""

import json
from pathlib import Path

import fake_pb_utils
import numpy as np
import pytest
from fake_pb_utils import Request
from google.protobuf import text_format
from recordings import as_file, speech
from tritonclient.grpc import model_config_pb2

from parley.errors import ModelLoadingError
from parley.inference import struct_tensor, text_tensor
from parley.models.voice_enrollment import EnrollmentModel
from parley.runtime.parameters import Parameters
from parley.tts.voices.messages import EnrollVoice, ListVoices

FOLDER = Path(__file__).parents[4] / "model_repository" / "voice_enrollment"


def parameters(weights, tmp_path, values=None):
    environment = {"PARLEY_WEIGHTS_VOICE_ENROLLMENT": str(weights), "PARLEY_VOICES": str(tmp_path / "voices")}
    return Parameters("voice_enrollment", values or {}, model_dir=FOLDER, environment=environment)


@pytest.fixture
def model(weights, tmp_path):
    running = EnrollmentModel(fake_pb_utils, parameters(weights, tmp_path))
    yield running
    running.close()


def ask(model, request):
    model.accept([request])
    assert request.sender.final.wait(20)
    sent, final = request.sender.sent
    assert final == ("final",)
    assert request.sender.sends == 1  # the answer and its end at once
    kind, content = sent
    return content if kind == "error" else json.loads(content["REPLY"][0])


def recording(seconds=8.5):
    return np.frombuffer(as_file(speech(seconds)), np.uint8)


def test_a_voice_is_made_and_listed(model):
    message = struct_tensor(EnrollVoice(name="Anna", consent="Yes."))
    made = ask(model, Request({"REQUEST": message, "AUDIO": recording()}))
    (voice,) = made["voices"]
    assert (voice["prompt_s"], voice["built_in"], voice["details"]["name"]) == (8.48, False, "Anna")
    listed = ask(model, Request({"REQUEST": struct_tensor(ListVoices())}))
    assert [entry["voice_id"] for entry in listed["voices"]] == [voice["voice_id"]]


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"{", "invalid_message"),
        (b"\xff", "invalid_message"),
        (b'{"op":"sing"}', "invalid_message"),
        (b'{"op":"enroll"}', "invalid_message"),
        (b'{"op":"enroll","name":"Anna"}', "consent_missing"),
        (b'{"op":"enroll","name":"Anna","consent":"Yes."}', "invalid_reference"),
        (b'{"op":"describe","voice_id":"nobody"}', "unsupported_voice"),
        (b'{"op":"delete","voice_id":"nobody"}', "not_permitted"),
    ],
)
def test_what_is_wrong_gets_its_code(model, raw, code):
    answer = ask(model, Request({"REQUEST": text_tensor(raw)}))
    assert answer.startswith(f"{code}: ")


def test_what_is_under_way_when_the_model_is_unloaded_is_told(weights, tmp_path):
    model = EnrollmentModel(fake_pb_utils, parameters(weights, tmp_path))
    message = struct_tensor(EnrollVoice(name="Anna", consent="Yes."))
    requests = [Request({"REQUEST": message, "AUDIO": recording()}) for _ in range(4)]
    model.accept(requests)
    model.close()
    for request in requests:
        assert request.sender.sent[-1] == ("final",)
        assert request.sender.sends == 1


@pytest.mark.parametrize(
    "values",
    [
        {"permit": "enroll,sing"},
        {"variant": "huge"},
        {"require_consent": "perhaps"},
        {"min_speech_s": "0"},
        {"voices": "s3://?"},
    ],
)
def test_settings_that_cannot_be_are_told_at_the_start(weights, values):
    environment = {"PARLEY_WEIGHTS_VOICE_ENROLLMENT": str(weights)}
    with pytest.raises(ModelLoadingError):
        EnrollmentModel(
            fake_pb_utils, Parameters("voice_enrollment", values, model_dir=FOLDER, environment=environment)
        )


@pytest.mark.parametrize("path", ["config.pbtxt", "configs/tiny.pbtxt"])
def test_both_profiles_can_be_loaded(weights, tmp_path, path):
    config = text_format.Parse((FOLDER / path).read_text(), model_config_pb2.ModelConfig())
    values = {name: entry.string_value for name, entry in config.parameters.items()}
    EnrollmentModel(fake_pb_utils, parameters(weights, tmp_path, values)).close()
