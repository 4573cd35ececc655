"""What `make cluster` makes of its callers' reports and of logs."""

from __future__ import annotations

import json
import math
from datetime import datetime

import pytest
from cluster.judging import Disturbance, judge, retryable_codes
from cluster.session_logs import GatewayLogs, ServerLog, open_sessions
from harness.caller import CallReport
from harness.judge import Check, Outcome

from parley.chat import ChatMessage
from parley.checkpoint import HistoryState
from parley.protocol import ToolRequest
from parley_client.cli.turns import TurnReport

CALLS = {f"gateway-1_{number}": f"call-{number}" for number in range(4)}
WEATHER = ToolRequest(call_id="c", turn=1, name="get_weather", arguments={"city": "Paris"})


def degrees(caller):
    return 4 + caller


def turn(begin_s, answer="In Paris it is 4 degrees.", wait_s=0.5, **fields):
    answered_s = None if wait_s is None else begin_s + 1.0 + wait_s
    return TurnReport(
        "turn",
        **{
            "said": "what's the weather",
            "heard": "what's the weather",
            "answer": answer,
            "tools": [WEATHER],
            "speech_began_s": begin_s,
            "speech_ended_s": begin_s + 1.0,
            "answered_s": answered_s,
            **fields,
        },
    )


def call(number=0, *turns, **fields):
    turns = turns or (turn(10.0, f"It is {degrees(number)} degrees."), turn(30.0, f"{degrees(number)}."))
    messages = []
    for one in turns:
        messages += [
            ChatMessage(role="user", content=one.heard),
            ChatMessage(role="assistant", content=one.answer),
        ]
    return CallReport(
        number,
        **{
            "session_id": f"gateway-1_{number}",
            "began_s": 0.0,
            "ended_s": 100.0,
            "turns": list(turns),
            "history": HistoryState(messages=messages),
            "responses": {f"call-{number}-1"},
            **fields,
        },
    )


def judged(*reports, affected=("call-0",), moves=("call-0",), resumed=(), **fields):
    affected = None if affected is None else set(affected)
    disturbance = Disturbance(20.0, 40.0, affected, **fields)
    later = {f"gateway-1_{number}": [f"gateway-2_{number}"] for number in resumed}
    logs = GatewayLogs(CALLS, {one: [(1_000.0, "lost")] for one in moves}, later)
    return judge("node-loss", reports, disturbance, logs, degrees)


def failed(outcome):
    return {check.name.partition(" of the turns")[0] for check in outcome.checks if not check.passed}


def test_a_call_that_moves_and_one_that_notices_nothing():
    outcome = judged(call(0), call(1))
    assert outcome.passed
    assert (outcome.calls, outcome.moved, outcome.figures["calls touched"]) == (2, 1, 1)
    assert outcome.gaps_ms == [0.0]
    assert outcome.usual_wait_ms == pytest.approx(500.0)


@pytest.mark.parametrize(
    ("reports", "name"),
    [
        ((call(0), call(1, lost="call_lost")), "no call was lost"),
        ((call(0), call(1), CallReport(2, lost="call_lost")), "no call was lost"),
        ((call(0), call(1), CallReport(2, refused="unsupported_voice")), "refused calls may try again"),
        ((call(0), call(1, turn(10.0, wait_s=None))), "at most 2%"),
        ((call(0), call(1, history=None)), "each call's history is what was played"),
        ((call(0), call(1, history=HistoryState())), "each call's history is what was played"),
        ((call(0), call(1, turn(10.0, "It is 4 degrees."))), "no text of another call"),
        ((call(0), call(1, responses={"call-0-1"})), "no text of another call"),
    ],
)
def test_what_breaks_an_invariant(reports, name):
    assert name in failed(judged(*reports))


def test_a_call_that_another_fault_touched():
    outcome = judged(call(0), call(1), moves=("call-0", "call-1"))
    assert failed(outcome) == {"no other call was touched"}
    assert outcome.checks[-1].problems == ["gateway-1_1 moved: lost"]


def test_a_call_that_changed_its_gateway_was_touched():
    outcome = judged(call(0), call(1), resumed=(0, 1))
    assert outcome.figures["calls that changed their gateway"] == 2
    assert outcome.checks[-1].problems == ["gateway-1_1 went on at another gateway"]


def test_a_call_that_moved_before_was_not_touched():
    assert judged(call(0), call(1), moves=("call-0", "call-1"), began_at=1_001.0).passed


def test_checks_that_had_nothing_to_check_fail():
    assert failed(judged()) >= {"no call was lost", "refused calls may try again", "no text of another call"}
    assert "no other call was touched" in failed(judged(call(0)))
    assert "no text of another call" in failed(
        judged(call(0, turn(10.0, "No idea.")), call(1, turn(10.0, "?")))
    )
    assert not Outcome("rolling").passed
    assert not Check("something", 0).passed


def test_where_all_calls_are_affected_there_are_no_others():
    outcome = judged(call(0), call(1), affected=None, moves=("call-0", "call-1"))
    assert outcome.passed
    assert outcome.figures["calls touched"] == 2
    assert "no other call was touched" not in {check.name for check in outcome.checks}


def test_a_call_that_needs_not_survive():
    outcome = judged(call(0, lost="call_lost"), call(1), may_lose=lambda report: report.number == 0)
    assert outcome.passed
    assert outcome.lost == ["call_lost"]


def test_a_disturbance_may_leave_more_turns_without_an_answer():
    silent = call(1, turn(10.0, "5 degrees."), turn(30.0, wait_s=None, answer="", heard=""))
    assert "at most 2%" in failed(judged(call(0), silent, affected=None))
    assert judged(call(0), silent, affected=None, most_unanswered=0.25).passed


def test_a_call_before_the_disturbance_is_no_witness():
    assert "no other call was touched" in failed(judged(call(0), call(1, ended_s=19.0)))


def test_refused_calls_that_may_try_again_are_counted_and_pass():
    outcome = judged(call(0), call(1), CallReport(2, refused="too_many_calls"))
    assert outcome.passed
    assert outcome.refused == ["too_many_calls"]


def test_silence_and_waiting_while_the_disturbance_lasts_is_a_gap():
    silent = call(0, silences=[(25.0, 800.0), (80.0, 9000.0)])
    waiting = call(0, turn(10.0), turn(30.0, wait_s=2.0))
    unanswered = call(0, turn(10.0), turn(30.0, wait_s=None))
    gaps = [judged(one, call(1)).gaps_ms for one in (silent, waiting, unanswered)]
    assert gaps == [[800.0], [pytest.approx(1500.0)], [math.inf]]


def test_figures_that_are_infinite_are_null_in_json():
    outcome = judged(call(0, turn(30.0, wait_s=None)), call(1))
    outcome.figures["empty after, s"] = math.inf
    figures = json.loads(json.dumps(outcome.to_json(), allow_nan=False))
    assert (figures["gaps_ms"], figures["figures"]["empty after, s"]) == ([None], None)
    assert figures["passed"] is False
    assert {check["name"] for check in figures["checks"]} >= {"no call was lost"}


def test_codes_of_server_gateway_and_client_after_which_to_try_again():
    codes = retryable_codes()
    assert codes >= {"overloaded", "shutting_down", "too_many_calls", "no_server_ready", "connect_failed"}
    assert not codes & {"invalid_message", "unsupported_voice", "wrong_gateway", "unauthorized"}


ONE, TWO, THREE = (f"{digit * 8}-0000-4000-8000-{digit * 12}" for digit in "123")


def test_which_sessions_a_server_has(tmp_path):
    path = tmp_path / "triton.log"
    assert ServerLog(path).sessions() == set()
    path.write_text(
        f"I1125 voice_agent: {ONE}: opened\nnoise\nI1125 voice_agent: {TWO}.2: opened\n"
        f"I1125 voice_agent: {ONE}: closed: hangup\n"
    )
    assert open_sessions(path.read_text()) == {TWO}
    log = ServerLog(path)
    with path.open("a") as more:
        more.write(f"voice_agent: {THREE}: opened\nvoice_agent: {THREE}: closed: lost\n")
    assert (log.open, log.sessions()) == ({TWO}, {TWO, THREE})


def test_which_call_a_session_is_and_which_have_moved(tmp_path):
    path, other = tmp_path / "gateway-1.log", tmp_path / "gateway-2.log"
    other.write_text(
        '{"at":1795629721.5,"event":"session_resumed","who":"anonymous",'
        f'"session":"gateway-2_{THREE}","first":"gateway-1_{TWO}","epoch":2}}\n'
        f"2026-11-25 18:20:12,000 INFO parley.gateway: session gateway-2_{THREE} has call {TWO}\n"
    )
    path.write_text(
        f"2026-11-25 18:20:08,000 INFO parley.gateway: session gateway-1_{TWO} has call {ONE}\n"
        f"2026-11-25 18:20:09,000 WARNING parley.gateway: call {ONE} cannot go on at 10.78.1.3:8001: full\n"
        f"2026-11-25 18:20:09,500 WARNING parley.gateway: call {ONE} goes on at 10.78.1.4:8001: silent\n"
    )
    logs = GatewayLogs.read([path, other, tmp_path / "gateway-3.log"])
    assert logs.calls == {f"gateway-1_{TWO}": ONE, f"gateway-2_{THREE}": TWO}
    assert logs.ids_of(f"gateway-1_{TWO}") == [f"gateway-1_{TWO}", f"gateway-2_{THREE}"]
    assert logs.calls_of(f"gateway-1_{TWO}") == {ONE, TWO}
    at = datetime(2026, 11, 25, 18, 20, 9, 500_000).timestamp()  # noqa: DTZ001 - of this machine
    assert logs.moves == {ONE: [(at, "silent")]}
