"""The agent's settings in the two profiles, and its description of itself."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from parley.agent import config as config_module
from parley.agent.config import AgentConfig
from parley.agent.ports import Engines
from parley.agent.user_idle import UserIdleSettings
from parley.agent.validation import describe
from parley.errors import ModelLoadingError
from parley.protocol import AgentDescription
from parley.runtime.parameters import LOADED_MODELS_VARIABLE, Parameters

FOLDER = Path(__file__).resolve().parents[3] / "model_repository" / "voice_agent"


def read(profile, **environment):
    config = text_format.Parse((FOLDER / profile).read_text(), ModelConfig())
    values = {name: value.string_value for name, value in config.parameters.items()}
    parameters = Parameters("voice_agent", values, model_dir=FOLDER, environment=environment)
    return AgentConfig.from_parameters(parameters)


def test_both_profiles_judge_pauses_by_their_sound():
    gpu, tiny = read("config.pbtxt"), read("configs/tiny.pbtxt")
    assert (gpu.eagerness, tiny.eagerness) == ("normal", "normal")
    assert gpu.turn == tiny.turn == "smart_turn"


def test_an_operator_may_choose_otherwise():
    chosen = read(
        "configs/tiny.pbtxt",
        PARLEY_VOICE_AGENT_EAGERNESS="patient",
        PARLEY_VOICE_AGENT_TURN="none",
        PARLEY_VOICE_AGENT_TURN_DEADLINE_S="0.1",
    )
    assert (chosen.eagerness, chosen.turn, chosen.deadlines.turn_s) == ("patient", "none", 0.1)


def test_an_eagerness_that_does_not_exist_is_refused():
    with pytest.raises(ModelLoadingError, match="eager, normal, patient, off"):
        read("config.pbtxt", PARLEY_VOICE_AGENT_EAGERNESS="hasty")


def test_fixed_phrases_can_be_set_and_disabled():
    config = read(
        "configs/tiny.pbtxt",
        PARLEY_VOICE_AGENT_GREETING="Welcome.",
        PARLEY_VOICE_AGENT_APOLOGY="none",
        PARLEY_VOICE_AGENT_SILENCE_PROMPT="Hello?",
        PARLEY_VOICE_AGENT_SILENCE_PROMPT_AFTER_S="8",
        PARLEY_VOICE_AGENT_SILENCE_HANG_UP_AFTER_S="60",
        PARLEY_VOICE_AGENT_WRITTEN_FORMS="false",
    )
    assert (config.greeting, config.apology) == ("Welcome.", "")
    assert config.silence == UserIdleSettings(8.0, ("Hello?",), 60.0)
    assert not config.written_forms
    assert not config.log_transcripts


def test_setting_reaches_the_agent():
    parameters = Parameters(
        "voice_agent",
        {"asr": "hears,understands", "system_prompt": "A secret.", "examples": " set a timer | hello|| "},
        model_dir=FOLDER,
        environment={
            "PARLEY_VOICE_AGENT_TTS": "speaks,sings",
            LOADED_MODELS_VARIABLE: "speaks,understands",
            "PARLEY_QWEN3_WEIGHTS": "/here/weights-of-qwen3",
        },
    )
    engines = Engines(
        recognizer=None,
        chat=None,
        synthesizer=SimpleNamespace(languages=("en", "de"), voices=("anna",)),
        server_tools=SimpleNamespace(names={"b", "a"}),
    )
    config = AgentConfig.from_parameters(parameters)
    described = describe(
        engines, config, recognizer="understands", recognized_languages=["en"], unavailable=("hears",)
    )
    assert described == AgentDescription(
        recognizer="understands",
        recognizers=["understands"],
        language_model="weights-of-qwen3",
        language_models=["weights-of-qwen3"],
        synthesizers=["speaks"],
        languages=["en", "de"],
        recognized_languages=["en"],
        unavailable_recognizers=["hears"],
        voices=["anna"],
        tools=["a", "b"],
        examples=["set a timer", "hello"],
    )
    assert "secret" not in repr(described)


@pytest.mark.parametrize(
    ("profile", "name"),
    [
        ("config.pbtxt", "Qwen3-4B-AWQ"),
        ("configs/open.pbtxt", "qwen2.5-coder-0.5b-w8a8"),
        ("configs/tiny.pbtxt", "tiny-qwen3"),
    ],
)
def test_the_language_model_is_named_by_its_weights(profile, name):
    config = read(profile)
    assert config.chat_models == (("qwen3", name),)
    assert config.has_default_prompt
    assert not read(profile, PARLEY_VOICE_AGENT_SYSTEM_PROMPT="You take bookings.").has_default_prompt


def test_the_weights_that_a_variable_chooses_are_named():
    config = read("configs/open.pbtxt", PARLEY_WEIGHTS_QWEN3="/models/qwen2.5-coder-1.5b-w8a8")
    assert config.chat_models == (("qwen3", "qwen2.5-coder-1.5b-w8a8"),)


def test_language_models_that_are_not_loaded_are_left_to_the_others():
    config = read(
        "configs/open.pbtxt",
        PARLEY_VOICE_AGENT_LLM="openai_chat,qwen3",
        PARLEY_VOICE_AGENT_LLM_URL="http://127.0.0.1:1/v1",
        PARLEY_VOICE_AGENT_LLM_MODEL="large",
        **{LOADED_MODELS_VARIABLE: "moonshine,piper,kokoro,espeak"},
    )
    assert config.chat_models == (("openai_chat", "large"),)
    assert "qwen3" in config.absent_models


def test_a_remote_language_model_is_named_as_its_server_names_it():
    config = read(
        "configs/open.pbtxt",
        PARLEY_VOICE_AGENT_LLM="openai_chat",
        PARLEY_VOICE_AGENT_LLM_URL="http://127.0.0.1:1/v1",
        PARLEY_VOICE_AGENT_LLM_MODEL="anyone/large-8b",
    )
    assert config.chat_models == (("openai_chat", "anyone/large-8b"),)


def test_without_the_launcher_models_without_weights_are_absent(tmp_path, monkeypatch):
    monkeypatch.setattr(config_module, "lacks_gpu", lambda _: False)
    config = text_format.Parse((FOLDER / "config.pbtxt").read_text(), ModelConfig())
    values = {name: value.string_value for name, value in config.parameters.items()}
    tts = {"PARLEY_VOICE_AGENT_TTS": "kokoro,espeak", "PARLEY_VOICE_AGENT_TTS_FALLBACK": "espeak"}
    environment = {"PARLEY_MODELS_DIR": str(tmp_path), "PARLEY_VOICE_AGENT_ASR": "parakeet_tdt", **tts}
    (tmp_path / "Qwen3-4B-AWQ").mkdir()
    parameters = Parameters("voice_agent", values, model_dir=FOLDER, environment=environment)
    absent = AgentConfig.from_parameters(parameters).absent_models
    assert absent.keys() == {"parakeet_tdt", "kokoro"}
    assert "make fetch MODEL=parakeet-tdt-0.6b-v2" in absent["parakeet_tdt"]


def test_without_a_gpu_models_of_the_gpu_profile_are_absent(tmp_path, monkeypatch):
    config = text_format.Parse((FOLDER / "config.pbtxt").read_text(), ModelConfig())
    values = {name: value.string_value for name, value in config.parameters.items()}
    (tmp_path / "Qwen3-4B-AWQ").mkdir()
    parameters = Parameters(
        "voice_agent", values, model_dir=FOLDER, environment={"PARLEY_MODELS_DIR": str(tmp_path)}
    )
    monkeypatch.setattr(config_module, "lacks_gpu", lambda _: True)
    absent = AgentConfig.from_parameters(parameters).absent_models
    assert absent["qwen3"] == "this machine has no GPU; --model-config-name=open or =tiny serves without one"
    monkeypatch.setattr(config_module, "lacks_gpu", lambda _: False)
    assert "qwen3" not in AgentConfig.from_parameters(parameters).absent_models


def test_without_the_launcher_models_without_memory_are_absent(tmp_path, monkeypatch):
    monkeypatch.setattr(config_module, "lacks_gpu", lambda _: False)
    config = text_format.Parse((FOLDER / "config.pbtxt").read_text(), ModelConfig())
    values = {name: value.string_value for name, value in config.parameters.items()}
    for name in ("chatterbox", "Qwen3-4B-AWQ"):
        (tmp_path / name).mkdir()
    environment = {"PARLEY_MODELS_DIR": str(tmp_path), "PARLEY_GPU_CLASS": "T4"}
    parameters = Parameters("voice_agent", values, model_dir=FOLDER, environment=environment)
    absent = AgentConfig.from_parameters(parameters).absent_models
    assert absent["chatterbox"] == "a GPU of the class T4 has no memory for it"


@pytest.mark.parametrize(
    ("profile", "file", "oldest"),
    [
        ("gpu", "config.pbtxt", "2.71.0"),
        ("open", "configs/open.pbtxt", ""),
        ("tiny", "configs/tiny.pbtxt", ""),
    ],
)
def test_a_profile_knows_its_name_and_only_that_for_gpus_needs_a_new_triton(profile, file, oldest):
    config = text_format.Parse((FOLDER / file).read_text(), ModelConfig())
    assert config.parameters["profile"].string_value == profile
    assert config.parameters["oldest_triton"].string_value == oldest
