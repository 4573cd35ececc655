"""``build/export.py checkpoint`` from a hub to folders that the models load, and what it refuses."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import sys

import numpy as np
import pytest
import torch
from conftest import ROOT
from safetensors.torch import load_file, save_file

from chatterbox_export.files import FILES
from chatterbox_export.small_published import small_conditionals, write_small_published
from export import main
from parley_torch.tts.s3gen import checkpoint as s3gen_checkpoint
from parley_torch.tts.t3.checkpoint import find_checkpoint, read_shape
from parley_torch.tts.t3.prompt import PromptEncoder
from parley_torch.tts.t3.text import load_reader
from parley_torch.tts.voices.enrollment import checkpoint as enrollment_checkpoint
from parley_torch.tts.voices.objects import FolderObjects
from parley_torch.tts.voices.store import VoiceStore

sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests/unit/fetching")]

from fake_hub import COMMIT, REPOSITORY, FakeHub  # noqa: E402
from fetching import manifest  # noqa: E402
from fetching.fetch import Sources, fetch, pin  # noqa: E402
from fetching.hub import Hub  # noqa: E402
from fetching.manifest import Published  # noqa: E402
from fetching.packages import Packages  # noqa: E402
from fetching.progress import Progress  # noqa: E402

VARIANTS = ["original", "multilingual", "turbo"]
STRICT = "{ t3 = 1e-4, mel = 1e-4, pitch = 0.01, audio = 1e-4 }"
MANIFEST = "".join(
    f'[chatterbox.{variant}]\nsource = "hub/{variant}"\nvariant = "{variant}"\naccuracy = {STRICT}\n'
    for variant in VARIANTS
)
IMPOSSIBLE = f"""
[chatterbox.original]
variant = "original"
accuracy = {STRICT.replace("mel = 1e-4", "mel = 0.0")}
"""


@pytest.fixture(scope="session")
def published(tmp_path_factory):
    """Small files by variant, as the hub has them; made once, never changed."""
    made = {}

    def get(variant):
        if variant not in made:
            made[variant] = write_small_published(tmp_path_factory.mktemp(variant), variant, seed=3)
        return made[variant]

    return get


@pytest.fixture
def run(tmp_path):
    def run(variant, source=None, manifest=MANIFEST):
        (tmp_path / "checkpoints.toml").write_text(manifest)
        options = ["--manifest", str(tmp_path / "checkpoints.toml"), "--into", str(run.models)]
        return main(["checkpoint", variant, *options, *(["--from", str(source)] if source else [])])

    run.models = tmp_path / "models"
    return run


@pytest.fixture
def copied(published, tmp_path):
    """The files of Original, free to be spoiled."""
    folder = tmp_path / "spoiled"
    folder.mkdir()
    for path in published("original").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def left(run):
    return sorted(path.name for path in run.models.iterdir()) if run.models.exists() else []


@pytest.fixture(autouse=True)
def lock(tmp_path, monkeypatch):
    """In place of the project's, where downloads are pinned."""
    monkeypatch.setattr(manifest, "LOCK", tmp_path / "checkpoints.lock.json")


def download(files, models, name):
    remote = FakeHub({path.name: path.read_bytes() for path in files.iterdir()})
    try:
        weights = Published(name=name, repository=REPOSITORY, include=("*",))
        cache = models.with_name("cache")
        hub, packages = Hub({"PARLEY_MODEL_HUB": remote.address}), Packages(cache / "packages")
        sources = Sources(cache, hub, packages, Progress(io.StringIO()))
        fetch([pin(weights, sources, anew=False)], models, sources)
    finally:
        remote.close()


@pytest.mark.parametrize("variant", VARIANTS)
def test_from_the_hub_to_what_the_models_load(published, run, variant):
    download(published(variant), run.models, f"hub/{variant}")
    assert run(variant) == 0
    folder, files = run.models / variant, FILES[variant]

    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["variant"], manifest["source"]["revision"]) == (variant, COMMIT)
    listed = {entry["name"]: entry for entry in manifest["files"]}
    there = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    assert set(listed) | {"manifest.json"} == set(there)
    for name, entry in listed.items():
        content = there[name].read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (entry["size"], entry["sha256"])
    assert {path.suffix for path in there.values()} <= {".safetensors", ".json", ".txt"}

    checkpoint = find_checkpoint(folder)
    shape = read_shape(checkpoint)
    assert (checkpoint.name, shape.variant) == (files.t3[1], variant)
    PromptEncoder.load(checkpoint, shape)
    assert len(load_reader(folder, shape).read("hello", "en")) >= 5
    networks = s3gen_checkpoint.load(s3gen_checkpoint.find_checkpoint(folder))
    assert networks.flow.meanflow == (variant == "turbo")
    digest = enrollment_checkpoint.load(folder).digest

    voice = asyncio.run(VoiceStore(FolderObjects(folder / "voices", 1 << 20)).get("default"))
    conditionals = torch.load(published(variant) / "conds.pt", weights_only=True)
    t3, gen = conditionals["t3"], conditionals["gen"]
    np.testing.assert_array_equal(voice.speaker_embedding, t3["speaker_emb"][0])
    np.testing.assert_array_equal(voice.t3_prompt_tokens, t3["cond_prompt_speech_tokens"][0])
    np.testing.assert_array_equal(voice.speaker, gen["embedding"][0])
    np.testing.assert_array_equal(voice.prompt_tokens, gen["prompt_token"][0])
    np.testing.assert_array_equal(voice.prompt_mel, gen["prompt_feat"][0])
    assert (voice.details.variant, voice.details.checkpoint) == (variant, digest)
    assert voice.details.reference_s == pytest.approx(60 / 25)


def test_weights_of_other_containers_are_the_same_weights(published, run):
    assert run("multilingual", published("multilingual")) == 0
    for ours, theirs in (("ve.safetensors", "ve.pt"), ("s3gen.safetensors", "s3gen.pt")):
        found = load_file(run.models / "multilingual" / ours)
        expected = torch.load(published("multilingual") / theirs, weights_only=True)
        assert set(found) == set(expected)
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def drop(tensors, name):
    del tensors[name]


def cut(tensors, name):
    tensors[name] = tensors[name][:-1].clone()


def double(tensors, name):
    tensors[f"{name}.again"] = tensors[name].clone()


def spoil(tensors, name):
    tensors[name].view(-1)[0] = float("nan")


@pytest.mark.parametrize(
    ("file", "change", "name", "said"),
    [
        ("t3_cfg.safetensors", drop, "tfmr.layers.1.mlp.down_proj.weight", "missing"),
        ("t3_cfg.safetensors", drop, "text_emb.weight", "KeyError('text_emb.weight')"),
        ("t3_cfg.safetensors", cut, "speech_head.weight", "[8193, 128] and must be [8194, 128]"),
        ("t3_cfg.safetensors", double, "cond_enc.spkr_enc.bias", "unexpected: cond_enc.spkr_enc.bias.again"),
        ("t3_cfg.safetensors", spoil, "speech_emb.weight", "not numbers"),
        ("ve.safetensors", drop, "lstm.bias_hh_l1", "missing: lstm.bias_hh_l1"),
        ("ve.safetensors", cut, "proj.weight", "of another shape: proj.weight"),
        ("s3gen.safetensors", drop, "flow.encoder.after_norm.bias", "missing: flow.encoder.after_norm.bias"),
        ("s3gen.safetensors", drop, "mel2wav.conv_pre.bias", "missing: mel2wav.conv_pre.bias"),
        ("s3gen.safetensors", drop, "tokenizer.quantizer._codebook.project_down.bias", "missing"),
        ("s3gen.safetensors", cut, "speaker_encoder.xvector.dense.linear.weight", "of another shape"),
        ("s3gen.safetensors", double, "flow.spk_embed_affine_layer.bias", "unexpected"),
    ],
)
def test_a_tensor_that_is_not_as_published_is_named(copied, run, capsys, file, change, name, said):  # noqa: PLR0917
    tensors = load_file(copied / file)
    change(tensors, name)
    (copied / file).unlink()
    save_file(tensors, copied / file)
    assert run("original", copied) == 1
    error = capsys.readouterr().err
    assert said in error
    assert name in error
    assert left(run) == []


def without(part, name):
    def change(conditionals):
        del conditionals[part][name]

    return change


def with_value(part, name, value):
    def change(conditionals):
        conditionals[part][name] = value

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda conditionals: conditionals.pop("gen"), "lacks gen"),
        (without("t3", "speaker_emb"), "lacks t3.speaker_emb"),
        (without("gen", "embedding"), "lacks gen.embedding"),
        (with_value("gen", "other", 1), "unexpected fields: gen.other"),
        (with_value("gen", "embedding", None), "gen.embedding is no tensor"),
        (with_value("gen", "embedding", torch.zeros(192)), "gen.embedding is torch.float32 [192]"),
        (with_value("gen", "embedding", torch.full((1, 192), torch.inf)), "speaker holds values"),
        (with_value("t3", "speaker_emb", torch.zeros(1, 128)), "must be numbers [1, 256]"),
        (with_value("gen", "prompt_token", torch.zeros(1, 60)), "must be whole numbers [1, n]"),
        (with_value("gen", "prompt_token", torch.full((1, 60), 6561)), "outside 0 to 6560"),
        (with_value("gen", "prompt_feat", torch.zeros(1, 118, 80)), "gen.prompt_feat has 118 frames"),
        (with_value("gen", "prompt_feat", torch.zeros(1, 120, 100)), "must be numbers [1, n, 80]"),
    ],
)
def test_a_voice_that_is_not_as_published_is_refused(copied, run, capsys, change, said):
    conditionals = small_conditionals(prompt=60, t3_prompt=150)
    change(conditionals)
    torch.save(conditionals, copied / "conds.pt")
    assert run("original", copied) == 1
    assert said in capsys.readouterr().err
    assert left(run) == []


def test_a_voice_may_lack_what_is_not_used_and_have_a_frame_too_many(copied, run):
    conditionals = small_conditionals(prompt=60, t3_prompt=0)
    conditionals["t3"] = {
        "speaker_emb": conditionals["t3"]["speaker_emb"],
        "cond_prompt_speech_tokens": None,
    }
    conditionals["gen"]["prompt_feat"] = torch.randn(1, 121, 80)
    torch.save(conditionals, copied / "conds.pt")
    assert run("original", copied) == 0


class Harmful:
    """Runs code where a pickle is trusted."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize(("variant", "file"), [("original", "conds.pt"), ("multilingual", "ve.pt")])
def test_no_file_can_run_code(published, run, tmp_path, capsys, variant, file):  # noqa: PLR0917
    folder = tmp_path / "harmful"
    folder.mkdir()
    for path in published(variant).iterdir():
        if path.name != file:
            (folder / path.name).symlink_to(path)
    torch.save({"t3": Harmful(tmp_path / "ran"), "gen": {}}, folder / file)
    assert run(variant, folder) == 1
    assert f"{file} cannot be read as tensors alone" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()
    assert left(run) == []


def test_conversion_that_drifts_keeps_the_old_files(published, run, capsys):
    assert run("original", published("original")) == 0
    before = (run.models / "original/manifest.json").read_bytes()
    assert run("original", published("original"), IMPOSSIBLE) == 1
    assert "too far from chatterbox-tts: mel differs by" in capsys.readouterr().err
    assert (run.models / "original/manifest.json").read_bytes() == before
    assert left(run) == ["original"]


def test_missing_weights_are_named_with_their_command(copied, run, capsys):
    (copied / "conds.pt").unlink()
    assert run("original", copied) == 1
    error = capsys.readouterr().err
    assert "is without conds.pt" in error
    assert "scripts/fetch_models hub/original" in error


def test_another_variant_is_refused(copied, published, run, capsys):
    (copied / "t3_cfg.safetensors").unlink()
    (copied / "t3_cfg.safetensors").symlink_to(published("multilingual") / FILES["multilingual"].t3[0])
    assert run("original", copied) == 1
    assert "is of the variant multilingual" in capsys.readouterr().err


def test_an_unknown_name_is_wrong_usage(run):
    with pytest.raises(SystemExit) as caught:
        run("nothing")
    assert caught.value.code == 2
