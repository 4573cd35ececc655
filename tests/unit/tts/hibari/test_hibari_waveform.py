"""Spectra and pitch to sound."""

from __future__ import annotations

import numpy as np
import pytest

from parley.tts.hibari.waveform import HOP, SAMPLE_RATE, Spectrum, _analyse, _join, make_pulses, make_waveform

FRAMES = 40


def spectrum(**parts):
    silent = np.full((601, FRAMES), -30, np.float32)
    flat = np.zeros((601, FRAMES), np.float32)
    levels = {"harmonic": silent, "phase": flat, "noise": silent, "tone": silent, "angle": flat}
    pitch = np.full(FRAMES, 150, np.float32)
    return Spectrum(**{**levels, "pitch_hz": pitch, **parts})


def test_joined_frames_are_what_was_analysed():
    audio = np.random.default_rng(0).standard_normal(FRAMES * HOP).astype(np.float32)
    joined = HOP * _join(_analyse(audio))
    np.testing.assert_allclose(joined[2 * HOP : -2 * HOP], audio[2 * HOP : -2 * HOP], atol=1e-4)


def test_pulses_are_all_harmonics_below_the_highest():
    pitch = np.full(FRAMES, 150, np.float32)
    at = 2 * np.pi * 150 * np.arange(1, FRAMES * HOP + 1) / SAMPLE_RATE
    expected = sum(np.cos(number * at) for number in range(1, 11_000 // 150 + 1))
    np.testing.assert_allclose(make_pulses(pitch), expected, atol=0.02)


def test_there_are_no_pulses_without_a_voice():
    pitch = np.array([0] * 20 + [200] * 20, np.float32)
    pulses = make_pulses(pitch)
    assert not pulses[: 19 * HOP].any()
    assert pulses[21 * HOP :].any()


@pytest.mark.parametrize("part", ["harmonic", "noise", "tone"])
def test_each_part_is_as_loud_as_its_magnitude(part):
    quiet, loud = (
        make_waveform(spectrum(**{part: np.full((601, FRAMES), level, np.float32)}), np.random.default_rng(1))
        for level in (-4.0, -3.0)
    )
    assert len(quiet) == FRAMES * HOP
    np.testing.assert_allclose(loud, np.e * quiet, atol=1e-3)
    limited, beyond = (
        make_waveform(spectrum(**{part: np.full((601, FRAMES), level, np.float32)}), np.random.default_rng(1))
        for level in (7.0, 90.0)
    )
    np.testing.assert_allclose(limited, beyond)


def test_the_phase_moves_the_harmonics():
    still, turned = (
        make_waveform(
            spectrum(
                harmonic=np.full((601, FRAMES), -3, np.float32),
                phase=np.full((601, FRAMES), phase, np.float32),
            ),
            np.random.default_rng(1),
        )
        for phase in (0.0, 20.0)  # half a turn
    )
    np.testing.assert_allclose(turned[2 * HOP : -2 * HOP], -still[2 * HOP : -2 * HOP], atol=1e-3)
