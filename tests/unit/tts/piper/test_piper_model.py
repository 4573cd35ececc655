"""The model as it is configured, with a voice that hums."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "english"))
sys.path.insert(0, str(Path(__file__).parents[2] / "serving"))

import fake_pb_utils
from fake_pb_utils import Request
from google.protobuf import json_format, text_format
from random_letters import random_network
from tiny_voice import RATE, write_voice
from tritonclient.grpc import model_config_pb2

from parley.errors import ModelLoadingError, WeightsNotFoundError
from parley.inference import struct_tensor, tensor_struct
from parley.launcher.options import ROOT
from parley.models.piper import PiperModel
from parley.runtime.parameters import Parameters
from parley.tts.clauses.network import CEILING
from parley.tts.english import pronouncer
from parley.tts.messages import AbortSpeech, SpeakRequest, SpeechChunk

FOLDER = ROOT / "model_repository" / "piper"
CONFIGS = [FOLDER / "config.pbtxt", FOLDER / "configs" / "open.pbtxt"]


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_voice(folder / "piper-joe", loudness=3.0)
    (folder / "misaki-en").symlink_to(Path(__file__).parents[1] / "english")
    (folder / "g2p-en").mkdir()
    np.savez(folder / "g2p-en" / "checkpoint20.npz", **random_network())
    return folder


@pytest.fixture
def parameters(weights):
    def make(path=CONFIGS[-1], **environment):
        config = text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())
        return Parameters.from_args(
            {
                "model_name": "piper",
                "model_repository": str(FOLDER),
                "model_version": "1",
                "model_config": json.dumps(
                    json_format.MessageToDict(config, preserving_proto_field_name=True)
                ),
            },
            environment={"PARLEY_MODELS_DIR": str(weights), **environment},
        )

    return make


@pytest.fixture
def opened(monkeypatch):
    """Opens the model without grammars; closes it."""
    monkeypatch.setattr(pronouncer, "load_grammars", lambda languages, cache: {})
    made = []

    def opened(parameters):
        made.append(PiperModel(fake_pb_utils, parameters))
        return made[-1]

    yield opened
    for model in made:
        model.close()


def ask(model, message):
    request = Request({"REQUEST": struct_tensor(message)}, message.request_id)
    model.execute([request])
    assert request.sender.final.wait(20)
    return request.sender.sent


def answer(model, text, **fields):
    """The audio of a text, and its chunks."""
    *data, last = ask(model, SpeakRequest(request_id="a", text=text, **fields))
    assert last == ("final",)
    outputs = [tensors for kind, tensors in data if kind == "data"]
    assert len(outputs) == len(data), data
    chunks = [tensor_struct(tensors["CHUNK"], SpeechChunk) for tensors in outputs]
    return np.concatenate([tensors["AUDIO"] for tensors in outputs]), chunks


TEXT = "Hello world, please record it. I need five dollars, and the music."


@pytest.mark.parametrize("path", CONFIGS, ids=["gpu", "open"])
def test_piper_follows_its_settings(parameters, opened, path):
    asked = set()

    class Noted(Parameters):
        def _raw(self, name):
            asked.add(name)
            return super()._raw(name)

    read = parameters(path)
    read.__class__ = Noted
    audio, chunks = answer(opened(read), TEXT, seed=1)
    config = text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())
    assert set(config.parameters) <= asked | {"optional", "weights"}
    assert (config.max_batch_size, config.model_transaction_policy.decoupled) == (0, True)
    assert {chunk.sample_rate for chunk in chunks} == {RATE}
    words = [word for chunk in chunks for word in chunk.words]
    assert [TEXT[word.start_char : word.end_char] for word in words] == TEXT.split()
    assert 0 < np.abs(audio).max() <= CEILING * 32767 + 1


def test_the_same_seed_at_another_rate_is_the_same_speech(parameters, opened):
    model = opened(parameters())
    audio, _ = answer(model, TEXT, seed=1)
    again, _ = answer(model, TEXT, seed=1)
    half, chunks = answer(model, TEXT, seed=1, sample_rate=RATE // 2 + 3)
    np.testing.assert_array_equal(audio, again)
    assert {chunk.sample_rate for chunk in chunks} == {RATE // 2 + 3}
    assert len(half) / (RATE // 2 + 3) == pytest.approx(len(audio) / RATE, abs=0.001)


@pytest.mark.parametrize("text", ["", "...", "\u4f60\u597d"])
def test_what_has_no_words_has_no_audio(parameters, opened, text):
    assert ask(opened(parameters()), SpeakRequest(request_id="a", text=text)) == [("final",)]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"voice": "af_heart"}, "unsupported_voice"),
        ({"language": "de"}, "unsupported_language"),
        ({"sample_rate": 7_999}, "unsupported_sample_rate"),
        ({"seed": -1}, "invalid_message"),
        ({"final": False}, "invalid_message"),
        ({"text": "a" * 4_001}, "invalid_message"),
    ],
)
def test_what_is_refused(parameters, opened, fields, code):
    (kind, text), _ = ask(opened(parameters()), SpeakRequest(request_id="a", **{"text": "Hi.", **fields}))
    assert (kind, text.split(":")[0]) == ("error", code)


def test_an_abort_is_answered_and_ends_its_request(parameters, opened):
    model = opened(parameters())
    assert ask(model, AbortSpeech(request_id="a")) == [("final",)]
    assert ask(model, SpeakRequest(request_id="a", text=TEXT)) == [("final",)]


def test_settings_are_those_of_the_environment(parameters, opened):
    lengths = [
        len(answer(opened(parameters(PARLEY_PIPER_LENGTH_SCALE=scale)), TEXT, seed=1)[0])
        for scale in ("1", "5")
    ]
    assert lengths[1] > 2 * lengths[0]


@pytest.mark.parametrize(
    ("environment", "error"),
    [
        ({"PARLEY_PIPER_LENGTH_SCALE": "0"}, ModelLoadingError),
        ({"PARLEY_PIPER_NOISE_SCALE": "-1"}, ModelLoadingError),
        ({"PARLEY_PIPER_MAX_REQUESTS": "0"}, ModelLoadingError),
        ({"PARLEY_PIPER_DICTIONARY": "nowhere"}, ModelLoadingError),
        ({"PARLEY_WEIGHTS_PIPER": "/nowhere"}, WeightsNotFoundError),
    ],
)
def test_what_cannot_be_loaded(parameters, opened, environment, error):
    with pytest.raises(error):
        opened(parameters(**environment))
