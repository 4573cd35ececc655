"""The trade-off of false cut-offs and delay on labelled pauses."""

import math
import random
from dataclasses import replace

import pytest

from parley.turns import sweep as swept
from parley.turns.cues import Cue
from parley.turns.endpointing import judge
from parley.turns.settings import PRESETS
from parley.turns.sweep import (
    DELAYS_MS,
    THRESHOLDS,
    TIMEOUTS_MS,
    Frontier,
    LabelledPause,
    OperatingPoint,
    TooFewPausesError,
    measure_adapting,
    measure_settings,
    sweep,
    sweep_settings,
)

NORMAL = PRESETS["normal"]


def hold(length_ms, *scores, **more):
    return LabelledPause(is_end=False, length_ms=length_ms, scores=scores, **more)


def end(*scores, **more):
    return LabelledPause(is_end=True, scores=scores, **more)


def acts_ms(pause, threshold, delay, timeout):
    """When the swept policy acts, a millisecond at a time."""
    for now in range(delay, timeout):
        past = [score for at, score in pause.scores if at <= now]
        if past and past[-1] >= threshold:
            return now
    return timeout


def some_pauses(count, seed=1):
    rng = random.Random(seed)
    cues = (None, Cue("filler", "um"), Cue("digits", "two"), Cue("phrase", "yes", finished=True))
    pauses = []
    for _ in range(count):
        is_end = rng.random() < 0.4
        times = sorted(rng.sample(range(100, 1_500), rng.randint(0, 4)))
        scores = [(float(at), rng.random()) for at in times]
        more = {"cue": rng.choice(cues), "ready_ms": rng.uniform(160, 400)}
        more["text_probability"] = rng.choice((None, 0.01, 0.3, 0.9))
        pauses.append(end(*scores, **more) if is_end else hold(rng.uniform(200, 4_000), *scores, **more))
    return pauses


def test_frontier_has_no_outcome_that_another_beats_in_both_respects():
    frontier = Frontier(
        [
            OperatingPoint("slow", 0.2, 900),
            OperatingPoint("worse", 0.3, 950),
            OperatingPoint("fast", 0.6, 100),
            OperatingPoint("b", 0.2, 901),
        ]
    )
    assert [one.policy for one in frontier.points] == ["fast", "slow"]


def test_operating_points_are_the_best_within_a_budget():
    frontier = Frontier(
        [
            OperatingPoint("fast", 0.6, 100),
            OperatingPoint("middle", 0.3, 400),
            OperatingPoint("slow", 0.05, 900),
        ]
    )
    assert frontier.within(99) is None
    assert frontier.within(400).policy == "middle"
    assert frontier.within(899).policy == "middle"
    assert frontier.at(0.05).policy == "slow"
    assert frontier.at(0.3).policy == "middle"
    assert frontier.at(0.04) is None


def test_area_is_the_mean_of_cut_offs_over_budgets():
    assert Frontier([OperatingPoint("one", 0.5, 400), OperatingPoint("two", 0.0, 800)]).area == pytest.approx(
        (400 * 1.0 + 400 * 0.5) / 1_600
    )
    assert Frontier([OperatingPoint("late", 0.0, 9_000)]).area == 1.0


def test_sweep_finds_what_counting_millisecond_by_millisecond_finds():
    pauses = some_pauses(25)
    found = sweep(pauses, (0.5,))
    assert len(found.points) > 3
    for one in found.points:
        policy = one.policy
        acts = [acts_ms(pause, policy.threshold, policy.delay_ms, policy.timeout_ms) for pause in pauses]
        lengths = [(pause.length_ms, at) for pause, at in zip(pauses, acts, strict=True) if not pause.is_end]
        ends = [at for pause, at in zip(pauses, acts, strict=True) if pause.is_end]
        assert one.cut_offs == pytest.approx(sum(at < length for length, at in lengths) / len(lengths))
        assert one.delay_ms == pytest.approx(sum(ends) / len(ends))


def test_scores_that_tell_holds_from_ends_cut_nobody_off_at_no_delay():
    pauses = [hold(900, (100, 0.1), (200, 0.2)), end((100, 0.2), (200, 0.9))]
    best = sweep(pauses).at(0.0)
    assert best.delay_ms == 200
    assert 0.2 < best.policy.threshold <= 0.9


def test_score_that_falls_before_the_delay_does_not_act():
    pauses = [hold(2_000, (100, 0.9), (150, 0.1)), end((100, 0.9))]
    assert sweep(pauses).at(0.0).delay_ms == 200  # the first delay at which the high score is past


def test_silence_alone_ignores_scores():
    pauses = [hold(950, (100, 0.0)), end((100, 1.0))]
    best = sweep(pauses, (math.inf,)).at(0.0)
    assert best.delay_ms == best.policy.timeout_ms == 1_000


@pytest.mark.parametrize("length", [199, 5_001])
def test_holds_that_no_policy_can_judge_do_not_count(length):
    pauses = [hold(length), hold(800), end()]
    assert sweep(pauses, (math.inf,)).at(0.0).delay_ms == 800


@pytest.mark.parametrize("pauses", [[], [hold(500)], [end()], [hold(100), end()]])
def test_pauses_of_one_kind_are_refused(pauses):
    for measure in (sweep, lambda given: sweep_settings(given, NORMAL)):
        with pytest.raises(TooFewPausesError, match="are needed"):
            measure(pauses)


def test_settings_are_measured_as_the_policy_judges():
    pauses = some_pauses(60)
    acts = [
        max(
            judge(
                NORMAL, round(one.scores[0][1], 2) if one.scores else None, one.cue, one.text_probability
            ).needed_ms,
            one.ready_ms,
        )
        for one in pauses
    ]
    found = measure_settings(pauses, NORMAL)
    cut = [at < one.length_ms for one, at in zip(pauses, acts, strict=True) if not one.is_end]
    ends = [at for one, at in zip(pauses, acts, strict=True) if one.is_end]
    assert found.cut_offs == pytest.approx(sum(cut) / len(cut))
    assert found.delay_ms == pytest.approx(sum(ends) / len(ends))


def test_swept_settings_keep_what_is_asked_for():
    pauses = some_pauses(200)
    frontier = sweep_settings(pauses, NORMAL)
    assert len(frontier.points) > 20
    for chosen in frontier.points[::5]:
        assert measure_settings(pauses, chosen.policy) == chosen
        policy = chosen.policy
        assert policy.complete_ms <= policy.incomplete_ms <= policy.limit_ms
        assert policy.unfinished_ms <= policy.limit_ms


def test_patience_is_bought_with_a_higher_threshold_where_the_score_says_so():
    holds = [hold(1_500, (160.0, 0.6)) for _ in range(20)]
    ends = [end((160.0, 0.95)) for _ in range(20)]
    chosen = sweep_settings([*holds, *ends], NORMAL).at(0.0)
    assert chosen.delay_ms <= 240
    assert chosen.policy.threshold > 0.6


def test_work_does_not_grow_with_different_scores(monkeypatch):
    asked = []
    monkeypatch.setattr(swept, "judge", lambda *args: asked.append(args) or judge(*args))
    rng = random.Random(2)
    pauses = [
        make((160.0, rng.random()))
        for make in (end, lambda score: hold(1_000.0, score))
        for _ in range(2_000)
    ]
    sweep_settings(pauses, NORMAL)
    settings = {args[0] for args in asked}
    assert len(asked) <= 101 * len(settings)
    assert len(sweep(pauses).points) <= len(THRESHOLDS) * len(DELAYS_MS) * len(TIMEOUTS_MS)


def test_settings_without_a_wait_for_what_sounds_incomplete_keep_their_other_numbers():
    base = replace(NORMAL, incomplete_ms=0, limit_ms=5_000)
    found = sweep_settings(some_pauses(40), base).points
    assert {(one.policy.unfinished_ms, one.policy.limit_ms) for one in found} == {(2_000, 5_000)}


def test_policy_that_adapts_is_slower_only_with_callers_whom_it_cut_off():
    pauses = [hold(390.0, (160.0, 0.9)), hold(330.0, (160.0, 0.9)), end((160.0, 0.9))]
    apart = measure_adapting([pauses, [end((160.0, 0.9))]], NORMAL)
    assert (apart.cut_offs, apart.delay_ms) == (0.5, (340 + 240) / 2)
    alike = measure_settings([*pauses, end((160.0, 0.9))], NORMAL)
    assert (alike.cut_offs, alike.delay_ms) == (1.0, 240)
