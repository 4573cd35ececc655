"""The search for a capacity, and the statistics of a level."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley_client.cli.capacity.callers import LevelResult
from parley_client.cli.capacity.search import Found, Verdict, find_capacity, summarize
from parley_client.cli.capacity.tail import CONFIDENCE, FEWEST, SHARE, tail_of
from parley_client.cli.turns import TurnReport


class Levels:
    def __init__(self, holds):
        self._holds = holds
        self.asked = []

    async def __call__(self, calls):
        self.asked.append(calls)
        return Verdict.HELD if self._holds(calls) else Verdict.BROKEN


@pytest.mark.parametrize(
    ("capacity", "asked"),
    [
        (1, [1, 2]),
        (2, [1, 2, 4, 3]),
        (5, [1, 2, 4, 8, 6, 5]),
        (11, [1, 2, 4, 8, 16, 12, 10, 11]),
    ],
)
async def test_search_doubles_and_then_halves_the_gap(capacity, asked):
    levels = Levels(lambda calls: calls <= capacity)
    assert await find_capacity(levels, start=1, most=64) == Found(capacity, is_bounded=True)
    assert levels.asked == asked


async def test_search_tries_lower_levels_after_a_first_failure():
    assert await find_capacity(Levels(lambda calls: calls <= 3), start=8, most=64) == Found(
        3, is_bounded=True
    )
    nothing = Levels(lambda _: False)
    assert await find_capacity(nothing, start=1, most=64) == Found(0, is_bounded=True)
    assert nothing.asked == [1]


async def test_search_without_failure_gives_a_lower_bound():
    levels = Levels(lambda _: True)
    assert await find_capacity(levels, start=3, most=20) == Found(20, is_bounded=False)
    assert levels.asked == [3, 6, 12, 20]


@given(st.integers(1, 40), st.integers(1, 300), st.randoms(use_true_random=False))
async def test_whatever_the_noise_is_the_search_ends_between_two_measured_levels(start, most, noise):
    levels = Levels(lambda _: noise.random() < 0.5)
    found = await find_capacity(levels, start=start, most=most)
    assert len(levels.asked) == len(set(levels.asked)) <= 2 * most.bit_length() + 2
    assert found.held == 0 or found.held in levels.asked
    assert not found.is_bounded or found.held + 1 in levels.asked
    assert all(1 <= calls <= most for calls in levels.asked)


def test_an_interrupted_search_has_the_levels_so_far():
    assert summarize([]) == Found(0, is_bounded=False)
    assert summarize([(1, Verdict.HELD), (2, Verdict.HELD)]) == Found(2, is_bounded=False)
    assert summarize([(1, Verdict.HELD), (4, Verdict.UNSURE), (2, Verdict.HELD)]) == Found(2, is_bounded=True)


def test_the_percentile_is_that_of_the_nearest_rank():
    tail = tail_of([float(value) for value in range(1, 201)])
    assert (tail.value, tail.count) == (190, 200)
    assert tail.low < tail.value < tail.high


@pytest.mark.parametrize(("count", "is_sure"), [(FEWEST - 1, False), (FEWEST, True)])
def test_few_waits_are_no_upper_bound(count, is_sure):
    tail = tail_of([100.0] * count)
    assert math.isfinite(tail.high) == is_sure
    assert tail.low == 100


def test_the_interval_holds_the_true_percentile_as_often_as_it_says():
    rng = np.random.default_rng(5)
    true = -math.log(1 - SHARE)
    tails = [tail_of(list(rng.exponential(size=100))) for _ in range(800)]
    outside = sum(not tail.low <= true <= tail.high for tail in tails) / len(tails)
    assert outside < 1.25 * (1 - CONFIDENCE)


def level(fast=0, slow=0, **more):
    return LevelResult(1, [100.0] * fast + [5_000.0] * slow, **more)


@pytest.mark.parametrize(
    ("result", "verdict"),
    [
        (level(60), Verdict.HELD),
        (level(30), Verdict.UNSURE),
        (level(60, 1), Verdict.UNSURE),
        (level(300, 5), Verdict.HELD),
        (level(10, 5), Verdict.BROKEN),
        (level(300, refused=["too_many_sessions"]), Verdict.BROKEN),
        (level(300, lost=["call_lost"]), Verdict.BROKEN),
        (level(300, overdue_s=100.0), Verdict.BROKEN),
        (level(), Verdict.UNSURE),
    ],
)
def test_a_level_is_held_or_broken_only_where_that_is_sure(result, verdict):
    assert result.judge(1_000) == verdict


def report(ended_s, answered_s, problem=""):
    return TurnReport("t", speech_began_s=0.0, speech_ended_s=ended_s, answered_s=answered_s, problem=problem)


ANSWERED, CUT_OFF = report(1.0, 1.5), report(2.0, 1.5)


def test_turns_without_an_answer_and_those_cut_off_count_as_infinite_waits():
    result = LevelResult(1)
    for one in (ANSWERED, report(1.0, None), report(1.0, 1.5, "no audio"), CUT_OFF):
        result.add(one)
    assert result.waits_ms == [500, math.inf, math.inf, math.inf]
    assert (result.turns, result.unanswered, result.cut_off) == (4, 2, 1)


def test_a_level_of_which_half_of_the_turns_are_cut_off_is_broken():
    result = LevelResult(1)
    for one in [ANSWERED] * 61 + [CUT_OFF] * 59:
        result.add(one)
    assert result.judge(1_000) == Verdict.BROKEN
