"""Whose speech is the caller's."""

import numpy as np
import pytest

from parley.turns.caller_voice import CallerVoice, loudness

LEVEL = 60.0


def vector(angle):
    return np.array([np.cos(angle), np.sin(angle)], np.float32)


OWN, ALIKE, OTHER = vector(0.0), vector(1.2), vector(1.5)  # likeness 1, 0.36 and 0.07


@pytest.fixture
def voice():
    known = CallerVoice("en")
    assert known.accepts(OWN, LEVEL, 2.0, 0.0)
    return known


def test_first_voice_is_the_callers_when_it_is_long_enough():
    voice = CallerVoice("en")
    assert voice.accepts(OWN, LEVEL, 0.5, 0.0)
    assert not voice.is_known
    assert voice.accepts(OTHER, LEVEL, 1.0, 1.0)
    assert voice.is_known
    assert not voice.is_other(OTHER, LEVEL)


@pytest.mark.parametrize(
    ("heard", "softer_db", "is_other"),
    [(OWN, 0, False), (OWN, 15, False), (ALIKE, 0, False), (ALIKE, 10, True), (OTHER, 0, True)],
)
def test_softer_speech_must_be_more_like_the_caller(voice, heard, softer_db, is_other):
    assert voice.is_other(heard, LEVEL - softer_db) is is_other


def test_voice_after_handing_over_is_the_callers(voice):
    voice.hear("One moment, here is my wife.")
    assert voice.accepts(OWN, LEVEL, 1.0, 3.0)
    assert voice.accepts(OTHER, LEVEL, 1.0, 5.0)
    assert voice.is_other(OWN, LEVEL)


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("en", "I'll pass you to my husband"),
        ("en", "You can talk to her."),
        ("de", "Ich gebe Ihnen meine Frau."),
        ("es", "Le paso con mi marido."),
        ("fr", "Je vous passe ma femme."),
    ],
)
def test_handing_over_is_known_in_each_language(language, text):
    voice = CallerVoice(language)
    voice.accepts(OWN, LEVEL, 2.0, 0.0)
    voice.hear(text)
    assert voice.accepts(OTHER, LEVEL, 1.0, 5.0)


def test_third_utterance_in_a_row_of_another_voice_is_accepted(voice):
    assert [voice.accepts(OTHER, LEVEL, 2.0, 5.0) for _ in range(4)] == [False, False, True, True]


def test_softer_voice_is_accepted_when_the_caller_is_long_gone(voice):
    assert not any(voice.accepts(OTHER, LEVEL - 10, 2.0, at) for at in (5.0, 10.0, 20.0, 59.0))
    assert voice.accepts(OTHER, LEVEL - 10, 2.0, 61.0)


def test_much_louder_voice_takes_over_at_once(voice):
    assert voice.accepts(OTHER, LEVEL + 7, 1.0, 5.0)
    assert voice.is_other(OWN, LEVEL + 7)


def test_voice_is_learned_from_later_turns(voice):
    before = float(OTHER @ OWN)
    for at in range(5):
        assert voice.accepts(vector(0.4), LEVEL, 4.0, float(at))
    assert not voice.is_other(OTHER, LEVEL)
    assert before < 0.15


def test_loudness_is_that_of_the_loud_part():
    speech = np.zeros(16_000, np.int16)
    speech[:4_000] = 1_000
    assert loudness(speech) == pytest.approx(60.0, abs=0.1)
