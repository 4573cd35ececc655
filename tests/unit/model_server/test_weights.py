import re
import tomllib
from pathlib import Path

import pytest

from parley.errors import WeightsNotFoundError
from parley.runtime.parameters import Parameters
from parley.runtime.weights import resolve_weights

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def root(tmp_path):
    for name in ("default", "chosen", "operator"):
        (tmp_path / "models" / name).mkdir(parents=True)
        (tmp_path / "models" / name / "config.json").touch()
    return tmp_path


def parameters(root, environment=None, **values):
    return Parameters(
        "qwen3", values, model_dir=root / "model_repository" / "qwen3", environment=environment or {}
    )


def test_order_of_choices(root):
    models = root / "models"
    assert resolve_weights(parameters(root), "default") == models / "default"
    assert resolve_weights(parameters(root, weights="chosen"), "default") == models / "chosen"
    override = {"PARLEY_WEIGHTS_QWEN3": "operator"}
    assert resolve_weights(parameters(root, override, weights="chosen"), "default") == models / "operator"


def test_a_default_in_a_package_is_looked_for_only_where_no_folder_is_named(root):
    def absent():
        raise WeightsNotFoundError("the package is not installed")

    models = root / "models"
    override = {"PARLEY_WEIGHTS_QWEN3": "operator"}
    assert resolve_weights(parameters(root, override), absent) == models / "operator"
    assert resolve_weights(parameters(root, weights="chosen"), absent) == models / "chosen"
    assert resolve_weights(parameters(root), lambda: models / "default") == models / "default"
    with pytest.raises(WeightsNotFoundError, match="the package is not installed"):
        resolve_weights(parameters(root), absent)


def test_absolute_path_and_models_dir(root, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "w").mkdir()
    assert resolve_weights(parameters(root, weights=str(elsewhere / "w")), "default") == elsewhere / "w"
    environment = {"PARLEY_MODELS_DIR": str(elsewhere)}
    assert resolve_weights(parameters(root, environment), "w") == elsewhere / "w"


def test_relative_repository_finds_the_folder_beside_it(root, monkeypatch):
    monkeypatch.chdir(root)
    found = resolve_weights(
        Parameters("qwen3", {}, model_dir=type(root)("model_repository/qwen3"), environment={}), "default"
    )
    assert found == root / "models" / "default"


def test_missing_folder_names_the_command(root):
    with pytest.raises(WeightsNotFoundError, match=r"train_tiny_llm\.py") as caught:
        resolve_weights(parameters(root), "tiny-qwen3")
    assert isinstance(caught.value, FileNotFoundError)
    assert caught.value.code == "weights_not_found"


def test_missing_file_is_named(root):
    with pytest.raises(WeightsNotFoundError, match=r"is without tokenizer\.json.*PARLEY_WEIGHTS_QWEN3"):
        resolve_weights(parameters(root), "default", ("config.json", "tokenizer.json"))


def test_missing_weights_that_can_be_downloaded_name_the_command(root):
    with pytest.raises(WeightsNotFoundError, match=r"make fetch MODEL=parakeet-tdt-0\.6b-v2"):
        resolve_weights(parameters(root), "parakeet-tdt-0.6b-v2")


def test_missing_weights_that_must_be_converted_name_both_commands(root):
    named = r"fetch MODEL=resemble/chatterbox-turbo.*export MODEL=chatterbox-turbo"
    with pytest.raises(WeightsNotFoundError, match=named):
        resolve_weights(parameters(root), "chatterbox-turbo")


@pytest.mark.parametrize(
    "name",
    [
        "parakeet-tdt-0.6b-v2",
        "parakeet-tdt-0.6b-v3-int8",
        "nemotron-speech-streaming-en-0.6b",
        "Qwen3-4B-AWQ",
        "moonshine-tiny-en",
        "whisper-base",
        "parakeet-ctc-110m",
        "zipformer-en",
        "paraformer-zh",
        "qwen2.5-coder-0.5b-w8a8",
        "qwen2.5-coder-1.5b-w8a8",
        "piper-joe",
        "hibari-heart",
        "kokoro-82m",
        "misaki-en",
        "g2p-en",
        "chatterbox",
        "chatterbox-multilingual",
        "chatterbox-turbo",
    ],
)
def test_the_commands_that_are_named_know_the_name(root, name):
    known = tomllib.loads((ROOT / "build/checkpoints.toml").read_text())
    made_by = {"fetch": known["weights"], "export": known["checkpoints"] | known["chatterbox"]}
    with pytest.raises(WeightsNotFoundError) as caught:
        resolve_weights(parameters(root), name)
    commands = re.findall(r"`make (\w+) MODEL=(\S+)`", str(caught.value))
    assert commands
    assert all(model in made_by[command] for command, model in commands)


def test_weights_of_ones_own_have_no_command(root):
    with pytest.raises(WeightsNotFoundError) as caught:
        resolve_weights(parameters(root, {"PARLEY_WEIGHTS_QWEN3": "my-nothing"}), "tiny-qwen3")
    said = str(caught.value)
    assert "make " not in said
    assert said.endswith("my-nothing does not exist; correct PARLEY_WEIGHTS_QWEN3, which names it")


def test_missing_weights_of_the_manifest_suggest_no_other_name(root):
    with pytest.raises(WeightsNotFoundError) as caught:
        resolve_weights(parameters(root), "qwen2.5-coder-0.5b-w8a8")
    assert "did you mean" not in str(caught.value)


def test_a_misspelt_folder_is_answered_with_the_nearest(root):
    for given, meant in (("zipfomer-en", "zipformer-en"), ("tiny-qwenn3", "tiny-qwen3")):
        (root / "models" / "tiny-qwen3").mkdir(exist_ok=True)
        with pytest.raises(WeightsNotFoundError) as caught:
            resolve_weights(parameters(root, {"PARLEY_WEIGHTS_QWEN3": given}), "tiny-qwen3")
        said = f"{given} does not exist (did you mean {meant}?); correct PARLEY_WEIGHTS_QWEN3, which names it"
        assert str(caught.value).endswith(said)
