"""Clicks are found, and nothing else is."""

import numpy as np
import pytest
from clicks import CLICK, clicks, seam_scores

RATE = 24_000


def voice(seconds=2.0, pitch=120.0, seed=0):
    """Decaying pulses at the pitch with a little noise, and noise alone in the last quarter."""
    rng = np.random.default_rng(seed)
    count = int(RATE * seconds)
    pulses = np.zeros(count)
    pulses[(np.arange(0, count * 3 // 4, RATE / pitch)).astype(int)] = 1.0
    time = np.arange(400) / RATE
    ring = np.exp(-time * 400) * np.sin(2 * np.pi * 900 * time)
    audio = np.convolve(pulses, ring)[:count] * 8000 + rng.standard_normal(count) * 30
    audio[count * 3 // 4 :] = rng.standard_normal(count // 4) * 1500
    return audio


def to_pcm(audio):
    return np.round(audio).astype(np.int16)


@pytest.mark.parametrize("seed", range(5))
def test_no_place_in_a_voice_is_a_click(seed):
    audio = to_pcm(voice(seed=seed, pitch=80 + 40 * seed))
    places = list(range(1000, len(audio) - 1000, 97))
    found = clicks(audio, places, RATE)
    assert len(found) <= len(places) // 500, "onsets may stick out, but hardly ever"


def test_silence_and_rounding_are_no_clicks():
    rng = np.random.default_rng(0)
    quiet = rng.integers(-1, 2, 10_000).astype(np.int16)
    assert clicks(quiet, list(range(100, 9_900, 50)), RATE) == []
    assert clicks(np.zeros(10_000, np.int16), [5_000], RATE) == []


@pytest.mark.parametrize("jump", [300, 3000])
def test_a_jump_is_a_click(jump):
    time = np.arange(RATE) / RATE
    audio = 4000 * np.sin(2 * np.pi * 150 * time)
    audio[12_000:] += jump
    assert clicks(to_pcm(audio), [6_000, 12_000, 18_000], RATE) == [12_000]


def test_a_phase_that_starts_anew_is_a_click():
    time = np.arange(RATE // 2) / RATE
    wave = 4000 * np.sin(2 * np.pi * 163 * time) + 1000 * np.sin(2 * np.pi * 1304 * time)
    audio = to_pcm(np.concatenate([wave[:-37], wave]))
    score = seam_scores(audio, [len(wave) - 37], RATE)[0]
    assert score > 10 * CLICK


def test_a_dropped_sample_in_a_tone_is_a_click():
    time = np.arange(RATE) / RATE
    audio = to_pcm(6000 * np.sin(2 * np.pi * 400 * time))
    assert clicks(np.delete(audio, 9_000), [9_000], RATE) == [9_000]


def test_a_seam_at_the_edge_is_not_judged():
    audio = to_pcm(voice())
    assert clicks(audio, [0, 1, len(audio) - 1, len(audio)], RATE) == []
