"""What becomes of the sound of a clause."""

from __future__ import annotations

import numpy as np
import pytest

from parley.errors import InferenceError
from parley.tts.clauses.network import CEILING, Level, amplify, check_sound, pause_samples, trim

RATE = 24_000


def tone(seconds, level=0.5, hertz=200):
    return (level * np.sin(2 * np.pi * hertz * np.arange(int(seconds * RATE)) / RATE)).astype(np.float32)


def silence(seconds):
    return np.zeros(int(seconds * RATE), np.float32)


def test_silence_is_taken_off_and_the_soft_end_of_a_word_is_not():
    soft = tone(0.1, 0.005)  # -40 dB below the rest
    audio = np.concatenate([silence(0.35), tone(0.5), soft, silence(0.3)])
    trimmed = trim(audio, RATE)
    assert trimmed.cut == pytest.approx(0.34 * RATE, abs=0.006 * RATE)
    assert len(trimmed.audio) == pytest.approx((0.01 + 0.6 + 0.03) * RATE, abs=0.011 * RATE)
    end_of_word = trimmed.audio[int(0.52 * RATE) : int(0.6 * RATE)]
    assert np.abs(end_of_word).max() == pytest.approx(0.005, rel=0.01)


def test_both_ends_are_at_zero_even_of_sound_without_silence_around_it():
    audio = trim(np.full(RATE, 0.5, np.float32), RATE).audio
    assert abs(audio[0]) < 1e-3
    assert abs(audio[-1]) < 1e-3
    assert np.abs(np.diff(audio)).max() < 0.01


@pytest.mark.parametrize("length", [1, 50, 119, 121, 500])
def test_short_sounds(length):
    trimmed = trim(np.full(length, 0.5, np.float32), RATE)
    assert len(trimmed.audio) == length
    assert np.abs(trimmed.audio).max() <= 0.5


def test_what_is_too_loud_is_turned_down_and_the_rest_is_left():
    audio = np.concatenate([tone(0.2, 0.2), tone(0.02, 0.9), tone(0.2, 0.2)])
    loud = amplify(audio, 6.0, RATE).astype(np.float64) / 32767
    assert np.abs(loud).max() <= CEILING + 1e-4
    assert np.abs(loud).max() > 0.95 * CEILING
    quiet = slice(0, int(0.19 * RATE))
    np.testing.assert_allclose(loud[quiet], audio[quiet] * 10 ** (6 / 20), atol=1e-3)
    slope = np.abs(np.diff(loud)).max()
    assert slope < 2 * np.abs(np.diff(audio)).max()


def test_pieces_have_the_level_of_the_whole():
    audio = (tone(0.3, 0.6) * np.linspace(0, 1, int(0.3 * RATE))).astype(np.float32)
    level = Level(9.0, RATE)
    whole = level.apply(audio, 0, slice(0, len(audio)))
    assert np.abs(whole).max() > 0.95 * CEILING * 32767
    pieces, begin = [], 0
    for end in (1_000, 1_500, 4_321, len(audio)):
        first, last = max(0, begin - level.margin), min(end + level.margin, len(audio))
        pieces.append(level.apply(audio[first:last], first, slice(begin - first, end - first)))
        begin = end
    np.testing.assert_array_equal(np.concatenate(pieces), whole)


def test_what_fits_is_only_amplified():
    audio = tone(0.1, 0.3)
    np.testing.assert_allclose(amplify(audio, -6.0, RATE), audio * 0.50119 * 32767, atol=1)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_no_numbers_are_a_failure(bad):
    audio = tone(0.1)
    audio[7] = bad
    with pytest.raises(InferenceError, match="not numbers"):
        check_sound(audio)


@pytest.mark.parametrize("audio", [silence(0.1), silence(0.0), tone(0.1, 5e-4)])
def test_silence_is_a_failure(audio):
    with pytest.raises(InferenceError, match="only silence"):
        check_sound(audio)


def test_pauses_follow_the_marks():
    sentence, comma, none = (pause_samples(marks, RATE) for marks in (".”", ",", ""))
    assert sentence > comma > none > 0
    assert pause_samples("?…", RATE) == pause_samples("…", RATE)
