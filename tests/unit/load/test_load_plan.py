"""What callers are going to do."""

from itertools import islice
from random import Random

import pytest
from load.plan import CHUNKS_MS, Habits, arrival_gaps, make_plan
from load.recordings import Recording, Repertoire

REPERTOIRE = Repertoire(
    questions=tuple(Recording(f"question-{n}", bytes(3_200), 0, 1_600) for n in range(3)),
    commands=(Recording("stop", bytes(3_200), 0, 1_600),),
)


def plans(habits, count=400):
    return [make_plan(Random(seed), habits, REPERTOIRE) for seed in range(count)]


def test_the_same_seed_makes_the_same_call():
    assert plans(Habits(), 20) == plans(Habits(), 20)


def test_calls_have_as_many_questions_as_wanted():
    counts = {
        sum(sentence.expects_answer for sentence in plan.sentences) for plan in plans(Habits(turns=(2, 5)))
    }
    assert counts == {2, 3, 4, 5}


def test_callers_interrupt_leave_and_vanish_as_often_as_wanted():
    found = plans(Habits(interrupt=0.5, early=0.25, vanish=0.25), 2_000)
    endings = [plan.ending for plan in found]
    assert endings.count("early") == pytest.approx(500, rel=0.2)
    assert endings.count("vanish") == pytest.approx(500, rel=0.2)
    turns = sum(sum(one.expects_answer for one in plan.sentences) - 1 for plan in found)
    over = sum(sentence.over_ms is not None for plan in found for sentence in plan.sentences)
    assert over / turns == pytest.approx(0.5, rel=0.1)


def test_half_of_the_interruptions_are_commands_and_never_the_first_sentence():
    over = [one for plan in plans(Habits(interrupt=1.0)) for one in plan.sentences if one.over_ms is not None]
    commands = [one for one in over if not one.expects_answer]
    assert len(commands) / len(over) == pytest.approx(0.5, rel=0.15)
    assert all(plan.sentences[0].over_ms is None for plan in plans(Habits(interrupt=1.0)))
    assert {one.recording.name for one in commands} == {"stop"}


def test_without_bad_habits_every_call_is_complete():
    for plan in plans(Habits(interrupt=0, early=0, vanish=0)):
        assert plan.ending == "complete"
        assert all(sentence.over_ms is None for sentence in plan.sentences)


def test_a_caller_leaves_in_a_sentence_of_its_own():
    assert all(0 <= plan.leaves_in < len(plan.sentences) for plan in plans(Habits(early=1, vanish=0)))


def test_microphones_have_both_lengths_of_chunks_or_the_wanted_one():
    assert {plan.chunk_ms for plan in plans(Habits())} == set(CHUNKS_MS)
    assert {plan.chunk_ms for plan in plans(Habits(chunk_ms=100))} == {100}


@pytest.mark.parametrize(
    "wrong",
    [
        {"turns": (0, 2)},
        {"turns": (3, 2)},
        {"interrupt": 1.1},
        {"vanish": -0.1},
        {"early": 0.6, "vanish": 0.6},
    ],
)
def test_impossible_habits_are_refused(wrong):
    with pytest.raises(ValueError, match=r"turn|probability|exclude"):
        Habits(**wrong)


def test_arrivals_are_poisson():
    gaps = list(islice(arrival_gaps(Random(1), per_minute=120), 20_000))
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.5, rel=0.03)
    # Of an exponential distribution the standard deviation is the mean.
    assert (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 == pytest.approx(mean, rel=0.05)


def test_a_rate_of_nothing_is_refused():
    with pytest.raises(ValueError, match="above 0"):
        next(arrival_gaps(Random(1), 0))
