"""Percentiles with their intervals."""

from __future__ import annotations

import numpy as np
import pytest
from stages.statistics import estimate, fewest, ratio_estimate


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
