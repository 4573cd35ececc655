"""Words of tokens, and which words of partial texts are stable."""

from pathlib import Path

import numpy as np
import pytest

from parley.asr.checkpoint import Checkpoint, ParakeetConfig
from parley.asr.decoding.greedy import Tokens
from parley.asr.decoding.words import (
    StablePrefix,
    alternatives_of,
    combine_alternatives,
    confidence_of,
    spell,
    text_of,
    words_of,
)
from parley.protocol import Alternative

VOCABULARY = ("<unk>", "▁hel", "lo", "▁", "w", "orld", ".", "'s", "<blk>")
CHECKPOINT = Checkpoint(Path(), ParakeetConfig(), VOCABULARY, blank=8)


RNNT = Checkpoint(Path(), ParakeetConfig(durations=()), VOCABULARY, blank=8)


def words(*tokens, offset_ms=0, checkpoint=CHECKPOINT):
    """Words of (token, frame, duration, confidence) tuples."""
    columns = [list(column) for column in zip(*tokens, strict=True)] or [[], [], [], []]
    arrays = [np.array(column, np.int32) for column in columns[:3]]
    return words_of(Tokens(*arrays, np.array(columns[3], np.float32)), checkpoint, offset_ms=offset_ms)


def test_no_tokens_are_no_words():
    assert words() == []
    assert text_of([]) == ""
    assert confidence_of([]) == 0.0


def test_a_mark_begins_a_word_and_times_are_those_of_its_tokens():
    first, second = words((1, 2, 1, 0.9), (2, 3, 2, 0.7), (3, 10, 1, 0.5), (4, 11, 0, 0.5), (5, 11, 4, 0.5))
    assert (first.text, first.start_ms, first.end_ms) == ("hello", 160, 400)
    assert (second.text, second.start_ms, second.end_ms) == ("world", 800, 1200)
    assert first.confidence == pytest.approx(0.8)
    assert confidence_of([first, second]) == pytest.approx(0.65)


@pytest.mark.parametrize(
    "ids", [[], [2, 1], [1, 2, 3, 4, 5, 6], [0, 1, 7, 3, 1, 0, 2], [3, 3, 4], [6, 1, 3]], ids=str
)
def test_a_text_is_spelled_as_its_words_are(ids):
    assert spell(ids, CHECKPOINT) == text_of(words(*((token, 0, 1, 1.0) for token in ids)))


def test_readings_of_the_same_text_are_one():
    readings = [([1, 2], -0.1), ([3, 4], -0.2), ([1, 0, 2], -0.3), ([4], -0.4)]
    assert [(own.text, own.score) for own in alternatives_of(readings, CHECKPOINT, 2)] == [
        ("hello", -0.1),
        ("w", -0.2),
    ]


def test_readings_of_parts_are_combined_best_first():
    def part(**scores):
        return [Alternative(text=text, score=score) for text, score in scores.items()]

    found = combine_alternatives([part(a=-1.0, b=-1.5), part(x=-1.0, y=-3.0)], 3)
    assert [(own.text, own.score) for own in found] == [("a x", -1.0), ("b x", -1.25), ("a y", -2.0)]
    assert combine_alternatives([part(a=-1.0), []], 3) == []
    assert combine_alternatives([], 3) == []


def test_times_are_counted_from_the_offset():
    (word,) = words((1, 0, 1, 1.0), offset_ms=1_000)
    assert (word.start_ms, word.end_ms) == (1_000, 1_080)


def test_punctuation_takes_no_time():
    (word,) = words((1, 0, 1, 1.0), (2, 1, 1, 1.0), (6, 9, 2, 1.0))
    assert (word.text, word.end_ms) == ("hello.", 160)


def test_an_ending_belongs_to_its_word():
    assert text_of(words((1, 0, 1, 1.0), (2, 1, 1, 1.0), (7, 2, 1, 1.0))) == "hello's"


def test_control_tokens_and_a_lonely_mark_are_not_words():
    assert words((0, 0, 1, 1.0), (3, 4, 1, 1.0)) == []


def test_tags_of_languages_are_not_words_wherever_they_are():
    tagged = Checkpoint(Path(), ParakeetConfig(), ("<en-US>", "▁hel", "lo", "▁<es-ES>", "<blk>"), blank=4)
    for ids in ([0, 1, 2, 0], [1, 2, 3], [3, 1, 2]):
        found = words(*((token, at, 1, 0.9) for at, token in enumerate(ids)), checkpoint=tagged)
        assert text_of(found) == spell(ids, tagged) == "hello"


def test_tokens_before_the_first_mark_are_a_word():
    assert [word.text for word in words((4, 0, 1, 1.0), (5, 1, 1, 1.0), (1, 2, 1, 1.0))] == ["world", "hel"]


def test_without_durations_a_word_ends_a_frame_after_its_last_token():
    first, second = words((1, 2, 0, 1.0), (2, 4, 0, 1.0), (1, 9, 0, 1.0), checkpoint=RNNT)
    assert (first.start_ms, first.end_ms) == (160, 400)
    assert (second.start_ms, second.end_ms) == (720, 800)


def test_without_durations_a_word_does_not_reach_into_the_next_one():
    first, second = words((1, 2, 0, 1.0), (2, 4, 0, 1.0), (1, 4, 0, 1.0), checkpoint=RNNT)
    assert (first.start_ms, first.end_ms) == (160, 320)
    assert (second.start_ms, second.end_ms) == (320, 400)


def pushed(partials):
    prefix = StablePrefix()
    return [prefix.push(partial.split()) for partial in partials]


def test_words_are_stable_when_partials_agree_on_them_and_go_on():
    partials = ["what", "what is the", "what is the time", "what is a time", "what is a time in"]
    assert pushed(partials) == [0, 1, 3, 2, 4]


def test_all_readings_must_agree():
    prefix = StablePrefix()
    prefix.push("a b c d".split())
    assert prefix.push("a b c d e".split(), ["a b c d e".split(), "a x".split()]) == 1


def test_a_partial_without_words_has_no_stable_ones():
    assert pushed(["a b", "", "a b", ""]) == [0, 0, 0, 0]


def test_a_copy_goes_its_own_way():
    prefix = StablePrefix()
    prefix.push("a b c".split())
    twin = prefix.fork()
    assert twin.push("a x".split()) == 1
    assert prefix.push("a b c".split()) == 2
