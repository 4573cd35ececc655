"""Percentiles with their intervals, and errors in words."""

from __future__ import annotations

import numpy as np
import pytest
from harness.stats import (
    estimate,
    fewest,
    p50_p95,
    percentile,
    percentiles,
    ratio_estimate,
    spoken_words,
    text_of,
    word_errors,
)


@pytest.mark.parametrize(("share", "turns"), [(0.5, 2), (0.95, 20), (0.99, 100)])
def test_a_percentile_needs_a_value_beyond_it(share, turns):
    assert fewest(share) == turns
    assert estimate([1.0] * (turns - 1), share) is None
    assert estimate([1.0] * turns, share) is not None


def test_percentiles_are_those_of_the_nearest_rank():
    values = [float(value) for value in range(1, 101)]
    assert [estimate(values, share).value for share in (0.5, 0.95, 0.99)] == [50, 95, 99]


def test_the_interval_holds_the_value_and_narrows_with_more_turns():
    drawn = np.random.default_rng(3).normal(500, 50, 400)
    few, many = estimate(list(drawn[:40]), 0.5), estimate(list(drawn), 0.5)
    for found in (few, many):
        assert found.low <= found.value <= found.high
    assert many.high - many.low < few.high - few.low


def test_an_error_rate_weighs_turns_by_their_words():
    found = ratio_estimate([(0, 9), (1, 1)])
    assert found.value == pytest.approx(0.1)
    assert found.low <= found.value <= found.high
    assert ratio_estimate([]) is None


def test_percentiles_of_few_values_are_among_them():
    assert percentiles([30.0, 10.0, 20.0]) == (20.0, 30.0, 30.0)
    assert p50_p95([3.0]) == (3.0, 3.0)
    assert percentile([30.0, 10.0], 0.5) == 10.0


def test_percentiles_of_no_values_are_none():
    assert (percentile([], 0.5), p50_p95([]), percentiles([])) == (None, None, ())
    assert text_of(p50_p95([])) == ""


@pytest.mark.parametrize(
    ("said", "heard", "errors"),
    [
        ("set a timer for ten minutes", "Set a timer for 10 minutes.", 0),
        ("set a timer for ten minutes", "set timer far ten", 3),
        ("hello", "", 1),
        ("", "hello", 1),
        ("hello", "hello hello there", 2),
    ],
)
def test_word_errors_are_the_words_left_out_put_in_and_exchanged(said, heard, errors):
    assert word_errors(spoken_words(said), spoken_words(heard)) == errors
