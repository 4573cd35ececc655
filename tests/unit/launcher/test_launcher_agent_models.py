"""A model that the agent's settings name, and that is not loaded, is found before anything is started."""

from __future__ import annotations

import pytest

from parley.launcher.__main__ import main
from parley.launcher.agent_models import check_agent_models
from parley.launcher.errors import SettingsError
from parley.launcher.options import ROOT, ServerOptions

ASR = "PARLEY_VOICE_AGENT_ASR"
LLM = "PARLEY_VOICE_AGENT_LLM"
TTS = "PARLEY_VOICE_AGENT_TTS"
TURN = "PARLEY_VOICE_AGENT_TURN"
OPEN = ServerOptions(profile="open")


@pytest.mark.parametrize("profile", ["open", "tiny", "gpu"])
def test_every_profile_has_the_models_that_its_agent_names(profile):
    check_agent_models(ServerOptions(profile=profile), {})


@pytest.mark.parametrize(
    "environment",
    [{LLM: "openai_chat"}, {TURN: "none"}, {TTS: "kokoro,piper"}, {TTS: "chatterbox, espeak"}, {ASR: ""}],
)
def test_other_models_may_be_named(environment):
    check_agent_models(OPEN, environment)


def test_a_synthesizer_of_another_profile_is_one_of_that():
    check_agent_models(ServerOptions(), {TTS: "chatterbox"})


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        (ASR, "parakeet_tdt", f"open has no model parakeet_tdt for {ASR}; it has moonshine."),
        (ASR, "whisper", f"open has no model whisper for {ASR}; it has moonshine."),
        (LLM, "gpt", f"open has no model gpt for {LLM}; it has qwen3, openai_chat."),
        (TTS, "chatterbox", f"open has no model chatterbox for {TTS}; it has espeak, piper, kokoro."),
        (TTS, "piper,kokroo", f"open has no model kokroo for {TTS}; it has espeak, piper, kokoro."),
        (TURN, "smart", f"open has no model smart for {TURN}; it has smart_turn, none."),
    ],
)
def test_a_model_that_the_profile_has_not_is_refused(variable, value, words):
    with pytest.raises(SettingsError) as caught:
        check_agent_models(OPEN, {variable: value})
    assert str(caught.value) == f"The profile {words}"


def test_a_model_of_the_profile_must_be_loaded():
    chosen = ServerOptions(load_models=("voice_agent", "silero_vad", "qwen3"))
    with pytest.raises(SettingsError, match=r"nemotron_streaming, which the parameter asr .* is not loaded"):
        check_agent_models(chosen, {})
    check_agent_models(ServerOptions(load_models=("espeak",)), {ASR: "whisper"})


def test_the_command_ends_with_status_2_at_once(monkeypatch, capfd):
    monkeypatch.setenv(ASR, "parakeet_tdt")
    assert main(["--profile", "open", "--name", "never", "--any-port", "--no-fetch"]) == 2
    assert not (ROOT / ".server/never/triton.log").exists()
    assert "error: The profile open has no model parakeet_tdt" in capfd.readouterr().err
