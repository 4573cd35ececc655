"""What `make chaos` makes of what its callers get, and how it causes what it causes."""

from __future__ import annotations

import asyncio
import math
import os
import pathlib
import ssl
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from chaos import callers as callers_module
from chaos import requests as requests_module
from chaos import runner
from chaos.callers import APOLOGIES, Caller, Turn, calling, until_all_answered
from chaos.cli import choose
from chaos.deployment import GATEWAY_1, GATEWAY_2, PARTS, A, B
from chaos.evidence import ChaosCaller, Comparison, Effect, compare_texts, count_turns, find_speech
from chaos.faults import AGENT, make_faults
from chaos.requests import Request, Requests
from chaos.words import Part
from harness.judge import Outcome

from parley import protocol
from parley.errors import InferenceError
from parley_client.errors import ClientError
from parley_client.events import AgentAudio, Reconnecting

CLICK = np.array([0, 20_000, -20_000, 0], np.int16)
RATE = 22_050
PARIS = Part("paris", 2, "sunny", CLICK, frozenset({"toronto", "vienna"}), frozenset({"three", "eight"}))


class FakeCall:
    """Answers every question with the next of the given lists of events."""

    def __init__(self, *answers, ends_after=math.inf):
        self.closed = None
        self._answers = iter(answers)
        self._ends_after = ends_after
        self._events = asyncio.Queue()
        self._is_loud = False
        self.questions = 0

    async def send_audio(self, samples):
        was_loud, self._is_loud = self._is_loud, bool(samples.any())
        if was_loud and not self._is_loud:
            self.questions += 1
            for event in next(self._answers, []):
                self._events.put_nowait(event)
            if self.questions >= self._ends_after:
                self._events.put_nowait(None)

    def __aiter__(self):
        return self

    async def __anext__(self):
        event = await self._events.get()
        if event is None:
            raise InferenceError("the process died")
        return event


def answer(text, response_id="r", samples=100):
    return [
        protocol.ResponseText(turn=1, response_id=response_id, text=text),
        AgentAudio(1, response_id, 0, RATE, np.ones(samples, np.int16), text),
        protocol.ResponseDone(turn=1, response_id=response_id, audio_ms=5),
    ]


def connecting(*calls):
    """Opens these calls, one after the other."""
    waiting = iter(calls)

    @asynccontextmanager
    async def connect():
        yield next(waiting)

    return connect


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(callers_module, "_PAUSE_S", 0.01)
    monkeypatch.setattr(callers_module, "TURN_S", 0.3)


async def until_turns(caller, count):
    async with asyncio.timeout(20):
        while sum(bool(turn.end) for turn in caller.turns) < count:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.01)


async def test_a_turn_ends_with_an_answer_an_apology_an_error_or_nothing():
    error = protocol.ErrorEvent(code="inference_failed", message="no", retryable=True)
    call = FakeCall(answer("In Paris."), answer(min(APOLOGIES)), [error], [], answer("At last."))
    caller = Caller(0, connecting(call), CLICK)
    async with calling([caller]):
        await until_turns(caller, 5)
    ends = [turn.end for turn in caller.turns[:5]]
    assert ends == ["answered", "apology", "error", "nothing", "answered"]
    assert caller.turns[2].codes == {"inference_failed"}
    assert caller.losses == []


async def test_who_has_lost_a_call_calls_again():
    calls = FakeCall(answer("Yes."), ends_after=2), FakeCall(answer("No."))
    caller = Caller(0, connecting(*calls), CLICK)
    async with calling([caller]):
        await until_turns(caller, 3)
    assert [turn.end for turn in caller.turns[:3]] == ["answered", "lost", "answered"]
    assert "the process died" in caller.losses[0].reason


async def test_callers_who_get_no_answer_are_not_waited_for_forever():
    caller = Caller(0, connecting(FakeCall()), CLICK)
    async with calling([caller]):
        with pytest.raises(ClientError, match=r"within 0\.1 s"):
            await until_all_answered([caller], 0.1)


async def test_calling_whose_block_fails_raises_its_error():
    with pytest.raises(ClientError, match="no fault"):
        async with calling([Caller(0, connecting(FakeCall()), CLICK)]):
            raise ClientError("no fault")


def chaos_caller(where=A, part=PARIS):
    return ChaosCaller(0, where, part, connecting())


def test_what_has_become_of_a_call():
    caller = chaos_caller()
    caller.turns = [Turn(1.0, 2.0, "nothing"), Turn(3.0, 4.0, "answered")]
    assert caller.effect(0.0) == Effect.TURN
    assert caller.effect(3.0) == Effect.NOTHING
    caller.turns.append(Turn(5.0, 6.0, "answered", {"asr_fallback"}))
    assert caller.effect(3.0) == Effect.TURN
    caller.on_event(Reconnecting("lost"), 7.0)
    assert caller.effect(3.0) == Effect.MOVE
    caller.losses.append(callers_module.Loss(8.0, "call_lost"))
    assert caller.effect(3.0) == Effect.LOSS
    assert caller.effect(9.0) == Effect.NOTHING


def test_what_belongs_to_another_caller_is_found_in_all_that_came():
    caller, comparison = chaos_caller(), Comparison()
    for event in (
        protocol.Transcript(text="what's the weather in paris", is_final=True, utterance=1, confidence=1.0),
        protocol.ToolRequest(turn=1, call_id="c", name="get_weather", arguments={"city": "Vienna"}),
        *answer("It's 2 degrees and sunny in Paris.", "first"),
        *answer("It's 8 degr", "second"),
        *answer("ees and foggy in Toronto.", "second"),
    ):
        caller.on_event(event, 1.0)
    compare_texts(caller, comparison)
    assert comparison.own == 2
    found = [foreign.partition(" in ")[0] for foreign in comparison.foreign]
    assert found == [
        "tool call of paris: vienna",
        "answer of paris: toronto",
        "answer of paris: eight degrees",
    ]


def test_a_number_that_was_misheard_is_no_mix_up():
    comparison = Comparison()
    comparison.add_heard(PARIS, "it's eight degrees and sunny in paris")
    assert (comparison.own, comparison.foreign) == (1, [])
    comparison.add_heard(PARIS, "it's two degrees and sunny in vienna")
    assert len(comparison.foreign) == 1


def test_speech_is_that_of_complete_answers():
    caller = chaos_caller()
    caller.turns = [
        Turn(1.0, 2.0, "answered", events=answer("In Paris.", samples=RATE)),
        Turn(3.0, 4.0, "apology", events=answer("Sorry.")),
        Turn(5.0, 6.0, "answered"),
    ]
    ((_, samples),) = find_speech(caller)
    assert len(samples) == pytest.approx(16_000, abs=2)


def test_turns_are_counted_from_when_the_fault_began():
    caller = chaos_caller()
    caller.turns = [Turn(1.0, 2.0, "nothing"), Turn(3.0, 4.0, "nothing"), Turn(5.0, 6.0, "error"), Turn(7.0)]
    assert count_turns([caller], 3.0) == (2, 2, ["caller 0 at a got neither an answer nor an error"])


def test_a_tool_answers_with_what_is_its_callers():
    request = protocol.ToolRequest(turn=1, call_id="c", name="get_weather", arguments={"city": "Vienna"})
    response = asyncio.run(PARIS.tools().answer(request))
    assert response.output == {"temperature": 2, "sky": "sunny"}


def test_what_a_fault_may_do_depends_on_what_a_call_depends_on():
    faults = make_faults()
    allowed = {name: [fault.allows(where) for where in PARTS] for name, fault in faults.items()}
    nothing, turn, move, loss = Effect
    assert list(PARTS) == [A, B, GATEWAY_1, GATEWAY_2]
    assert allowed["kill-espeak"] == [turn, nothing, turn, nothing]
    assert allowed[f"stop-{AGENT}"] == [move, nothing, move, nothing]
    assert allowed["cut-server"] == [move, nothing, move, nothing]
    assert allowed["kill-gateway"] == [nothing, nothing, loss, nothing]
    assert all(
        set(allowed[name]) == {nothing} for name in ("nothing", "disk-full", "redis-away", "certificate")
    )
    assert all(fault.recovery_s for fault in faults.values())
    assert all(fault.because for fault in faults.values() if max(fault.recovery_s.values()) > 10)


def test_faults_are_chosen_by_patterns():
    names = ["kill-a", "stop-a", "kill-b", "disk-full"]
    assert choose("disk-*,kill-*", names) == ["disk-full", "kill-a", "kill-b"]
    with pytest.raises(ValueError, match="no fault is named 'x\\*'"):
        choose("kill-a,x*", names)


def failed(outcome):
    return {check.name: check.problems for check in outcome.checks if not check.passed}


@pytest.mark.parametrize("took_s", [math.inf, 10.1])
def test_a_late_recovery_is_a_broken_promise(took_s):
    fault, late, soon = make_faults()["kill-espeak"], Outcome("one"), Outcome("one")
    runner.judge_recovery(late, fault, A, took_s)
    runner.judge_recovery(soon, fault, A, 9.9)
    assert failed(late) == {"a new call at a is answered within 10 s": [f"after {took_s:.1f} s"]}
    assert soon.passed
    assert soon.figures == {"first answer in a new call at a, s": 9.9}


def ended_caller(number, where, end):
    caller = ChaosCaller(number, where, PARIS, connecting())
    caller.turns = [Turn(1.0, 2.0, end)]
    return caller


def test_a_call_that_had_to_be_spared_was_touched():
    outcome = Outcome("one")
    callers = [ended_caller(0, A, "apology"), ended_caller(1, GATEWAY_1, "lost")]
    callers[1].losses.append(callers_module.Loss(1.5, "gone"))
    runner.judge_calls(outcome, make_faults()["kill-gateway"], callers, 1.0)
    assert failed(outcome) == {"no call is hit that should not be": ["caller 0 at a: turn: apology"]}
    assert outcome.figures == {"calls at a: turn": 1, "calls at gateway-1: loss": 1}
    assert outcome.lost == ["gone"]


def test_callers_who_asked_nothing_prove_nothing():
    outcome = Outcome("one")
    callers = [ended_caller(0, GATEWAY_1, "answered")]
    runner.judge_calls(outcome, make_faults()["kill-gateway"], callers, 3.0)
    assert failed(outcome) == {
        "no call is hit that should not be": [],
        "every turn ends": [],
        "every caller has asked since the fault began": ["caller 0"],
    }


def test_a_turn_that_got_nothing_has_no_end():
    outcome = Outcome("one")
    runner.judge_calls(outcome, make_faults()["kill-gateway"], [ended_caller(0, GATEWAY_1, "nothing")], 1.0)
    assert "every turn ends" in failed(outcome)


def test_requests_end_and_those_of_others_succeed():
    fault, outcome = make_faults()["kill-gateway"], Outcome("one")
    requests = [
        Request(GATEWAY_1, "chat", PARIS, 1.0, 0.1, "ConnectError"),
        Request(GATEWAY_2, "chat", PARIS, 1.0, 0.2, "503 no_server_ready"),
        Request(GATEWAY_2, "speech", PARIS, 1.0, 0.3, "ok"),
        Request(GATEWAY_2, "speech", PARIS, 1.0, 35.0, ""),
    ]
    runner.judge_requests(outcome, fault, requests, 1.0)
    answered = "requests are answered, and none is hit that should not be"
    assert failed(outcome) == {
        "every request ends": ["speech at gateway-2 did not end within 45 s"],
        answered: ["chat at gateway-2: 503 no_server_ready"],
    }
    assert outcome.figures["requests: ConnectError"] == outcome.figures["requests: 503 no_server_ready"] == 1
    nothing = Outcome("one")
    runner.judge_requests(nothing, fault, requests[:1], 1.0)
    assert failed(nothing) == {answered: []}


async def test_the_first_new_caller_who_is_answered_counts(monkeypatch):
    monkeypatch.setattr(runner, "_NEWCOMER_EVERY_S", 0.05)
    monkeypatch.setattr(runner, "_NEWCOMERS", 2)
    opened = []

    @asynccontextmanager
    async def connect():
        opened.append(FakeCall(*([] if len(opened) < 4 else [answer("Sunny.")])))
        yield opened[-1]

    answered = await runner.first_of_newcomers(connect, PARIS, time.time() + 20)
    assert answered
    assert len(opened) >= 5
    assert not await runner.first_of_newcomers(connecting(FakeCall()), PARIS, time.time() - 1)


async def test_a_request_without_an_answer_has_no_end(monkeypatch):
    monkeypatch.setattr(requests_module, "BOUND_S", 2.0)
    monkeypatch.setattr(requests_module, "_EVERY_S", 0.01)
    accepted = []
    server = await asyncio.start_server(lambda _, writer: accepted.append(writer), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        silent, gone = f"http://127.0.0.1:{port}", "http://127.0.0.1:9"
        deployment = SimpleNamespace(
            urls={"silent": silent, "gone": gone}, trust=lambda _: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        )
        requests = Requests(deployment, [PARIS])
        task = asyncio.create_task(requests.run())
        async with asyncio.timeout(20):
            while len(requests.sent) < 2:  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        for writer in accepted:
            writer.close()
    assert accepted
    assert {request.where: request.end for request in requests.sent} == {"silent": "", "gone": "ConnectError"}


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_file_system_is_filled_to_its_last_page(tmp_path):
    program = (
        "import pathlib, sys, chaos.deployment; print(chaos.deployment._fill(pathlib.Path(sys.argv[1])))"
    )
    shell = 'mount -t tmpfs -o size=1m none "$1" && "$2" -c "$3" "$1/ballast" && ! echo x > "$1/more"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", shell, "sh", str(tmp_path), sys.executable, program],
        env={**os.environ, "PYTHONPATH": str(pathlib.Path(runner.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, f"{1 << 20}\n"), done.stderr


async def shown():
    return "old\n"


@pytest.mark.parametrize(
    ("name", "deployment", "problem"),
    [
        (
            "certificate",
            {"shown_certificate": shown, "certificate": SimpleNamespace(read_text=lambda: "new\n")},
            "the old certificate is still shown",
        ),
        ("lose-packets", {"node_a": SimpleNamespace(dropped=lambda: 0)}, "no packet was lost"),
        ("kill-espeak", {"a": SimpleNamespace(stubs=lambda _: [])}, "the process of espeak was not replaced"),
        ("kill-server", {"a": SimpleNamespace(triton_pid=0)}, "tritonserver was not replaced"),
    ],
)
async def test_a_fault_that_changed_nothing_is_a_problem(name, deployment, problem):
    assert await make_faults()[name].check(SimpleNamespace(**deployment)) == [problem]


async def test_a_process_that_goes_on_after_its_signal_was_not_replaced():
    process = await asyncio.create_subprocess_exec("sleep", "60")
    stub = SimpleNamespace(pid=process.pid)
    deployment = SimpleNamespace(a=SimpleNamespace(stubs=lambda _: [stub], triton_pid=process.pid))
    faults = make_faults()
    try:
        for name in ("stop-espeak", "stop-server"):
            async with faults[name].cause(deployment):
                pass
            (problem,) = await faults[name].check(deployment)
            assert problem.endswith("was not replaced")
    finally:
        process.kill()
        await process.wait()
