"""What `make bench-moves` makes of its callers' reports."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from bench_moves import judge
from harness.caller import CallReport, Loudspeaker, Move

from parley import protocol
from parley.chat import ChatMessage
from parley.checkpoint import HistoryState
from parley_client.cli.turns import TurnReport
from parley_client.events import AgentAudio

MISHEARD = "at most 2% of the words near a move are misheard"


def turn(begin_s, wait_s=0.5, **fields):
    answered_s = None if wait_s is None else begin_s + 1.0 + wait_s
    return TurnReport(
        "turn",
        **{
            "said": "what time is it",
            "heard": "what time is it",
            "answer": "It's noon.",
            "speech_began_s": begin_s,
            "speech_ended_s": begin_s + 1.0,
            "answered_s": answered_s,
            **fields,
        },
    )


def history(*texts):
    roles = ("user", "assistant")
    messages = [ChatMessage(role=roles[number % 2], content=text) for number, text in enumerate(texts)]
    return HistoryState(messages=messages)


def test_a_call_that_moved_within_an_answer():
    report = CallReport(
        0,
        turns=[turn(0.0), turn(10.0), turn(100.0, heard="what time")],
        moves=[Move(12.0, "lost", 150.0)],
        silences=[(12.1, 300.0), (50.0, 9_000.0)],
        history=history(
            "what time is it", "it's noon", "what time is it", "It's noon.", "what time", "It's noon"
        ),
    )
    outcome = judge("kill", [report, CallReport(1, turns=[turn(12.0)])])
    assert (outcome.calls, outcome.moved, outcome.lost, outcome.turns) == (2, 1, [], 4)
    assert outcome.figures["without a server p50, ms"] == 150.0
    assert outcome.gaps_ms == [300.0], "a silence elsewhere has another cause"
    figures = outcome.figures
    assert (figures["words near a move"], figures["misheard"]) == (4, 0)
    assert (figures["words of other turns"], figures["of them misheard"]) == (12, 2)
    (remembered,) = (one for one in outcome.checks if one.name == "what is remembered was played")
    assert (remembered.counted, remembered.problems) == (1, [])


def test_a_call_that_waited_for_its_answer():
    report = CallReport(0, turns=[turn(0.0), turn(10.0, 1.7)], moves=[Move(11.0, "silent", 90.0)])
    assert judge("cut", [report]).gaps_ms == [pytest.approx(1_200.0)]
    unanswered = CallReport(0, turns=[turn(0.0), turn(10.0, None)], moves=[Move(11.0, "silent")])
    outcome = judge("cut", [unanswered])
    assert outcome.gaps_ms == [math.inf]
    assert outcome.figures["without a server p50, ms"] == math.inf
    assert outcome.unanswered == 1


@pytest.mark.parametrize(
    ("remembered", "text"),
    [
        (("what time is it", "It's noon."), ""),
        (("what time is it", "it's"), "remembers 'its' instead of 'itsnoon'"),
        (("what time is it",), "remembers 'whattimeisit' instead of 'itsnoon'"),
        ((), "remembers nothing"),
    ],
)
def test_what_the_agent_remembers(remembered, text):
    report = CallReport(3, turns=[turn(0.0)], moves=[Move(0.5, "lost", 1.0)], history=history(*remembered))
    assert text in report.history_difference()
    assert bool(report.history_difference()) == bool(text)


@pytest.mark.parametrize(
    ("remembered", "text"),
    [
        (("what", "It's noon.…", "and then", "Go on"), ""),
        (("what", "It's…", "and then", "Go on"), ""),
        (("what", "It's one.", "and then", "Go on"), "remembers 'itsone' instead of 'itsnoon'"),
        (("what", "It's noon.", "and then", "Go"), "remembers 'go' instead of 'goon'"),
    ],
)
def test_the_end_of_an_incomplete_answer_may_be_missing(remembered, text):
    turns = [turn(0.0, heard="what", incomplete=True), turn(9.0, heard="and then", answer="Go on.")]
    report = CallReport(3, turns=turns, history=history(*remembered))
    assert text in report.history_difference()
    assert bool(report.history_difference()) == bool(text)


@pytest.mark.parametrize(("remembered", "same"), [("It's go on", True), ("It's go", False), ("Go on", True)])
def test_an_incomplete_answer_with_another_one_behind_it(remembered, same):
    turns = [turn(0.0, heard="what", incomplete=True), turn(9.0, heard="", answer="Go on.")]
    report = CallReport(3, turns=turns, history=history("what", remembered))
    assert (report.history_difference() == "") is same


def test_calls_that_were_not_opened_and_that_broke():
    outcome = judge("kill", [CallReport(0, refused="overloaded"), CallReport(1, lost="call_lost")])
    assert (outcome.refused, outcome.lost, outcome.moved) == (["overloaded"], ["call_lost"], 0)


def moved_call(number=0, **fields):
    return CallReport(
        number,
        **{
            "turns": [turn(0.0)],
            "moves": [Move(0.5, "lost", 90.0)],
            "history": history("what time is it", "It's noon."),
            **fields,
        },
    )


def failed(*reports):
    return {
        check.name.partition(" without")[0] for check in judge("kill", reports).checks if not check.passed
    }


def test_calls_that_move_and_go_on_pass():
    assert judge("kill", [moved_call(), CallReport(1, turns=[turn(0.0)])]).passed


@pytest.mark.parametrize(
    ("reports", "names"),
    [
        ([], {"no call is refused", "no call is lost", "calls move"}),
        ([CallReport(0, turns=[turn(0.0)])], {"calls move", "what is remembered was played"}),
        ([moved_call(), CallReport(1, refused="overloaded")], {"no call is refused"}),
        ([moved_call(), moved_call(1, lost="call_lost", history=None)], {"no call is lost"}),
        ([moved_call(), moved_call(1, history=None)], {"what is remembered was played"}),
        ([moved_call(history=history("what time is it"))], {"what is remembered was played"}),
        ([moved_call(), moved_call(1, turns=[turn(0.0, None)])], {"at most 2% of the turns"}),
        ([moved_call(), moved_call(1, turns=[turn(0.0, heard="what time")])], {MISHEARD}),
        ([moved_call(turns=[turn(9.0)])], {MISHEARD}),
    ],
)
def test_what_was_not_seen_or_is_wrong_fails(reports, names):
    assert names <= failed(*reports)


def test_figures_that_are_infinite_are_null_in_json():
    outcome = judge("cut", [moved_call(turns=[turn(0.0, None)], moves=[Move(0.5, "lost")])])
    assert outcome.gaps_ms == [math.inf]
    figures = json.loads(json.dumps(outcome.to_json(), allow_nan=False))
    assert (figures["gaps_ms"], figures["figures"]["p95"], figures["usual_wait_ms"]) == ([None], None, None)
    assert figures["passed"] is False


def audio(length_s, response="r"):
    samples = np.zeros(int(length_s * 1000), np.int16)
    return AgentAudio(turn=1, response_id=response, offset_ms=0, sample_rate=1000, samples=samples, text="")


def test_silence_within_an_answer_is_heard_and_a_pause_is_none():
    silences = []
    speaker = Loudspeaker(silences)
    speaker.on_event(audio(0.5), 10.0)
    speaker.on_event(audio(0.5), 10.8)
    speaker.on_event(protocol.Paused(turn=1, response_id="r", at_ms=0), 11.0)
    speaker.on_event(protocol.Resumed(turn=1, response_id="r", reason="noise"), 14.0)
    speaker.on_event(audio(0.5, "other"), 20.0)
    speaker.on_event(protocol.AgentState(state="listening"), 30.0)
    assert silences == [(pytest.approx(10.5), pytest.approx(300.0))]
