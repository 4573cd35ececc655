"""The spoken form of texts, and its alignment with the written one."""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.tts.normalization import nemo
from parley.tts.normalization.normalizer import TextNormalizer, align


def pairs(written, spoken):
    return [(written[word.start : word.end], word.spoken) for word in align(written, spoken)]


@pytest.mark.parametrize(
    ("written", "spoken", "expected"),
    [
        ("", "", []),
        ("Hello there.", "Hello there.", [("Hello", "Hello"), ("there.", "there.")]),
        (
            "It costs $5.99 today.",
            "It costs five dollars ninety nine cents today.",
            [
                ("It", "It"),
                ("costs", "costs"),
                ("$5.99", "five dollars ninety nine cents"),
                ("today.", "today."),
            ],
        ),
        (
            "Jan. 5, 2024",
            "january fifth, twenty twenty four",
            [("Jan.", "january"), ("5,", "fifth,"), ("2024", "twenty twenty four")],
        ),
        ("So [laugh] yes", "So yes", [("So", "So"), ("[laugh]", ""), ("yes", "yes")]),
        ("a b", "a and b", [("a", "a and"), ("b", "b")]),
        ("b", "a b", [("b", "a b")]),
        ("...", "", [("...", "")]),
    ],
)
def test_examples(written, spoken, expected):
    assert pairs(written, spoken) == expected


@given(
    st.lists(st.text(alphabet="ab1$.", min_size=1, max_size=4), max_size=8),
    st.lists(st.text(alphabet="ab1$.", min_size=1, max_size=4), max_size=8),
)
def test_normalization_keeps_all_words(written, spoken):
    words = align(" ".join(written), " ".join(spoken))
    assert [" ".join(written)[word.start : word.end] for word in words] == written
    if written:
        assert " ".join(word.spoken for word in words if word.spoken).split() == spoken


def shout(text):
    return text.upper()


def normalizer(*, tags=False, grammar=shout):
    return TextNormalizer({"en": grammar}, tags=tags)


def test_plain_text_is_not_looked_at():
    def grammar(text):
        raise AssertionError(text)

    for text in ("Hello there, you!", "Isn't it? “Yes” — she said...", "Grüße aus Köln.", "", " "):
        spoken = normalizer(grammar=grammar).normalize(text, "en")
        assert spoken.text == " ".join(text.split())


def test_fractions_are_looked_at():
    assert normalizer().normalize("add \u00bd cup", "en").text == "ADD \u00bd CUP"


def test_minus_of_any_font_is_the_one_that_grammars_read():
    spoken = normalizer(grammar=lambda text: text.replace("-5", "minus five"))
    for sign in "-\u2212\ufe63\uff0d":
        assert spoken.normalize(f"it is {sign}5 today", "en").text == "it is minus five today"


def test_other_text_is():
    assert normalizer().normalize("room 5", "en").text == "ROOM 5"
    assert normalizer().normalize("e.g. this", "en").text == "E.G. THIS"


def test_no_space_before_punctuation():
    spoken = normalizer(grammar=lambda text: text.replace("km.", "kilometres ."))
    assert spoken.normalize("It is 20 km. Is it?", "en").text == "It is 20 kilometres. Is it?"


def test_other_languages_pass_unchanged():
    assert normalizer().normalize("Zimmer 5", "de").text == "Zimmer 5"


@pytest.mark.parametrize(
    ("text", "with_tags", "without"),
    [
        ("[laugh] pay 5", "[laugh] PAY 5", "PAY 5"),
        ("So[clear throat]well 5.", "So [clear throat] WELL 5.", "So WELL 5."),
        ("[sigh]", "[sigh]", ""),
        ("see [1]", "SEE [1]", "SEE [1]"),
        ("a [] 1", "A [] 1", "A [] 1"),
        ("Press [Enter], 5 [Option B]", "PRESS [ENTER], 5 [OPTION B]", "PRESS [ENTER], 5 [OPTION B]"),
    ],
)
def test_tags(text, with_tags, without):
    assert normalizer(tags=True).normalize(text, "en").text == with_tags
    assert normalizer(tags=False).normalize(text, "en").text == without


def test_spans_are_those_of_the_written_text():
    text = "So [laugh] pay\x00 it\t😀 5!"
    words = normalizer().normalize(text, "en").words
    assert [text[word.start : word.end].strip("\x00") for word in words] == text.replace("\x00", " ").split()
    assert [word.spoken for word in words] == ["So", "", "PAY", "IT", "", "5!"]


def test_a_grammar_that_fails_leaves_the_text_as_it_is(caplog):
    def grammar(text):
        raise RuntimeError("no path")

    with caplog.at_level(logging.ERROR):
        assert normalizer(grammar=grammar).normalize("#1 is it", "en").text == "#1 is it"
    assert "RuntimeError" in caplog.text
    assert "no path" not in caplog.text, "errors of grammars repeat the text"


def test_a_grammar_is_compiled_once_by_several_processes(tmp_path, monkeypatch):
    opened = []

    def compile_slowly(language, folder):
        opened.append((language, folder.name.startswith(".")))
        time.sleep(0.2)

    monkeypatch.setattr(nemo, "_open", compile_slowly)
    with ThreadPoolExecutor(3) as pool:  # a lock of a file is of who has opened it
        list(pool.map(lambda _: nemo.load_grammars(["en"], tmp_path), range(3)))
    assert opened.count(("en", True)) == 1, "compiled"
    assert opened.count(("en", False)) == 3, "read"
