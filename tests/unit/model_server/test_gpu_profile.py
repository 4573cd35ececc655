"""What the profile gpu is made of, as the documents ask: its configurations, read as Triton reads them."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

REPOSITORY = Path(__file__).parents[3] / "model_repository"


def settings(model):
    config = text_format.Parse((REPOSITORY / model / "config.pbtxt").read_text(), ModelConfig())
    return {name: value.string_value for name, value in config.parameters.items()}


def test_a_call_is_heard_by_nemotron_answered_by_qwen3_and_spoken_by_chatterbox():
    agent = settings("voice_agent")
    assert agent["asr"].split(",")[:2] == ["nemotron_streaming", "parakeet_tdt"]
    assert (agent["llm"], agent["tts"], agent["turn"]) == ("qwen3", "chatterbox", "smart_turn")
    fallback = agent["tts_fallback"].split(",")
    assert fallback[-1] == "espeak", "which is always there"
    assert "chatterbox" not in fallback
    assert all((REPOSITORY / model).is_dir() for model in fallback)


@pytest.mark.parametrize("setting", ["finals", "fallback"])
def test_final_texts_are_parakeets(setting):
    assert settings("nemotron_streaming")[setting] == "parakeet_transcribe"


@pytest.mark.parametrize(
    ("model", "weights"), [("qwen3", "Qwen3-4B-AWQ"), ("t3", "chatterbox"), ("s3gen", "chatterbox")]
)
def test_the_models_have_the_weights_of_the_documents(model, weights):
    assert settings(model)["weights"] == weights


@pytest.mark.parametrize(
    "model", ["nemotron_streaming", "parakeet_encoder", "qwen3", "t3", "s3gen", "voice_agent"]
)
def test_memory_settings_follow_the_plan(model):
    assert settings(model)["memory_plan"] == "true"
