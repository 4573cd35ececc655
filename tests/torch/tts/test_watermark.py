"""Marking audio in pieces, with a random network in the place of Perth's."""

from __future__ import annotations

import importlib.machinery
import importlib.util

import numpy as np
import pytest
import torch

from parley.errors import ModelLoadingError
from parley_torch.tts import watermark
from parley_torch.tts.watermark import PerthWatermark, encoder_layers, load_watermark

RATE = watermark.RATE
DELAY = 5136  # samples: 214 ms


@pytest.fixture(scope="module")
def layers():
    torch.manual_seed(0)
    network = encoder_layers()
    with torch.no_grad():
        network[-1].conv.weight.mul_(0.3)
    return network


@pytest.fixture(scope="module")
def mark(layers):
    return PerthWatermark(layers)


def speech(seconds, seed=0):
    """A buzz that comes and goes, and silence in the middle."""
    rng = np.random.default_rng(seed)
    time = np.arange(round(seconds * RATE)) / RATE
    buzz = sum(np.sin(2 * np.pi * 130 * number * time) / number for number in range(1, 15))
    audio = 0.1 * buzz * np.clip(np.sin(2 * np.pi * 1.5 * time), 0, 1) + 1e-4 * rng.standard_normal(len(time))
    audio[len(audio) // 2 : len(audio) // 2 + RATE // 2] = 0.0
    return audio.astype(np.float32)


def marked(mark, audio, sizes):
    stream, pieces, at = mark.begin(), [], 0
    for size in sizes:
        pieces.append(stream.push(audio[at : at + size], last=False))
        at += size
    pieces.append(stream.push(audio[at:], last=True))
    return np.concatenate(pieces)


@pytest.mark.parametrize("sizes", [[3216] * 20, [1] * 50 + [7001] * 5, [100] * 300, [2 * RATE, 0, 0, 5]])
def test_pieces_make_no_difference(mark, sizes):
    audio = speech(3.0)
    whole = marked(mark, audio, [])
    assert len(whole) == len(audio)
    assert np.abs(whole - audio).max() > 0.01
    found = marked(mark, audio, sizes)
    np.testing.assert_allclose(found, whole, rtol=0, atol=1e-6)


@pytest.mark.parametrize("count", [0, 1, 239, 240, 768, 1536, 5135, 5137])
def test_as_many_samples_come_out_as_went_in(mark, count):
    audio = speech(1.0)[:count]
    whole = marked(mark, audio, [])
    assert len(whole) == count
    np.testing.assert_allclose(marked(mark, audio, [count // 3]), whole, rtol=0, atol=1e-6)


def test_watermark_delay_is_the_networks_context(mark):
    stream, audio, sent = mark.begin(), speech(2.0), 0
    for at in range(0, len(audio), 480):
        sent += len(stream.push(audio[at : at + 480], last=False))
        assert at + 480 - sent <= DELAY + 240
    assert at + 480 - sent >= DELAY - 240


def test_memory_is_bounded(mark):
    stream = mark.begin()
    for _ in range(40):
        stream.push(speech(0.5), last=False)
        assert len(stream._held) < RATE


def test_silence_stays_silent_and_nothing_is_marked_above_2_khz(mark):
    audio = speech(3.0)
    change = marked(mark, audio, []) - audio
    middle = change[len(audio) // 2 + 2000 : len(audio) // 2 + RATE // 2 - 2000]
    assert np.abs(middle).max() < 1e-6
    spectrum = np.abs(np.fft.rfft(change))
    high = spectrum[round(2200 / RATE * len(audio)) :]
    assert high.max() < 0.01 * spectrum.max()


@pytest.fixture
def installed(layers, tmp_path, monkeypatch):
    """The package, as far as it is used."""
    package = tmp_path / "perth"
    path = package / watermark._CHECKPOINT
    path.parent.mkdir(parents=True)
    state = {f"encoder.layers.{name}": value for name, value in layers.state_dict().items()}
    torch.save({"model": state | {"decoder.else": torch.zeros(1)}, "step": 1}, path)
    spec = importlib.machinery.ModuleSpec("perth", None, is_package=True)
    spec.submodule_search_locations = [str(package)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if name == "perth" else None)
    return path


@pytest.mark.parametrize("choice", ["auto", "on"])
def test_watermark_is_that_of_the_installed_library(installed, mark, choice):
    audio = speech(1.0)
    found = load_watermark(choice)
    np.testing.assert_array_equal(marked(found, audio, []), marked(mark, audio, []))
    assert load_watermark("off") is None


def test_without_the_library(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert load_watermark("auto") is None
    with pytest.raises(ModelLoadingError, match="resemble-perth is not installed"):
        load_watermark("on")


@pytest.mark.parametrize("content", [b"", b"nonsense", None])
def test_another_network_is_refused(installed, content):
    if content is None:
        torch.save({"model": {"encoder.layers.0.conv.weight": torch.zeros(1)}}, installed)
    else:
        installed.write_bytes(content)
    with pytest.raises(ModelLoadingError, match="not Perth's network"):
        load_watermark("auto")
