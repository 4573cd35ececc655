"""Our way of marking audio in pieces against Perth itself, which marks whole recordings."""

from __future__ import annotations

import json
import sys
import types

import librosa
import numpy as np
import pytest
import soundfile
from conftest import ROOT

from chatterbox_export import upstream
from parley_torch.tts import watermark

CLIPS = ROOT / "tests/data/asr_eval"
PACKAGE = upstream.FOLDER / "perth"


@pytest.fixture(scope="module")
def perth():
    # It asks a part of setuptools that is gone where its files are.
    resources = types.ModuleType("pkg_resources")
    resources.resource_filename = lambda package, name: str(PACKAGE.joinpath(*package.split(".")[1:], name))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "pkg_resources", resources)
        from perth.perth_net.perth_net_implicit.perth_watermarker import PerthImplicitWatermarker

        return PerthImplicitWatermarker()


@pytest.fixture(scope="module")
def mark():
    return watermark.PerthWatermark.load(PACKAGE / watermark._CHECKPOINT)


def spoken():
    entries = [entry for entry in json.loads((CLIPS / "manifest.json").read_text()) if entry["text"]]
    return [entry["file"] for entry in entries[::9]]


@pytest.mark.parametrize("file", spoken())
def test_perth_finds_our_mark_and_makes_the_same(perth, mark, file):
    audio, rate = soundfile.read(CLIPS / file, dtype="float32")
    audio = librosa.resample(audio, orig_sr=rate, target_sr=watermark.RATE)
    stream = mark.begin()
    ours = np.concatenate(
        [
            stream.push(audio[at : at + 3216], last=at + 3216 >= len(audio))
            for at in range(0, len(audio), 3216)
        ]
    )
    assert len(ours) == len(audio)
    theirs = perth.apply_watermark(audio, sample_rate=watermark.RATE)  # a fraction of a frame is lost
    assert perth.get_watermark(audio, watermark.RATE, round=False) < 0.5
    assert perth.get_watermark(ours, watermark.RATE, round=False) > 0.95
    length = min(len(ours), len(theirs))
    ours, theirs, audio = ours[:length], theirs[:length], audio[:length]
    assert np.corrcoef(ours - audio, theirs - audio)[0, 1] > 0.99
    assert np.abs(ours - theirs).max() < 0.03  # theirs was resampled to 32 kHz and back
