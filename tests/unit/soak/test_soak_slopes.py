"""Slopes of the soak, of series whose slope is known."""

from __future__ import annotations

import numpy as np
import pytest
from soak.growth import Segment, fit

HOURS = 2
TIMES_S = np.arange(0, 3600 * HOURS, 15.0)


def dependent(seed, carry=0.9):
    """Noise of which every sample keeps a part of the one before."""
    chance = np.random.default_rng(seed)
    noise = np.zeros(len(TIMES_S))
    for place, step in enumerate(chance.normal(size=len(TIMES_S))):
        noise[place] = carry * noise[place - 1] + step
    return noise


def test_that_noise_which_depends_on_itself_does_not_grow():
    slopes = [fit([Segment(TIMES_S, dependent(seed))]) for seed in range(200)]
    assert sum(slope.low <= 0 <= slope.high for slope in slopes) >= 194


def test_that_growth_is_found_in_the_same_noise():
    slopes = [fit([Segment(TIMES_S, dependent(seed) + 10 * TIMES_S / 3600)]) for seed in range(200)]
    assert all(0 < slope.low <= slope.estimate <= slope.high for slope in slopes)
    assert sum(slope.low < 10 < slope.high for slope in slopes) >= 194


def test_that_steps_between_segments_are_no_growth():
    parts = np.array_split(np.arange(len(TIMES_S)), 24)
    noise = dependent(1, carry=0.2)
    stepping = [
        Segment(TIMES_S[part], 50 * number + noise[part] + 6 * TIMES_S[part] / 3600)
        for number, part in enumerate(parts)
    ]
    slope = fit(stepping)
    assert slope.low < 6 < slope.high < 60


def test_that_what_never_changes_has_the_slope_zero_without_doubt():
    slope = fit([Segment(TIMES_S, np.full(len(TIMES_S), 17.0))])
    assert (slope.low, slope.estimate, slope.high) == (0, 0, 0)


def test_that_one_outlier_does_not_bend_the_slope():
    values = np.full(len(TIMES_S), 17.0)
    values[-4:] = 1000
    assert fit([Segment(TIMES_S, values)]).estimate == pytest.approx(0, abs=1e-9)


def test_that_short_segments_are_one_observation_each():
    """Of 8 slopes all lie on one side of the true one in 2 of 2**8 cases: less than 1 %; of 7 in more."""

    def rising(number):
        times = TIMES_S[:20] + 1000 * number
        return Segment(times, (number + 1) * times / 3600)

    assert fit([rising(number) for number in range(7)]) is None
    slope = fit([rising(number) for number in range(8)])
    assert (slope.low, slope.high) == pytest.approx((1, 8))
    assert slope.estimate == pytest.approx(4.5)


@pytest.mark.parametrize("minutes", [0, 1, 20])
def test_that_a_few_minutes_have_no_slope(minutes):
    times = TIMES_S[: 4 * minutes]
    assert fit([Segment(times, np.zeros(len(times)))]) is None
