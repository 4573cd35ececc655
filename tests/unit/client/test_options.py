"""Waiting between attempts, and keepalive within what networks allow."""

from __future__ import annotations

import random

import pytest

from parley_client import Backoff, Keepalive


def test_waits_grow_stay_bounded_and_are_one_fewer_than_attempts():
    backoff = Backoff(attempts=8, initial_s=1.0, factor=2.0, max_s=5.0)
    longest = [1.0, 2.0, 4.0, 5.0, 5.0, 5.0, 5.0]
    draws = [list(backoff.waits(random.Random(seed))) for seed in range(200)]
    assert all(len(waits) == 7 for waits in draws)
    for position, limit in enumerate(longest):
        column = [waits[position] for waits in draws]
        assert 0.9 * limit < max(column) <= limit
        assert min(column) < 0.1 * limit  # full jitter: clients must not come back together


@pytest.mark.parametrize(
    "values", [{"attempts": 0}, {"initial_s": -1.0}, {"factor": 0.5}, {"initial_s": 9.0, "max_s": 8.0}]
)
def test_a_useless_backoff_is_refused(values):
    with pytest.raises(ValueError, match="backoff"):
        Backoff(**values)


def test_keepalive_lies_between_tritons_limit_and_the_load_balancers():
    options = dict(Keepalive().channel_options())
    assert 300_000 < options["grpc.keepalive_time_ms"] < 350_000


@pytest.mark.parametrize("values", [{"time_s": 350.0}, {"time_s": 0.0}, {"timeout_s": 0.0}])
def test_keepalive_that_comes_too_late_is_refused(values):
    with pytest.raises(ValueError, match="keepalive"):
        Keepalive(**values)
