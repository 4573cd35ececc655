"""Every deployment loads the models of what its callers get, and says what that is."""

from __future__ import annotations

import json
import tomllib

import pytest
import yaml
from charts import ROOT, merge, read_documents, render
from test_compose import COMPOSE
from test_settings import run_in_project
from value_sets import SETS

FEATURES = tomllib.loads((ROOT / "src/parley/runtime/features.toml").read_text())
_EKS = ROOT / "deploy" / "eks"
_ON_COMMAND_LINE = {"weights": {"checksums": f"{'0' * 64}  a/b\n"}}
_DEPLOYED = {
    **SETS,
    "eks": merge(*read_documents((_EKS / "values.yaml").read_text()), _ON_COMMAND_LINE),
    "eks-cpu": merge(
        *(read_documents((_EKS / name).read_text())[0] for name in ("values.yaml", "values-cpu.yaml"))
    ),
}
_LOADED = """
import json, sys
from pathlib import Path
from parley.launcher.__main__ import parser, read_options
from parley.launcher.models import model_folders
print(json.dumps([
    sorted(folder.name for folder in model_folders(read_options(parser().parse_args(command))))
    for command in json.load(sys.stdin)
]))
"""


def models_of(*features):
    return {model for feature in features for model in feature["models"]}


def loaded_by(commands):
    """The models that the launcher loads for each command line, where all weights are there."""
    return [set(models) for models in json.loads(run_in_project(_LOADED, commands))]


@pytest.fixture(scope="module")
def loaded():
    """By name of a set of values without a command of its own."""
    names = [name for name, values in _DEPLOYED.items() if not values.get("worker", {}).get("command")]
    return dict(
        zip(
            names,
            loaded_by([render(_DEPLOYED[name]).container("worker")["args"] for name in names]),
            strict=True,
        )
    )


def profile_of(name):
    return _DEPLOYED[name].get("worker", {}).get("profile", "open")


def test_every_set_of_values_loads_the_models_of_what_its_notes_promise(loaded):
    for name, models in loaded.items():
        got, _, missing = render(_DEPLOYED[name]).notes.partition("They do not get:")
        assert "Callers get:" in got
        for feature in FEATURES[profile_of(name)]:
            line = f"  - {feature['gets']}\n"
            assert (line in got) != (line in missing), (name, line)
            assert (line in got) == (set(feature["models"]) <= models), (name, line)


@pytest.mark.parametrize(
    "name", ["single-gpu", "eks", "eks-production", "gpu-H100", "cpu", "eks-cpu", "minimal"]
)
def test_the_documented_deployments_give_all_that_their_profile_has(loaded, name):
    assert models_of(*FEATURES[profile_of(name)]) <= loaded[name]


def test_a_gpu_without_memory_for_chatterbox_gives_everything_else(loaded):
    without = {"the voice of Chatterbox", "voices made of recordings"}
    assert models_of(*(one for one in FEATURES["gpu"] if one["gets"] not in without)) == loaded["gpu-T4"]


def test_weights_from_the_hub_give_what_needs_no_preparation(loaded):
    assert models_of(*(one for one in FEATURES["gpu"] if "prepare" not in one)) == loaded["gpu-hub"]
    (fetch,) = render(SETS["gpu-hub"]).pod("worker")["initContainers"]
    assert "--profile=gpu" in fetch["args"]


def test_compose_on_a_gpu_has_all_features_of_its_readme():
    services = yaml.safe_load((COMPOSE / "compose.gpu.yaml").read_text())["services"]
    (models,) = loaded_by([services["worker"]["command"]])
    assert models_of(*FEATURES["gpu"]) <= models
    assert services["weights"]["command"] == ["--profile", "gpu"]
    readme = (COMPOSE / "README.md").read_text()
    for feature in FEATURES["gpu"]:
        assert f"| {feature['gets']} | {', '.join(feature['models'])} |" in readme
        for command in feature.get("prepare", ()):
            assert command.removeprefix("make ") in readme


def test_the_readme_of_eks_prepares_all_weights():
    readme = (_EKS / "README.md").read_text()
    for feature in FEATURES["gpu"]:
        for command in feature.get("prepare", ()):
            assert f"make -C ../.. {command.removeprefix('make ')}" in readme
    assert "fetch_models --profile gpu" in readme


def voices_of(name):
    """Where the workers of a set of values keep voices: the variable, and what is mounted there."""
    rendered = render(_DEPLOYED[name])
    environment = {one["name"]: one.get("value") for one in rendered.container("worker")["env"]}
    mounts = {one["name"]: one for one in rendered.container("worker")["volumeMounts"]}
    volumes = {one["name"]: one for one in rendered.pod("worker")["volumes"]}
    assert ("voices" in mounts) == ("voices" in volumes)
    return environment.get("PARLEY_VOICES"), mounts.get("voices"), volumes.get("voices")


def test_voices_that_callers_make_are_where_all_workers_find_them():
    place, mount, volume = voices_of("single-gpu")
    assert mount == {"name": "voices", "mountPath": place}
    assert volume["persistentVolumeClaim"] == {"claimName": "parley-voices"}
    for name in ("eks", "eks-production"):
        place, mount, _ = voices_of(name)
        assert place.startswith("s3://")
        assert mount is None
        egress = render(_DEPLOYED[name]).get("NetworkPolicy", "-worker")["spec"]["egress"]
        assert {443, 80} <= {port["port"] for rule in egress for port in rule["ports"]}
    assert voices_of("cpu") == (None, None, None)


def test_without_a_place_for_voices_the_notes_say_what_is_lost():
    values = merge(SETS["single-gpu"], {"worker": {"voices": {"claim": ""}}})
    said = "Voices that callers make are lost with their worker's pod"
    assert said in render(values).notes
    assert said not in render(SETS["single-gpu"]).notes
    assert said not in render(SETS["cpu"]).notes


def test_compose_keeps_voices_in_a_volume_and_its_key_may_make_them():
    compose = yaml.safe_load((COMPOSE / "compose.gpu.yaml").read_text())
    worker = compose["services"]["worker"]
    assert worker["volumes"] == [f"voices:{worker['environment']['PARLEY_VOICES']}"]
    assert "voices" in compose["volumes"]
    image = (ROOT / "build/images/worker-gpu.Containerfile").read_text()
    assert f"{worker['environment']['PARLEY_VOICES']} " in image.replace("\n", " "), (
        "owned by the image's user"
    )
    assert "--scope voices" in (COMPOSE / "prepare").read_text()
