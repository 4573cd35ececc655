"""The profiles of the recognisers' models."""

from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from parley.engines.registry import RECOGNIZERS
from parley.runtime.sessions import default_sessions

REPOSITORY = Path(__file__).resolve().parents[3] / "model_repository"
MODELS = ("parakeet_encoder", "parakeet_decoder", "parakeet_tdt", "nemotron_streaming")
RECOGNIZER_MODELS = ("parakeet_tdt", "nemotron_streaming", "moonshine", "whisper", "sherpa_onnx")
CONFIGS = [
    *((model, "config.pbtxt") for model in RECOGNIZER_MODELS),
    *((model, "configs/tiny.pbtxt") for model in ("parakeet_tdt", "nemotron_streaming")),
    *((model, "configs/open.pbtxt") for model in ("moonshine", "whisper", "sherpa_onnx")),
]


def read(path):
    return text_format.Parse(path.read_text(), ModelConfig())


@pytest.mark.parametrize("model", MODELS)
def test_profiles_differ_only_in_device_weights_and_window(model):
    gpu = read(REPOSITORY / model / "config.pbtxt")
    tiny = read(REPOSITORY / model / "configs/tiny.pbtxt")
    assert gpu.name == tiny.name == model
    for config in (gpu, tiny):
        config.ClearField("instance_group")
        # The tiny profile's weights come with the project, so no model of it is left out for want of them.
        # Shapes are prepared on a GPU only.
        sizes = ("frame_buckets", "row_buckets", "max_run_frames", "piece_frames", "memory_plan")
        for setting in (
            "weights",
            "device",
            "engine",
            "precision",
            "threads",
            "window_ms",
            "optional",
            *sizes,
        ):
            config.parameters.pop(setting, None)
    assert gpu == tiny


@pytest.mark.parametrize("model", ["nemotron_streaming", "parakeet_encoder", "parakeet_decoder"])
def test_the_gpu_profile_runs_on_torch(model):
    gpu = read(REPOSITORY / model / "config.pbtxt").parameters
    tiny = read(REPOSITORY / model / "configs/tiny.pbtxt").parameters
    assert (gpu["engine"].string_value, gpu["device"].string_value) == ("torch", "gpu")
    assert "engine" not in tiny


@pytest.mark.parametrize("user", ["parakeet_tdt", "parakeet_transcribe"])
def test_no_window_is_longer_than_what_the_encoder_prepares_for(user):
    encoder = read(REPOSITORY / "parakeet_encoder/config.pbtxt").parameters
    longest_ms = 10 * int(encoder["frame_buckets"].string_value.split(",")[-1])
    assert int(read(REPOSITORY / user / "config.pbtxt").parameters["window_ms"].string_value) <= longest_ms


def test_the_gpu_profile_takes_the_published_weights():
    for model in MODELS[1:]:
        config = read(REPOSITORY / model / "config.pbtxt")
        expected = "parakeet-tdt-0.6b-v2" if "parakeet" in model else "nemotron-speech-streaming-en-0.6b"
        assert config.parameters["weights"].string_value == expected


@pytest.mark.parametrize(("model", "profile"), CONFIGS)
def test_config_has_one_instance_for_all_streams(model, profile):
    config = read(REPOSITORY / model / profile)
    (group,) = config.instance_group
    assert group.count == 1
    sessions = int(config.parameters["max_sessions"].string_value)
    assert config.sequence_batching.oldest.max_candidate_sequences > sessions <= config.max_batch_size


@pytest.mark.parametrize(("recognizer", "profile"), CONFIGS)
def test_every_session_of_the_agent_finds_a_place_for_its_audio(recognizer, profile):
    agent, recogniser = (read(REPOSITORY / model / profile) for model in ("voice_agent", recognizer))
    instances = sum(group.count for group in agent.instance_group)
    # On however many cores.
    each = default_sessions(agent.parameters["profile"].string_value, 1_000)
    sessions = instances * (each or int(agent.parameters["max_sessions"].string_value))
    assert sessions <= int(recogniser.parameters["max_sessions"].string_value)


@pytest.mark.parametrize("family", ["moonshine", "whisper", "sherpa_onnx"])
def test_recognisers_of_utterances_answer_in_both_profiles(family):
    for model, other in ((family, "parakeet_tdt"), (f"{family}_transcribe", "parakeet_transcribe")):
        gpu, of_open = (read(REPOSITORY / model / path) for path in ("config.pbtxt", "configs/open.pbtxt"))
        # The recogniser of the profile open is not left out for want of weights.
        assert gpu.parameters.pop("optional").string_value == "true"
        assert ("optional" in of_open.parameters) == (family != "moonshine")
        of_open.parameters.pop("optional", None)
        assert gpu == of_open
        expected = read(REPOSITORY / other / "config.pbtxt")
        for field in ("max_batch_size", "input", "output", "sequence_batching", "instance_group"):
            assert getattr(of_open, field) == getattr(expected, field)


def test_all_recognizers_have_the_same_inputs_and_outputs():
    first, *others = (read(REPOSITORY / recognizer / "config.pbtxt") for recognizer in RECOGNIZER_MODELS)
    for other in others:
        for field in ("max_batch_size", "input", "output", "sequence_batching"):
            assert getattr(other, field) == getattr(first, field)
    assert set(RECOGNIZER_MODELS) == set(RECOGNIZERS)


def test_an_utterance_fits_into_the_transcription_model():
    for profile in ("config.pbtxt", "configs/tiny.pbtxt"):
        streaming = read(REPOSITORY / "nemotron_streaming" / profile).parameters
        for role in ("finals", "fallback"):
            other = read(REPOSITORY / streaming[role].string_value / profile).parameters
            assert int(other["max_audio_ms"].string_value) > int(streaming["max_utterance_ms"].string_value)


FOLDER = REPOSITORY / "parakeet_transcribe"
TRANSCRIBERS = {"gpu": FOLDER / "config.pbtxt", "tiny": FOLDER / "configs/tiny.pbtxt"}
SIZES = ("weights", "window_ms", "room_ms", "pause_ms")


def setting(config, name):
    return int(config.parameters[name].string_value)


def test_profiles_differ_in_weights_and_sizes_only():
    gpu, tiny = (read(path) for path in TRANSCRIBERS.values())
    for config in (gpu, tiny):
        for name in SIZES:
            assert config.parameters[name].string_value
            config.parameters.pop(name)
    assert gpu == tiny


@pytest.mark.parametrize("profile", TRANSCRIBERS)
def test_sizes_go_together(profile):
    config = read(TRANSCRIBERS[profile])
    assert setting(config, "room_ms") >= setting(config, "window_ms")
    assert setting(config, "max_audio_ms") == 24 * 60 * 1000
    assert setting(config, "max_pending_ms") >= setting(config, "max_audio_ms")


@pytest.mark.parametrize("profile", TRANSCRIBERS)
def test_config_has_one_decoupled_instance(profile):
    config = read(TRANSCRIBERS[profile])
    (group,) = config.instance_group
    assert group.count == 1
    assert config.HasField("dynamic_batching")
    assert not config.model_transaction_policy.decoupled
    assert config.input[0].allow_ragged_batch
