"""Weights that need other settings than those of a profile."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from parley.launcher.options import ROOT
from parley.llm.known_models import KNOWN_MODELS, is_demonstration, with_known_settings
from parley.runtime.repository import read_parameters

LARGER = "qwen2.5-coder-1.5b-w8a8"


def settings(profile="open", **environment):
    parameters = read_parameters(ROOT / "model_repository" / "qwen3", profile, environment)
    chosen = with_known_settings(parameters)
    return [chosen.text(name, "") for name in ("tool_parser", "tool_examples", "kv_cache_gib", "threads")]


@pytest.mark.parametrize("variable", ["PARLEY_WEIGHTS_QWEN3", "PARLEY_QWEN3_WEIGHTS"])
@pytest.mark.parametrize("name", [LARGER, f"/mnt/models/{LARGER}"])
def test_weights_that_the_environment_chooses_bring_their_settings(variable, name):
    assert settings(**{variable: name}) == ["python", "false", "0.5", "4"]


def test_variable_for_one_setting_wins():
    assert settings(PARLEY_WEIGHTS_QWEN3=LARGER, PARLEY_QWEN3_TOOL_EXAMPLES="true")[1] == "true"


def test_settings_of_a_profile_are_for_its_own_weights():
    assert settings() == ["python", "false", "", "4"]
    assert settings(PARLEY_WEIGHTS_QWEN3="mine") == settings()


def test_known_models_are_those_of_the_manifest_and_the_smallest_demonstrate():
    entries = tomllib.loads(Path(ROOT / "build/checkpoints.toml").read_text())["weights"]
    assert KNOWN_MODELS.keys() <= entries.keys()
    assert [name for name in KNOWN_MODELS if is_demonstration(name)] == [
        "tiny-qwen3",
        "qwen2.5-coder-0.5b-w8a8",
    ]
    assert not is_demonstration("large-8b")
