"""``build/export.py checkpoint`` from a .nemo file to folders that load, and what it refuses."""

from __future__ import annotations

import hashlib
import json
import re
import tarfile

import numpy as np
import pytest
from conftest import built

from export import main
from nemo_export import graphs
from parley.asr import checkpoint
from parley.asr.streaming import encoder as streaming_checkpoint
from parley.runtime.onnx import open_session

LOOSE = "{ encoder = 0.2, tokens = 0.9 }"
ENTRIES = f"""
[checkpoints.offline]
kind = "tdt"
precisions = ["int8", "fp16", "bf16"]
[checkpoints.offline.accuracy]
fp32 = {{ encoder = 1e-4, tokens = 0.0 }}
int8 = {LOOSE}
fp16 = {LOOSE}
bf16 = {LOOSE}

[checkpoints.strict]
kind = "tdt"
precisions = ["int8"]
[checkpoints.strict.accuracy]
fp32 = {{ encoder = 1e-4, tokens = 0.0 }}
int8 = {{ encoder = 1e-6, tokens = 0.0 }}

[checkpoints.wrong]
kind = "rnnt"
precisions = []
[checkpoints.wrong.accuracy]
fp32 = {LOOSE}

[checkpoints.streaming]
kind = "rnnt-streaming"
look_aheads = [1, 6]
precisions = ["int8"]
[checkpoints.streaming.accuracy]
fp32 = {{ encoder = 1e-4, tokens = 0.0 }}
int8 = {LOOSE}

[checkpoints.never-trained]
kind = "rnnt-streaming"
look_aheads = [3]
precisions = []
[checkpoints.never-trained.accuracy]
fp32 = {LOOSE}
"""


@pytest.fixture(scope="module")
def nemo(tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("nemo")
    for kind in ("tdt", "rnnt-streaming"):
        built(kind, tokenizer).save_to(str(folder / f"{kind}.nemo"))
    with tarfile.open(folder / "broken.nemo", "w") as archive:
        for name in ("model_config.yaml", "model_weights.ckpt"):
            archive.addfile(tarfile.TarInfo(name))
    (folder / "checkpoints.toml").write_text(ENTRIES)
    return folder


@pytest.fixture
def run(nemo, tmp_path):
    def run(name, kind="tdt", *more):
        return main(
            [
                "checkpoint",
                name,
                *("--from", str(nemo / f"{kind}.nemo")),
                *("--manifest", str(nemo / "checkpoints.toml")),
                *("--into", str(tmp_path / "models"), "--count", "2", *more),
            ]
        )

    run.models = tmp_path / "models"
    return run


def folders(run):
    return sorted(path.name for path in run.models.iterdir()) if run.models.exists() else []


def check_files(folder):
    """The manifest has every file, with its size and checksum."""
    manifest = json.loads((folder / "manifest.json").read_text())
    listed = {entry["name"]: entry for entry in manifest["files"]}
    assert set(listed) | {"manifest.json"} == {path.name for path in folder.iterdir()}
    for name, entry in listed.items():
        content = (folder / name).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (entry["size"], entry["sha256"])
    return manifest


def test_an_offline_model_in_all_precisions(run):
    assert run("offline") == 0
    assert folders(run) == ["offline", "offline-bf16", "offline-fp16", "offline-int8"]
    sizes = {}
    for name in folders(run):
        manifest = check_files(run.models / name)
        assert manifest["source"]["name"] == "tdt.nemo"
        assert manifest["versions"]["nemo_toolkit"]
        assert manifest["accuracy"]["encoder"] < 0.2
        sizes[manifest["precision"]] = checkpoint.load(run.models / name).encoder.stat().st_size
    assert sizes["int8"] < sizes["fp16"] < sizes["bf16"] < sizes["fp32"]
    assert 1.2 * sizes["fp16"] < sizes["fp32"]


def test_half_precision_really_is_half_precision(run):
    assert run("offline") == 0
    # ONNX Runtime computes fp16 on a CPU too, slowly.
    features = np.random.default_rng(0).standard_normal((1, 80, 200)).astype(np.float32)
    feed = {"audio_signal": features, "length": np.array([200], np.int64)}
    outputs = {}
    for name in ("offline", "offline-fp16"):
        session = open_session(run.models / name / "encoder-model.onnx")
        outputs[name] = session.run(["outputs"], feed)[0]
    difference = np.abs(outputs["offline"] - outputs["offline-fp16"]).max()
    assert 1e-6 < difference < 0.05


def test_weights_of_a_large_model_lie_beside_its_graph(run, monkeypatch):
    monkeypatch.setattr(graphs, "EXTERNAL_FROM", 1_000_000)
    assert run("offline") == 0
    for name in folders(run):
        check_files(run.models / name)
        encoder = run.models / name / "encoder-model.onnx"
        assert (
            encoder.stat().st_size < 1_000_000 < encoder.with_name("encoder-model.onnx.data").stat().st_size
        )
        if not name.endswith("bf16"):  # CPUs have no such products
            open_session(encoder)


def test_look_aheads_of_a_streaming_model_share_their_weights(run):
    assert run("streaming", "rnnt-streaming") == 0
    assert folders(run) == ["streaming", "streaming-int8"]
    for name in folders(run):
        folder = run.models / name
        check_files(folder)
        export = streaming_checkpoint.load(folder)
        assert export.streaming.look_aheads == (1, 6)
        weights = (folder / "encoder.weights").stat().st_size
        assert all(export.encoder(r).stat().st_size < weights / 4 for r in (1, 6))
    # Two look-aheads take little more room than one.
    assert (run.models / "streaming/encoder.weights").stat().st_size < 13_000_000


def test_an_export_that_drifts_is_not_written_and_others_are(run, capsys):
    assert run("strict") == 1
    assert re.search(
        r"error: strict-int8 is not written, because it is too far from NeMo: "
        r"encoder differs by \d\.\de-0\d, and 1\.0e-06 is allowed",
        capsys.readouterr().err,
    )
    assert folders(run) == ["strict"]
    check_files(run.models / "strict")


@pytest.mark.parametrize(
    ("name", "kind", "why"),
    [
        ("wrong", "tdt", "kind rnnt"),
        ("never-trained", "rnnt-streaming", "not trained for look-aheads"),
        ("streaming", "tdt", "durations"),
        ("offline", "missing", "missing"),
        ("offline", "broken", "NeMo cannot load"),
    ],
)
def test_export_that_differs_from_the_manifest_is_refused(run, capsys, name, kind, why):
    assert run(name, kind) == 1
    assert why in capsys.readouterr().err
    assert folders(run) == []


def test_an_unknown_name_is_wrong_usage(run):
    with pytest.raises(SystemExit) as caught:
        run("nothing")
    assert caught.value.code == 2
