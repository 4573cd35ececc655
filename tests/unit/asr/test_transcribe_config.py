"""The two profiles of the model for whole recordings."""

from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from parley.asr.checkpoint import ParakeetConfig
from parley.asr.files.recording import WindowPlan

FOLDER = Path(__file__).resolve().parents[3] / "model_repository/parakeet_transcribe"
PROFILES = {"gpu": FOLDER / "config.pbtxt", "tiny": FOLDER / "configs/tiny.pbtxt"}
SIZES = ("weights", "window_ms", "left_ms", "right_ms", "room_ms", "pause_ms")


def read(profile):
    return text_format.Parse(PROFILES[profile].read_text(), ModelConfig())


def setting(config, name):
    return int(config.parameters[name].string_value)


def test_profiles_differ_in_weights_and_sizes_only():
    gpu, tiny = read("gpu"), read("tiny")
    for config in (gpu, tiny):
        for name in SIZES:
            assert config.parameters[name].string_value
            config.parameters.pop(name)
    assert gpu == tiny


@pytest.mark.parametrize("profile", PROFILES)
def test_sizes_go_together(profile):
    config = read(profile)
    plan = WindowPlan.of(
        ParakeetConfig(),
        window_ms=setting(config, "window_ms"),
        left_ms=setting(config, "left_ms"),
        right_ms=setting(config, "right_ms"),
    )
    assert plan.chunk >= plan.left
    assert setting(config, "room_ms") >= setting(config, "window_ms")
    assert setting(config, "max_audio_ms") == 24 * 60 * 1000
    assert setting(config, "max_pending_ms") >= setting(config, "max_audio_ms")


@pytest.mark.parametrize("profile", PROFILES)
def test_one_instance_answers_each_request_when_it_is_done(profile):
    config = read(profile)
    (group,) = config.instance_group
    assert group.count == 1
    assert config.HasField("dynamic_batching")
    assert not config.model_transaction_policy.decoupled
    assert config.input[0].allow_ragged_batch
