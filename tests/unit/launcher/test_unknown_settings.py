"""A misspelt setting of a model is reported; nothing else is."""

from __future__ import annotations

import pytest

from parley.agent.config import AgentConfig
from parley.launcher.options import ROOT
from parley.launcher.unknown_settings import find_unknown_settings
from parley.runtime.parameters import Parameters

MODELS = ROOT / "model_repository"


@pytest.mark.parametrize(
    ("variable", "model", "meant"),
    [
        ("PARLEY_VOICE_AGENT_GREETNG", "voice_agent", "PARLEY_VOICE_AGENT_GREETING"),
        ("PARLEY_VOICE_AGENT_SYSTEMPROMPT", "voice_agent", "PARLEY_VOICE_AGENT_SYSTEM_PROMPT"),
        ("PARLEY_MOONSHINE_TRANSCRIBE_THREDS", "moonshine_transcribe", "PARLEY_MOONSHINE_TRANSCRIBE_THREADS"),
        ("PARLEY_S3GEN_ZZZ", "s3gen", ""),
    ],
)
def test_a_misspelt_setting_is_reported(variable, model, meant):
    (line,) = find_unknown_settings(MODELS, {variable: "1"})
    assert line.startswith(f"warning: {variable} has no effect: {model} has no such setting")
    assert line.endswith(f"; did you mean {meant}?" if meant else "setting")


@pytest.mark.parametrize(
    "variable",
    [
        "PARLEY_VOICE_AGENT_TOOLS_FILE",
        "PARLEY_VOICE_AGENT_LLM_KEY",  # read by its variable alone
        "PARLEY_VOICE_AGENT_SILENCE_HANG_UP_AFTER_S",  # in no configuration
        "PARLEY_MOONSHINE_TRANSCRIBE_THREADS",
        "PARLEY_CHATTERBOX_VOICES",
        "PARLEY_S3GEN_WHOLE_BUCKETS",
        "PARLEY_PIPER_WEIGHTS",
        "PARLEY_KOKORO_LETTERS",
        "PARLEY_GATEWAY_LISTEN_NONSENSE",
        "PARLEY_VOICES_ENDPOINT",
        "PARLEY_MODELS_DIR",
        "PATH",
    ],
)
def test_what_is_read_is_not_reported(variable):
    assert find_unknown_settings(MODELS, {variable: "1"}) == []


def test_an_empty_variable_counts_as_unset():
    assert find_unknown_settings(MODELS, {"PARLEY_VOICE_AGENT_GREETNG": ""}) == []


def test_all_that_the_agent_reads_is_found():
    asked = set()

    class Recorder(dict):
        def get(self, key, default=None):
            asked.add(key)
            return default

    AgentConfig.from_parameters(Parameters("voice_agent", {}, environment=Recorder()))
    settings = {name for name in asked if name.startswith("PARLEY_VOICE_AGENT_")}
    assert len(settings) > 40
    assert find_unknown_settings(MODELS, dict.fromkeys(settings, "1")) == []


def test_a_model_of_ones_own_may_read_its_variables_itself(repository):
    (repository / "echo" / "1").mkdir()
    (repository / "echo" / "1" / "model.py").write_text('VOLUME = os.environ["PARLEY_ECHO_VOLUME"]\n')
    environment = {"PARLEY_ECHO_VOLUME": "1", "PARLEY_ECHO_VOLUMN": "1"}
    assert [line.split()[1] for line in find_unknown_settings(repository, environment)] == [
        "PARLEY_ECHO_VOLUMN"
    ]
