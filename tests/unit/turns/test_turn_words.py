"""What the weights of sound and words are fitted to, and how."""

from __future__ import annotations

import numpy as np
import pytest
import turn_words

from parley.turns.endpointing import features, join
from parley_testing.voices import KOKORO


def test_turns_are_judged_by_other_sentences_and_voices_than_the_weights_are_fitted_to():
    fitted, judged = turn_words.own_sentences(1), turn_words.judged_sentences(1)
    voices = {KOKORO.voices.get(one.line.voice, one.line.voice) for one in judged}
    assert len(fitted) > 60
    assert len(judged) > 100
    assert {one.line.voice for one in fitted}.isdisjoint(voices)
    texts = {one.line.text.lower().rstrip(".?!") for one in judged}
    assert {one.line.text.lower().rstrip(".?!") for one in fitted}.isdisjoint(texts)


def test_the_fit_finds_what_the_labels_depend_on():
    """Here on the words alone."""
    chance = np.random.default_rng(1)
    measured = [
        turn_words.Measured(bool(text > 0.1), "", float(sound), float(text))
        for sound, text in zip(chance.random(400), np.exp(-5 * chance.random(400)), strict=True)
    ]
    bias, sound, text = turn_words.fit(measured)
    assert abs(sound) < 0.5
    assert text > 1.5
    assert bias + text * np.log(0.1) == pytest.approx(0.0, abs=1.0)


def test_shares_of_pairs_and_of_mistakes():
    whole, cut = np.array([0.9, 0.8, 0.5]), np.array([0.1, 0.5])
    assert turn_words.area(whole, cut) == pytest.approx(5.5 / 6)
    assert turn_words.mistaken(np.arange(100.0), np.array([4.0, 50.0])) == 0.5


@pytest.mark.parametrize("sound", [None, 0.0, 1.0])
@pytest.mark.parametrize("text", [0.0, 1.0])
def test_sound_and_words_make_one_probability(sound, text):
    assert 0 < join(sound, text) < 1
    assert all(np.isfinite(features(sound, text)))
    assert join(sound, 1.0) > join(sound, 0.0)
    assert join(1.0, text) > join(0.0, text)
