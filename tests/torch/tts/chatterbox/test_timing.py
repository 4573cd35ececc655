"""Times of words, and the split of long texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.tts.normalization.normalizer import align
from parley.tts.text import split_text
from parley_torch.tts.chatterbox.timing import Pace, SegmentTimes, letters_of

RATE = 25_000  # a thousand samples for a token


def times(text, pace=None, *, spoken=None, first_char=0, first_sample=0):
    return SegmentTimes(
        align(text, text if spoken is None else spoken),
        first_char=first_char,
        pace=pace or Pace(),
        rate=RATE,
        first_sample=first_sample,
    )


def test_words_share_the_time_by_their_letters():
    heard = times("aa bbbbbb cc").advance(10_000, 10, complete=True)
    assert [mark.at_sample for mark in heard.marks] == [0, 2_000, 8_000]


def test_the_spoken_text_counts():
    heard = times("$5 now", spoken="five dollars now").advance(14_000, 14, complete=True)
    assert [mark.at_sample for mark in heard.marks] == [0, 11_000]


def test_punctuation_pauses():
    assert [letters_of(word) for word in ("abc", "abc,", 'abc."', "", "[laugh]")] == [3, 5, 7, 0, 5]


def test_places_are_those_of_the_utterance():
    segment = times("aa bb", first_char=100, first_sample=50)
    heard = segment.advance(4_000, 4, complete=True)
    assert [(mark.start_char, mark.end_char, mark.at_sample) for mark in heard.marks] == [
        (100, 102, 50),
        (103, 105, 2_050),
    ]
    assert (heard.start_char, heard.end_char) == (100, 105)


def test_a_known_total_corrects_the_estimate():
    segment = times("aaaaa bbbbb")  # 17 tokens, if it is spoken at the usual pace
    first = segment.advance(5_000, 8, complete=False)
    assert [mark.at_sample for mark in first.marks] == [0]
    assert (first.start_char, first.end_char) == (0, 5)
    second = segment.advance(20_000, 40, complete=True)
    assert [mark.at_sample for mark in second.marks] == [20_000]
    assert (second.start_char, second.end_char) == (0, 11), "the first word went on"
    third = segment.advance(15_000, 40, complete=True)
    assert (third.marks, third.start_char, third.end_char) == ([], 6, 11)


def test_empty_audio_has_no_marks():
    """Even where a smaller total moves the begin of a word into audio that was sent before."""
    segment = times("a b")
    assert len(segment.advance(1_000, 1_000, complete=False).marks) == 1
    assert segment.advance(0, 1, complete=True).marks == []
    assert len(segment.finish(1).marks) == 1


def test_the_pace_is_measured():
    pace = Pace()
    slow = times("aaaaaaaaaaaa bbbbbbbbbbbb", pace)
    slow.advance(72_000, 72, complete=True)
    slow.finish(72)
    assert pace.tokens_per_letter == pytest.approx((1.7 + 3.0) / 2)
    pace.update(20, 100_000)
    assert pace.tokens_per_letter < 5
    pace.update(3, 100)  # too short to measure


words = st.lists(st.text(alphabet="ab.5", min_size=1, max_size=6), min_size=1, max_size=12)


@given(words, st.lists(st.integers(0, 20), max_size=12), st.booleans(), st.integers(0, 40))
def test_marks_are_monotone_and_complete(words, steps, early, more):
    """Whatever comes when, in whatever pieces."""
    text = " ".join(words)
    segment = times(text)
    total = sum(steps)
    marks, sample, known = [], 0, 0
    for step in steps:
        known = min(total, known + step + more)
        heard = segment.advance(step * 1_000, known, complete=early or known == total)
        for mark in heard.marks:
            assert sample <= mark.at_sample < sample + step * 1_000
            assert heard.start_char <= mark.start_char < mark.end_char <= heard.end_char
        sample += step * 1_000
        marks += heard.marks
    marks += segment.finish(total).marks
    assert [text[mark.start_char : mark.end_char] for mark in marks] == text.split()
    at = [mark.at_sample for mark in marks]
    assert at == sorted(at)
    assert at[-1] <= sample


@given(st.text(alphabet="ab. \n,!?\u3002", max_size=300), st.integers(20, 80))
def test_segments_make_up_the_text(text, longest):
    pieces = split_text(text, longest)
    assert "".join(pieces) == text


def test_segments_are_bounded():
    text = "This sentence has some words. " * 20 + "word " * 60
    assert max(len(piece.strip()) for piece in split_text(text, 100)) <= 100
    assert all(piece.strip().endswith(".") for piece in split_text("This is one. " * 30, 100))
