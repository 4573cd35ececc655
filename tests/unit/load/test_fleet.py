"""The fleet on paper: its chance against a formula, and the autoscaler against its rules."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from fleet.cli import Case, find_buffer
from fleet.demand import DAY_S, Burst, arrivals, day_curve
from fleet.scaling import PERIOD_S, Autoscaler, ScalingRule
from fleet.simulation import Fleet, simulate

FLEET = Fleet(cells=1, held=20, mean_call_s=120.0, start_s=120.0)
STILL = ScalingRule(target=1e9, buffer=0.0, least=2)  # never more than two replicas


def erlang_b(servers, load):
    """The share of calls that find all servers busy."""
    share = 1.0
    for number in range(1, servers + 1):
        share = load * share / (number + load * share)
    return share


@pytest.mark.parametrize("load", [32.0, 40.0, 60.0])
def test_refusals_of_a_fleet_that_never_changes(load):
    rate = np.full(60_000, load / FLEET.mean_call_s)
    result = simulate(FLEET, STILL, rate, seed=1)
    assert result.refused_share == pytest.approx(erlang_b(40, load), rel=0.1, abs=0.005)
    assert result.most_calls <= 40
    assert result.replica_s == 2 * 60_000
    assert not result.lost
    assert not result.moved


def test_who_is_refused_tries_another_cell():
    rate = np.full(30_000, 60.0 / FLEET.mean_call_s)
    rule = dataclasses.replace(STILL, least=1)
    two = simulate(dataclasses.replace(FLEET, cells=2), rule, rate, seed=1).refused_share
    whole = simulate(FLEET, STILL, rate, seed=1).refused_share
    assert two == pytest.approx(whole, abs=0.02), "as if they were one"
    assert two < erlang_b(20, 30.0) - 0.003


def scaler(**fields):
    return Autoscaler(ScalingRule(**{"target": 10.0, "buffer": 0.0, "least": 1, "lag_s": 0, **fields}), 1)


def decide(scaler, sessions, replicas):
    return int(scaler.decide(np.array([sessions]), np.array([replicas]))[0])


def test_it_grows_to_the_target_within_its_limits():
    assert decide(scaler(), 35, 1) == 4
    assert decide(scaler(), 1000, 2) == 6, "by four pods"
    assert decide(scaler(), 1000, 10) == 20, "to twice as many"
    assert decide(scaler(buffer=20.0), 35, 1) == 5, "six are wanted"


def test_a_small_deviation_changes_nothing():
    assert decide(scaler(), 109, 10) == 10
    assert decide(scaler(), 111, 10) == 12


def test_it_sees_old_sessions():
    late = scaler(lag_s=2 * PERIOD_S)
    assert [decide(late, sessions, 1) for sessions in (0, 30, 30, 30)] == [1, 1, 1, 3]


def test_it_shrinks_late_and_slowly():
    slow = scaler(down_window_s=4 * PERIOD_S, down_percent=25)
    assert decide(slow, 200, 20) == 20
    replicas, course = 20, []
    for _ in range(12):
        replicas = decide(slow, 10, replicas)
        course.append(replicas)
    assert course[:3] == [20, 20, 20], "the wish of a minute ago still counts"
    assert course[3] == 15
    assert course[3:7] == [15, 15, 15, 15], "a quarter in a minute"
    assert course[7] == 11


def test_replicas_that_hand_their_calls_over_are_free_at_once():
    rate = np.concatenate([np.full(3_000, 4.0), np.full(6_000, 0.5)])
    rule = ScalingRule(target=14.0, buffer=20.0, least=1)
    moving = simulate(FLEET, rule, rate, seed=2)
    waiting = simulate(dataclasses.replace(FLEET, moves=False), rule, rate, seed=2)
    assert moving.moved > 0
    assert not waiting.moved
    assert moving.replica_s < waiting.replica_s
    assert moving.asked == pytest.approx(waiting.asked, rel=0.05)


def test_a_lost_replica_loses_calls_only_without_room_or_moves():
    fleet = dataclasses.replace(FLEET, losses_per_hour=2.0)
    rate = np.full(20_000, 4.0)
    roomy = ScalingRule(target=8.0, buffer=60.0, least=1)
    assert simulate(dataclasses.replace(fleet, moves=False), roomy, rate, seed=3).lost > 0
    survived = simulate(fleet, roomy, rate, seed=3)
    assert survived.moved > 50 * survived.lost


def test_a_burst_needs_a_buffer_and_nodes_that_wait_need_less():
    fleet = dataclasses.replace(FLEET, start_s=300.0)
    prepared = dataclasses.replace(fleet, warm=80, warm_start_s=20.0)
    rate = arrivals(500.0, FLEET.mean_call_s, (Burst(36_000, 1.6),))[35_000:39_000]
    cold = find_buffer(Case(fleet, 0.8, 500.0, rate), 0.01)
    warm = find_buffer(Case(prepared, 0.8, 500.0, rate), 0.01)
    assert cold is not None
    assert warm is not None
    assert warm[0] < cold[0]
    assert cold[1].refused_share <= 0.01


def test_the_day():
    curve = day_curve()
    assert curve.shape == (DAY_S,)
    assert curve.max() == 1.0
    assert curve[3 * 3600] < 0.1
    burst = Burst(36_000, 2.0)
    rate = arrivals(240.0, 240.0, (burst,))
    assert rate[35_999] == pytest.approx(curve[35_999])
    assert rate[36_300] == pytest.approx(2 * curve[36_300])
    assert rate[37_000] == pytest.approx(curve[37_000])
