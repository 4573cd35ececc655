"""Utterances of one turn, put together to be read as one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.asr.segmenter.turn_audio import TurnAudio, TurnUtterance, rest_of, split_text
from parley.protocol import Alternative, Word

MS = 16


def piece(number, start_ms, onset_ms, end_ms, audio_end_ms, *, unit=1):
    """An utterance whose every column is its place in the stream."""
    content = np.arange(start_ms * MS // unit, audio_end_ms * MS // unit)
    return TurnUtterance(number, start_ms * MS, onset_ms * MS, end_ms * MS, content)


def word(text, start_ms, end_ms):
    return Word(text=text, start_ms=start_ms, end_ms=end_ms, confidence=0.5)


TWO = TurnAudio(20_000).with_piece(piece(3, 0, 300, 1300, 1400)).with_piece(piece(4, 2000, 2320, 3320, 3420))


def test_the_first_utterance_has_nothing_to_be_joined_to():
    assert TurnAudio(20_000).with_piece(piece(1, 0, 300, 1300, 1400)).joined() is None
    assert TurnAudio(20_000).joined() is None


def test_hardly_anything_is_left_of_the_pause():
    joined = TWO.joined()
    assert joined.first == 3
    expected = [*range(1350 * MS), *range(2270 * MS, 3420 * MS)]
    assert joined.content.tolist() == expected
    assert (joined.begins_ms, joined.stream_ms) == ((0, 1350), (0, 2270))


def test_columns_may_be_longer_than_a_sample():
    turn = TurnAudio(20_000, 160)
    turn = turn.with_piece(piece(1, 0, 300, 1300, 1400, unit=160))
    joined = turn.with_piece(piece(2, 2000, 2320, 3320, 3420, unit=160)).joined()
    assert joined.content.tolist() == [*range(135), *range(227, 342)]
    assert (joined.begins_ms, joined.stream_ms) == ((0, 1350), (0, 2270))


def test_the_words_go_back_to_where_they_were_said():
    before, own = TWO.joined().split(
        [word("set", 310, 500), word("timer", 900, 1340), word("now", 1420, 1600)]
    )
    assert [(one.text, one.start_ms, one.end_ms) for one in before] == [
        ("set", 310, 500),
        ("timer", 900, 1340),
    ]
    assert [(one.text, one.start_ms, one.end_ms) for one in own] == [("now", 2340, 2520)]


def test_a_turn_that_is_over_is_not_joined_to_the_next():
    turn = TWO.closed().with_piece(piece(5, 5000, 5300, 6300, 6400))
    assert turn.joined() is None
    assert turn.with_piece(piece(6, 7000, 7300, 8300, 8400)).joined().first == 5


def test_only_at_the_beginning_of_a_turn_an_utterance_without_words_is_left_out():
    assert TWO.without(3).joined() is None
    assert TWO.without(4).joined().first == 3


def test_the_oldest_utterances_are_forgotten_where_there_are_too_many():
    turn = TurnAudio(3_000)
    for number in range(1, 6):
        turn = turn.with_piece(
            piece(number, 2000 * number, 2000 * number + 300, 2000 * number + 1300, 2000 * number + 1400)
        )
    assert turn.joined().first == 4
    assert turn.with_piece(piece(9, 20_000, 20_300, 24_000, 24_100)).joined() is None


def test_turn_audio_without_joining_is_empty():
    assert TurnAudio(0).with_piece(piece(1, 0, 300, 1300, 1400)).pieces == ()


@given(st.lists(st.tuples(*[st.integers(0, 900)] * 4), min_size=2, max_size=8), st.integers(500, 8_000))
def test_all_speech_is_in_it_once_and_in_order(lengths, limit_ms):
    turn, at = TurnAudio(limit_ms), 0
    spoken = {}
    for number, (gap, preroll, speech, tail) in enumerate(lengths, 1):
        start = at + gap
        onset, end = start + preroll, start + preroll + speech
        at = end + tail
        spoken[number] = set(range(onset * MS, end * MS))
        turn = turn.with_piece(piece(number, start, onset, end, at))
    joined = turn.joined()
    if joined is None:
        return
    content = joined.content.tolist()
    assert content == sorted(set(content))
    assert len(content) <= limit_ms * MS
    assert set(content) >= set().union(*(spoken[number] for number in spoken if number >= joined.first))


@pytest.mark.parametrize(
    ("texts", "before", "rest"),
    [
        (["set a timer", "set the timer"], "set", ["a timer", "the timer"]),
        (["set a timer", "sat a timer"], "set a", ["timer"]),
        (["set", "settle"], "set", [""]),
        (["hello", "hallo"], "", ["hello", "hallo"]),
    ],
)
def test_readings_that_agree_about_the_beginning_are_left(texts, before, rest):
    alternatives = [Alternative(text=text, score=-1.0) for text in texts]
    words = [word(text, 0, 10) for text in before.split()]
    assert [own.text for own in rest_of(alternatives, words)] == rest


@pytest.mark.parametrize(
    ("text", "before", "parts"),
    [
        ("Set a timer for 10 minutes.", ["Set a timer for."], ["Set a timer for", "10 minutes."]),
        ("Set a timer for ten.", ["set a time four"], ["Set a timer for", "ten."]),
        ("My fellow Americans ask not.", ["My fellow-american."], ["My fellow", "Americans ask not."]),
        ("One two three four", ["one", "two three"], ["One", "two three", "four"]),
        (
            "It was the age of wisdom. It was the age of foolishness. It was the epoch.",
            ["It was the age of wisdom.", "It was the age of foolishness,"],
            ["It was the age of wisdom.", "It was the age of foolishness.", "It was the epoch."],
        ),
        ("Ten minutes.", [""], ["", "Ten minutes."]),
        ("Set a timer.", ["Set a timer."], ["Set a timer.", ""]),
        ("", ["Set a timer."], ["", ""]),
        ("Yes.", ["No.", "", "Hm."], ["Yes.", "", "", ""]),
    ],
)
def test_a_text_without_times_is_parted_by_what_was_said_before(text, before, parts):
    assert split_text(text, before) == parts


WORD = st.sampled_from(["a", "b", "it", "was", "It", "was,", "the."])


@settings(deadline=None)
@given(st.lists(WORD), st.lists(st.lists(WORD).map(" ".join), min_size=1, max_size=4))
def test_no_word_is_lost_or_said_twice(words, before):
    parts = split_text(" ".join(words), before)
    assert len(parts) == len(before) + 1
    assert " ".join(filter(None, parts)).split() == words


@settings(deadline=None)
@given(st.lists(st.lists(WORD, min_size=1).map(" ".join), min_size=1, max_size=4), st.lists(WORD))
def test_equal_text_keeps_its_division(before, last):
    assert split_text(" ".join([*before, *last]), before) == [*before, " ".join(last)]
