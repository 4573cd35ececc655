"""Kaldi's filter bank against that of transformers."""

from __future__ import annotations

import numpy as np
import pytest
from transformers.audio_utils import mel_filter_bank, spectrogram, window_function

from parley.audio.fbank import KaldiFbank


def audio(samples, seed=0):
    rng = np.random.default_rng(seed)
    tone = np.sin(np.arange(samples) * 0.05) * np.linspace(0.1, 0.5, samples)
    return (tone + 0.05 * rng.standard_normal(samples)).astype(np.float32)


@pytest.mark.parametrize("bands", [40, 80])
def test_features_are_those_of_transformers(bands):
    samples = audio(16_000)
    expected = spectrogram(
        samples,
        window_function(400, "povey", periodic=False),
        frame_length=400,
        hop_length=160,
        fft_length=512,
        power=2.0,
        center=False,
        preemphasis=0.97,
        mel_filters=mel_filter_bank(257, bands, 20.0, 8_000.0, 16_000, None, "kaldi", True),
        log_mel="log",
        mel_floor=float(np.finfo(np.float32).eps),
        remove_dc_offset=True,
    ).T
    found = KaldiFbank(bands).compute(samples)
    assert found.shape == (98, bands)
    assert np.abs(found - expected).max() < 2e-3


def test_silence_is_the_least_energy():
    found = KaldiFbank(80).compute(np.zeros(800, np.float32))
    assert np.allclose(found, np.log(np.finfo(np.float32).eps))


@pytest.mark.parametrize(("samples", "frames"), [(0, 0), (399, 0), (400, 1), (559, 1), (560, 2)])
def test_whole_frames_lie_within_the_audio(samples, frames):
    assert KaldiFbank(80).compute(audio(samples)).shape == (frames, 80)
