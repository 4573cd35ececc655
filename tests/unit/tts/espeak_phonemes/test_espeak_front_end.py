"""Words, marks and sounds of Spanish and French texts."""

from __future__ import annotations

import pytest

from parley.tts.espeak_phonemes.front_end import VOICES, EspeakFrontEnd
from parley.tts.kokoro.voices import DEFAULTS, LANGUAGES


class Sounds:
    """Says what the test says; other texts sound as they are written."""

    def __init__(self, **known):
        self.known, self.asked = known, []

    def phonemes(self, voice, texts):
        self.asked.append((voice, *texts))
        return [self.known.get(text, text) for text in texts]


def pronounce(text, language="es", **known):
    sounds = Sounds(**known)
    return EspeakFrontEnd(sounds, language).pronounce(text), sounds.asked


def test_words_between_marks_are_pronounced_together():
    words, asked = pronounce("Hola, \u00bfc\u00f3mo est\u00e1s?")
    assert asked == [("roa/es", "Hola", "c\u00f3mo est\u00e1s")]
    assert [(word.text, word.before, word.after) for word in words] == [
        ("Hola", "", ","),
        ("c\u00f3mo", "", ""),
        ("est\u00e1s", "", "?"),
    ]


def test_places_are_those_of_the_written_words():
    text = "  \u00a1S\u00ed!  (\u00abno\u00bb) \u2014 bien."
    words, _ = pronounce(text)
    assert [text[word.start : word.end] for word in words] == ["S\u00ed", "no", "bien"]
    assert [(word.before, word.after) for word in words] == [
        ("", "!"),
        ("(\u201c", "\u201d)"),
        ("", "."),
    ]


def test_signs_of_numbers_are_said_and_belong_to_their_words():
    text = "Debe -20,50 \u20ac o \u2212$5, al 20%."
    words, asked = pronounce(text)
    assert [question[1:] for question in asked] == [("Debe menos 20,50 \u20ac o menos $5", "al 20%")]
    assert [text[word.start : word.end] for word in words] == [
        *("Debe", "-", "20,50", "\u20ac", "o", "\u2212", "$5", "al", "20%")
    ]


def test_words_that_do_not_come_one_by_one_are_asked_for_alone():
    words, asked = pronounce(
        "a las 10:30", **{"a las 10:30": "a las dieth treinta", "10:30": "dieth treinta"}
    )
    assert [word.phonemes for word in words] == ["a", "las", "dieth treinta"]
    assert asked == [("roa/es", "a las 10:30"), ("roa/es", "a", "las", "10:30")]


@pytest.mark.parametrize(
    ("said", "sounds"),
    [
        ("t^\u0283\u02c8iko", "\u02a7\u02c8iko"),
        ("(^e^n)w\u02c8i\u02d0k(^f^r)", "w\u02c8i\u02d0k"),
        ("f\u0251^\u0303", "f\u0251\u0303"),
        ("", None),
    ],
)
def test_sounds_are_written_in_the_voices_notation(said, sounds):
    words, _ = pronounce("x", x=said)
    assert [word.phonemes for word in words] == ([] if sounds is None else [sounds])


def test_a_text_is_asked_for_at_once_and_what_came_joined_once_more():
    words, asked = pronounce("no, a las 10:30, y a las 9:15.", **{"a las 10:30": "x", "y a las 9:15": "x"})
    assert [word.phonemes for word in words] == ["no", "a", "las", "10:30", "y", "a", "las", "9:15"]
    assert [question[1:] for question in asked] == [
        ("no", "a las 10:30", "y a las 9:15"),
        ("a", "las", "10:30", "y", "a", "las", "9:15"),
    ]


def test_marks_alone_are_not_spoken():
    assert pronounce(" ... \u2014 ! ") == ([], [])


def test_every_language_of_the_voices_is_pronounced():
    assert {"en", *VOICES} == set(DEFAULTS) <= set(LANGUAGES)
