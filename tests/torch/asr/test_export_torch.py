"""Exports that were written for torch are read as the ONNX files are, and are all that is needed."""

import sys

import numpy as np
import pytest
import torch
from device_fakes import CPU, make_recognizer, recognize, same_tokens

from parley.asr import checkpoint
from parley.asr.checkpoint import DESCRIPTION
from parley.asr.streaming import encoder as streaming_checkpoint
from parley.launcher.options import ROOT
from parley_torch.asr.loading import DeviceSettings, load_encoder
from parley_torch.asr.offline import RunSizes

sys.path.insert(0, str(ROOT / "build"))

import torch_export
from export import main


def test_a_streaming_export_becomes_one_file(tmp_path, spoken, capsys):
    source = ROOT / "models" / streaming_checkpoint.DEFAULT
    assert main(["torch", str(source), "--precision", "float32", "--into", str(tmp_path)]) == 0
    assert "differences from the ONNX export: encoder" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {*DESCRIPTION, "model.safetensors"}
    audio = min((clip.audio for clip in spoken), key=len)
    recognizers = [
        make_recognizer(streaming_checkpoint.load(folder, DESCRIPTION), [160], slots=1, sizes=(1,))
        for folder in (source, tmp_path)
    ]
    (one,), (other,) = (recognize(recognizer, [audio], [16]) for recognizer in recognizers)
    assert one.tokens().ids.size
    assert same_tokens(one.tokens(), other.tokens())


def test_an_offline_export_in_bfloat16_is_smaller_and_near(tmp_path):
    source = ROOT / "models" / checkpoint.DEFAULT
    assert main(["torch", str(source), "--into", str(tmp_path)]) == 0
    encoders = [
        load_encoder(
            checkpoint.load(folder, DESCRIPTION),
            DeviceSettings(CPU, torch.bfloat16),
            RunSizes((100,), (1,), 100),
        )
        for folder in (source, tmp_path)
    ]
    features = np.random.default_rng(0).standard_normal((1, 80, 100)).astype(np.float32)
    one, other = (encoder.encode(features, np.array([100]))[0] for encoder in encoders)
    assert np.array_equal(one, other)  # rounded to the same weights
    assert (tmp_path / "model.safetensors").stat().st_size < 7_000_000


def test_export_that_differs_is_not_written(tmp_path, monkeypatch, capsys):
    source = ROOT / "models" / checkpoint.DEFAULT
    monkeypatch.setitem(torch_export.LIMITS, "bfloat16", 1e-9)
    assert main(["torch", str(source), "--into", str(tmp_path / "none")]) == 1
    assert "encoder differs by" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("missing", ["", "vocab.txt"])
def test_folder_without_an_export_is_an_error(tmp_path, capsys, missing):
    (tmp_path / "config.json").write_text("{}")
    if missing:
        (tmp_path / "encoder-model.onnx").write_bytes(b"")
    assert main(["torch", str(tmp_path), "--into", str(tmp_path / "none")]) == 1
    assert "error: " in capsys.readouterr().err
