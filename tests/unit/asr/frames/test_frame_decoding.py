"""Scores to tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.asr.decoding.boosting import PhraseAutomaton, build
from parley.asr.frames.ctc import choose_tokens, decode_frames
from parley.asr.frames.network import pad_rows
from parley.asr.frames.reader import without_spaces
from parley.errors import InferenceError

NOTHING = PhraseAutomaton.nothing()
TOKENS = 5


def scores_of(classes, height=5.0):
    scores = np.zeros((len(classes), TOKENS), np.float32)
    scores[np.arange(len(classes)), classes] = height
    return scores


def decoded(scores, blank=0, boosting=NOTHING):
    tokens = decode_frames(scores, blank, boosting, tokens=TOKENS)
    return list(zip(tokens.ids.tolist(), tokens.frames.tolist(), tokens.durations.tolist(), strict=True))


@settings(deadline=None)
@given(st.lists(st.integers(0, TOKENS - 1), max_size=20), st.sampled_from([0, TOKENS - 1]))
def test_runs_are_tokens_and_blanks_part_equal_ones(classes, blank):
    expected = []
    for frame, token in enumerate(classes):
        if token == blank:
            continue
        if frame and classes[frame - 1] == token:
            expected[-1][2] += 1
        else:
            expected.append([token, frame, 1])
    assert decoded(scores_of(classes), blank) == [tuple(own) for own in expected]


def test_the_confidence_is_that_of_the_first_frame():
    sure, unsure = scores_of([1, 1], 20.0), scores_of([1, 1], 0.5)
    mixed = np.concatenate([sure[:1], unsure[1:]])
    certainty = [
        decode_frames(own, 0, NOTHING, tokens=TOKENS).confidences[0] for own in (sure, unsure, mixed)
    ]
    assert certainty[0] > 0.99
    assert certainty[1] < 0.2
    assert certainty[2] == pytest.approx(certainty[0])


def test_a_phrase_wins_a_close_race_but_not_over_a_blank():
    close = scores_of([1, 0, 3])
    close[0, 2], close[2, 4] = 4.5, 4.5
    phrase = build([[2, 4]], 1.0)
    assert [token for token, *_ in decoded(close)] == [1, 3]
    assert [token for token, *_ in decoded(close, boosting=phrase)] == [2, 4]
    assert [token for token, *_ in decoded(close, boosting=build([[2, 4]], 0.2))] == [1, 3]
    silent = scores_of([0, 0, 0])
    assert decoded(silent, boosting=build([[2, 4]], 10.0)) == []


def test_runs_that_a_phrase_makes_the_same_token_are_one():
    close = scores_of([1, 1, 2])
    close[:, 3] = 4.9
    assert decoded(close, boosting=build([[3]], 1.0)) == [(3, 0, 3)]
    apart = scores_of([1, 0, 2])
    apart[[0, 2], 3] = 4.9
    assert decoded(apart, boosting=build([[3]], 1.0)) == [(3, 0, 1), (3, 2, 1)]


def test_what_is_never_a_token_is_not_chosen():
    scores = scores_of([0, 1, 0])
    scores[:, 2] = 1.0
    assert choose_tokens(scores, 0, NOTHING).tolist() == [2, 1, 2]
    assert choose_tokens(scores[:0], 0, NOTHING).tolist() == []


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_scores_that_are_no_numbers_are_a_failure(value):
    scores = scores_of([1, 0])
    scores[1, 1] = value
    with pytest.raises(InferenceError, match="not finite"):
        decoded(scores)


def test_scores_of_another_vocabulary_are_a_failure():
    with pytest.raises(InferenceError, match="scores 5 tokens; the vocabulary has 6"):
        decode_frames(scores_of([1]), 0, NOTHING, tokens=6)


def test_shorter_rows_are_padded():
    padded, lengths = pad_rows([np.ones((3, 2), np.float32), np.ones((1, 2), np.float32)], -7.0)
    assert padded[:, :, 0].tolist() == [[1, 1, 1], [1, -7, -7]]
    assert lengths.tolist() == [3, 1]


def spaced(*pieces):
    found = without_spaces([None if piece is None else piece.encode() for piece in pieces])
    return [None if piece is None else piece.decode() for piece in found]


def test_characters_that_are_written_without_spaces_have_none():
    assert spaced("▁你", "▁好", "▁the", "▁世") == ["▁你", "好", "▁the", "▁世"]
    assert spaced("▁你", "▁", "好") == ["▁你", None, "好"]
    assert spaced("▁你", None, "▁。", "▁hi", "!") == ["▁你", None, "。", "▁hi", "!"]
    assert spaced("▁안", "▁녕") == ["▁안", "▁녕"]
