"""How much may be begun in vain."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from parley.agent.preemption import PreemptionBudget


def test_a_turn_has_so_many_attempts():
    budget = PreemptionBudget(per_turn=2, wasted_per_minute=10)
    assert [budget.take(0.0) for _ in range(3)] == [True, True, False]
    assert budget.turn_over() == 2
    assert budget.take(0.0)
    assert budget.begun == 1


def test_what_is_wasted_comes_back_with_time():
    budget = PreemptionBudget(per_turn=100, wasted_per_minute=2)
    for _ in range(2):
        assert budget.take(0.0)
        budget.wasted(0.0)
    assert not budget.take(0.0)
    assert not budget.take(29.0)
    assert budget.take(30.1)


def test_what_is_used_costs_nothing():
    budget = PreemptionBudget(per_turn=1, wasted_per_minute=1)
    for second in range(100):
        assert budget.take(float(second))
        budget.turn_over()


def test_none_may_be_begun():
    assert not PreemptionBudget(per_turn=0, wasted_per_minute=5).take(0.0)


@given(st.lists(st.tuples(st.floats(0, 10), st.booleans()), max_size=200), st.integers(1, 8))
def test_waste_is_bounded_whatever_happens(turns, most):
    budget = PreemptionBudget(per_turn=1, wasted_per_minute=most)
    now, wasted = 0.0, 0
    for passed, useful in turns:
        now += passed
        if budget.take(now) and not useful:
            budget.wasted(now)
            wasted += 1
        budget.turn_over()
    assert wasted <= most + most * now / 60 + 1e-6
