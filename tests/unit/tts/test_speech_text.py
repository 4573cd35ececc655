"""Segments of streamed text, and marks for its words."""

from __future__ import annotations

import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.tts.text import SegmentLimits, TextSegmenter, WordMarker

WORDS = [
    *("Hello", "there,", "3.5", "Dr.", "e.g.", "p.m.", "stop.", "what?", "no!", "a", "I", "J.", "and"),
    *("then;", "so", "1.", "14:05", "1,000", "(yes.)", "etc.", "\n", "...", "😀"),
]


def cut(text, size=None):
    segmenter = TextSegmenter()
    size = size or len(text) or 1
    found = [segment for at in range(0, len(text), size) for segment in segmenter.push(text[at : at + size])]
    return found + segmenter.finish()


@pytest.mark.parametrize(
    ("text", "segments"),
    [
        ("Hello! How can I help?", ["Hello!", "How can I help?"]),
        (
            "Once upon a time, there was a robot. It waved.",
            ["Once upon a time,", "there was a robot.", "It waved."],
        ),
        ("It is 3.5 degrees at 14:05 now. Good.", ["It is 3.5 degrees at 14:05 now.", "Good."]),
        ("See Dr. Smith now. Good.", ["See Dr. Smith now.", "Good."]),
        ("Call J. Smith now. Good.", ["Call J. Smith now.", "Good."]),
        ("Take some, e.g. tea. Good.", ["Take some, e.g. tea.", "Good."]),
        ("Take bus No. 5 or Nos. 6 and 7. Good.", ["Take bus No. 5 or Nos. 6 and 7.", "Good."]),
        ("No. We don't. No.", ["No.", "We don't.", "No."]),
        ("At 5 p.m. we go. Good.", ["At 5 p.m. we go.", "Good."]),
        ("At 5 p.m. We go.", ["At 5 p.m.", "We go."]),
        ("1. Tea\n2. Rice", ["1. Tea", "2. Rice"]),
        ("It costs 1,000 euros in all. Good.", ["It costs 1,000 euros in all.", "Good."]),
        ("You and I. Good.", ["You and I.", "Good."]),
        ("Okay", ["Okay"]),
        ("😀 ...", []),
        ("", []),
    ],
)
def test_cuts(text, segments):
    assert cut(text) == segments
    assert cut(text, 1) == segments


@pytest.mark.parametrize(
    ("text", "segments"),
    [
        ("The capital of France is Paris.", ["The capital of France", "is Paris."]),
        ("The head of the United States was elected.", ["The head of the United States", "was elected."]),
        ("It takes about three and a half hours.", ["It takes about three and a half hours."]),
        ("The sun is warm, and it comes up soon.", ["The sun is warm,", "and it comes up soon."]),
        ("Water boils at about 100 in towns.", ["Water boils at about 100 in towns."]),
        ("Mr. Jones and Mrs. Smith were here.", ["Mr. Jones and Mrs. Smith", "were here."]),
        ("Yes, we are open today.", ["Yes, we are open today."]),
    ],
)
def test_first_words_are_spoken_early_where_a_speaker_may_pause(text, segments):
    segmenter = TextSegmenter()
    words = re.findall(r"\s*\S+", text)  # as language models write
    found = [segment for word in words for segment in segmenter.push(word, early=True)]
    assert found + segmenter.finish() == segments


def test_a_number_is_not_cut_before_its_end_is_known():
    segmenter = TextSegmenter()
    assert segmenter.push("It is 3.") == []
    assert segmenter.push("5 degrees. ") == ["It is 3.5 degrees."]


def test_long_text_without_marks_is_cut_between_words():
    limits = SegmentLimits()
    segments = cut("word " * 200)
    assert len(segments[0]) <= limits.first_longest
    assert all(len(segment) <= limits.longest for segment in segments)
    assert set(" ".join(segments).split()) == {"word"}


def calls_to_cut(text):
    calls = 0

    def count(frame, event, arg):
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        cut(text)
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize("unit", ["a. ", "mr. ", "etc. ", "a, ", "a\n", ". ", ".'", "1,", "\n", "a", "。"])
def test_push_long_text_is_linear_work(unit):
    assert calls_to_cut(unit * 2_000) <= 4.5 * calls_to_cut(unit * 500)


@pytest.mark.parametrize("marks", ["." * 1_000, " " * 1_000, "\n" * 1_000, "😀 " * 500])
def test_push_marks_without_words_are_left_out(marks):
    segments = cut(marks + "Hello there. Good.")
    assert segments[-1] == "Good."
    assert segments[0].lstrip(marks) == "Hello there."
    assert max(map(len, segments)) <= SegmentLimits().longest


@given(st.lists(st.sampled_from(WORDS), max_size=50), st.integers(1, 12))
def test_how_the_text_arrives_does_not_matter_and_nothing_is_lost(words, size):
    text = " ".join(words)
    segments = cut(text)
    assert cut(text, size) == segments
    assert all(segment == segment.strip() and any(map(str.isalnum, segment)) for segment in segments)
    # Only an end without a letter or digit may be left unsaid.
    said, everything = "".join("".join(segments).split()), "".join(text.split())
    assert everything.startswith(said)
    assert not any(map(str.isalnum, everything[len(said) :]))


@pytest.mark.parametrize(
    ("text", "spoken", "dropped"),
    [
        ("It is ten. And then it", ["It is ten."], " And then it"),
        ("It is ten. And then. So", ["It is ten.", "And then."], " So"),
        ("It is ten. Half past.", ["It is ten.", "Half past."], ""),
        ('She said "no."', ['She said "no."'], ""),
        ("Half a sent", ["Half a"], " sent"),
        ("unbelieva", [], "unbelieva"),
        ("", [], ""),
    ],
)
def test_text_that_was_cut_off_ends_with_a_whole_sentence_or_word(text, spoken, dropped):
    segmenter = TextSegmenter()
    segments = segmenter.push(text)
    last, rest = segmenter.finish_cut()
    assert ([*segments, *last], rest) == (spoken, dropped)
    assert segmenter.finish() == []


def spans(text, marks):
    return [(text[m.start_char : m.end_char], m.at_sample) for m in marks]


def test_one_mark_per_word_with_its_punctuation():
    text = "Hello, Zürich!"
    marker = WordMarker(text)
    assert spans(text, marker.marks_at(0, 0)) == [("Hello,", 0)]
    assert spans(text, marker.marks_at(7, 500)) == [("Zürich!", 500)]
    assert marker.remaining_marks() == []


def test_several_events_of_one_word_count_once():
    text = "at 10:30 sharp"
    marker = WordMarker(text)
    events = [(0, 0), (3, 100), (6, 200), (9, 300)]
    assert [spans(text, marker.marks_at(*event)) for event in events] == [
        [("at", 0)],
        [("10:30", 100)],
        [],
        [("sharp", 300)],
    ]


def test_words_without_an_event_belong_to_the_one_before():
    text = "- warm - and sunny ..."
    marker = WordMarker(text)
    assert spans(text, marker.marks_at(2, 50)) == [("-", 0), ("warm", 50)]
    assert spans(text, marker.marks_at(9, 300)) == [("-", 50), ("and", 300)]
    assert spans(text, marker.remaining_marks()) == [("sunny", 300), ("...", 300)]


def test_a_position_on_the_space_is_the_next_word():
    text = "Hi there"
    marker = WordMarker(text)
    assert spans(text, marker.marks_at(2, 10)) == [("Hi", 0), ("there", 10)]


def test_positions_outside_the_text_are_ignored():
    marker = WordMarker("a b")
    assert marker.marks_at(99, 5) == []
    assert len(marker.remaining_marks()) == 2
    assert WordMarker("").remaining_marks() == []
