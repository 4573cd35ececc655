"""What load draws for a call, and the rows that it makes of one."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from harness.caller import CallReport
from load import draw_turns, rows_of

from parley_client.cli.script import ScriptTurn
from parley_client.cli.turns import TurnReport

QUESTIONS = [ScriptTurn(name, np.zeros(160, np.int16)) for name in ("one", "two")]


def ended(**values):
    return CallReport(1, began_s=10.0, opened_s=10.5, ended_s=20.0, late_ms=7.0, **values)


def rows(report, name):
    return [(row.ms, row.problem) for row in rows_of(report) if row.name == name]


@pytest.mark.parametrize("seed", range(20))
def test_turns_are_as_many_as_asked_for_and_the_first_speaks_over_nothing(seed):
    turns = draw_turns(Random(seed), QUESTIONS, 1.0)
    assert 2 <= len(turns) <= 5
    assert turns[0].barge_in_ms is None
    assert all(turn.barge_in_ms is not None for turn in turns[1:])
    assert turns == draw_turns(Random(seed), QUESTIONS, 1.0)


def test_turns_without_interruptions_speak_over_nothing():
    assert all(turn.barge_in_ms is None for turn in draw_turns(Random(1), QUESTIONS, 0.0))


def test_a_call_that_ended_well_has_its_times():
    report = ended()
    assert rows(report, "call") == [(10_000, "")]
    assert rows(report, "connect") == [(500, "")]
    assert rows(report, "microphone") == [(7, "")]


def test_a_refused_call_has_nothing_but_the_refusal():
    report = CallReport(1, began_s=1.0, ended_s=2.0, refused="too_many_sessions")
    assert [(row.name, row.problem) for row in rows_of(report)] == [("call", "refused: too_many_sessions")]


def test_a_lost_call_is_an_error_and_keeps_what_was_measured():
    turn = TurnReport("one", speech_ended_s=11.0, answered_s=11.4)
    report = ended(lost="unavailable", turns=[turn])
    assert rows(report, "call") == [(10_000, "lost: unavailable")]
    assert rows(report, "first audio") == [(pytest.approx(400), "")]


def test_a_turn_without_an_answer_is_an_error_with_its_reason():
    report = ended(turns=[TurnReport("one", speech_ended_s=11.0, problem="not heard within 30 s")])
    assert rows(report, "first audio") == [(None, "not heard within 30 s")]


def test_an_answer_before_the_end_of_speech_is_an_error():
    report = ended(turns=[TurnReport("one", speech_ended_s=11.0, answered_s=10.8)])
    assert rows(report, "first audio") == [(None, "answered before the end of speech")]


def test_an_interruption_has_the_time_until_the_answer_fell_silent():
    turn = TurnReport("two", speech_began_s=12.0, silenced_s=12.15, barge_in=True, speech_ended_s=13.0)
    assert rows(ended(turns=[turn]), "interruption") == [(pytest.approx(150), "")]


def test_silences_within_answers_are_underruns_if_they_can_be_heard():
    report = ended(silences=[(12.0, 10.0), (13.0, 85.0)])
    assert rows(report, "underrun") == [(85.0, "an answer stood still")]
