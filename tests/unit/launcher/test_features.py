"""What a caller gets from each profile, by the models that are loaded."""

from __future__ import annotations

import tomllib

import pytest

from parley.launcher.models import list_profiles
from parley.launcher.options import ROOT
from parley.runtime.features import describe_missing, read_features
from parley.runtime.repository import read_parameters

REPOSITORY = ROOT / "model_repository"
MANIFEST = tomllib.loads((ROOT / "build/checkpoints.toml").read_text())
_FOLDERS = ("weights", "dictionary", "letters")
_ENGINES = ("asr", "llm", "tts", "tts_fallback", "turn", "finals", "fallback")


def settings_of(model, profile):
    parameters = read_parameters(REPOSITORY / model, profile, {})
    assert parameters is not None, f"{profile} has no {model}"
    return parameters


def models_of(profile):
    return {model for feature in read_features(profile) for model in feature.models}


def test_every_profile_has_features():
    assert {profile for profile in list_profiles(REPOSITORY) if read_features(profile)} == {
        "tiny",
        "open",
        "gpu",
    }


@pytest.mark.parametrize("profile", ["tiny", "open", "gpu"])
def test_features_have_the_models_that_the_agent_and_its_engines_call(profile):
    models = models_of(profile)
    called = {
        name
        for model in models
        for setting in _ENGINES
        for name in settings_of(model, profile).names(setting, "")
        if (REPOSITORY / name).is_dir()
    }
    # Whisper serves other languages, where its weights are fetched by name.
    assert called - models == ({"whisper"} if "whisper" in called else set())


@pytest.mark.parametrize("profile", ["tiny", "open", "gpu"])
def test_weights_of_features_are_fetched_or_prepared(profile):
    for feature in read_features(profile):
        prepared = {command.rpartition("MODEL=")[2]: command.split()[1] for command in feature.prepare}
        assert prepared.keys() <= {*MANIFEST["checkpoints"], *MANIFEST["chatterbox"]}
        folders = {
            settings_of(model, profile).text(setting, "") for model in feature.models for setting in _FOLDERS
        } - {""}
        fetched = {
            name for name, entry in MANIFEST["weights"].items() if profile in entry.get("profiles", ())
        }
        assert folders - fetched == set(prepared)


def test_a_missing_model_takes_the_features_that_need_it():
    models = models_of("gpu")
    assert describe_missing("gpu", models) == []
    lines = describe_missing("gpu", models - {"s3gen"})
    assert lines == [
        f"callers do not get {gets}: without s3gen; make export MODEL=chatterbox"
        for gets in ("the voice of Chatterbox", "voices made of recordings")
    ]
    assert describe_missing("own", []) == []
