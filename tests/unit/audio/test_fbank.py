"""Kaldi's filter bank against that of transformers, and frames of audio that is mirrored at its ends."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.audio_utils import mel_filter_bank, spectrogram, window_function

from parley.audio.fbank import HOP, WINDOW, FbankOptions, KaldiFbank, stack_frames


def audio(samples, seed=0):
    rng = np.random.default_rng(seed)
    tone = np.sin(np.arange(samples) * 0.05) * np.linspace(0.1, 0.5, samples)
    return (tone + 0.05 * rng.standard_normal(samples)).astype(np.float32)


@pytest.mark.parametrize(
    "options",
    [
        FbankOptions(),
        FbankOptions(highest_hz=7_600.0),
        FbankOptions(window="hamming", full_scale=32_768.0),
        FbankOptions(bands=40),
    ],
)
def test_features_are_those_of_transformers(options):
    samples = audio(16_000)
    filters = mel_filter_bank(
        257, options.bands, options.lowest_hz, options.highest_hz, 16_000, None, "kaldi", True
    )
    expected = spectrogram(
        samples * options.full_scale,
        window_function(WINDOW, options.window, periodic=False),
        frame_length=WINDOW,
        hop_length=HOP,
        fft_length=512,
        power=2.0,
        center=False,
        preemphasis=0.97,
        mel_filters=filters,
        log_mel="log",
        mel_floor=float(np.finfo(np.float32).eps),
        remove_dc_offset=True,
    ).T
    found = KaldiFbank(options).compute(samples)
    assert found.shape == (98, options.bands)
    assert np.abs(found - expected).max() < 2e-3


def test_silence_is_the_least_energy():
    found = KaldiFbank(FbankOptions()).compute(np.zeros(800, np.float32))
    assert np.allclose(found, np.log(np.finfo(np.float32).eps))


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 3_000))
def test_centred_frames_are_those_of_mirrored_audio(samples):
    own = audio(samples)
    found = KaldiFbank(FbankOptions(whole_frames=False)).compute(own)
    assert len(found) == (samples + 80) // HOP
    places = (np.arange(len(found))[:, None] * HOP - 120 + np.arange(WINDOW)).ravel()
    while samples and ((places < 0) | (places >= samples)).any():
        places = np.where(places < 0, -places - 1, places)
        places = np.where(places >= samples, 2 * samples - 1 - places, places)
    frames = own[places].reshape(-1, WINDOW)
    whole = KaldiFbank(FbankOptions())
    expected = [whole.compute(frame)[0] for frame in frames]
    assert np.allclose(found, np.array(expected).reshape(found.shape), atol=1e-4)


@pytest.mark.parametrize(("samples", "frames"), [(0, 0), (399, 0), (400, 1), (559, 1), (560, 2)])
def test_whole_frames_lie_within_the_audio(samples, frames):
    assert KaldiFbank(FbankOptions()).compute(audio(samples)).shape == (frames, 80)


def test_frames_are_stacked_with_their_neighbours():
    # The example of sherpa-onnx's own test.
    found = stack_frames(np.arange(13, dtype=np.float32)[:, None], 7, 6)
    assert found.astype(int).tolist() == [
        [0, 0, 0, 0, 1, 2, 3],
        [3, 4, 5, 6, 7, 8, 9],
        [9, 10, 11, 12, 12, 12, 12],
    ]
    assert stack_frames(np.array([[0, 1], [2, 3]], np.float32), 3, 2).tolist() == [[0, 1, 0, 1, 2, 3]]
    assert [len(stack_frames(np.zeros((n, 1), np.float32), 7, 6)) for n in (1, 6, 7, 12, 13)] == [
        1,
        1,
        2,
        2,
        3,
    ]
