"""Preemptive generation: answers that are begun before the end of the user's turn is certain."""

from __future__ import annotations

import pytest
from agent_fakes import FakeCall, calls, says, utterance
from hypothesis import given
from hypothesis import strategies as st

from parley.agent.config import AgentConfig
from parley.agent.preemption import PreemptionBudget
from parley.errors import InferenceError
from parley.protocol import (
    Audio,
    Interrupted,
    ResponseText,
    Start,
    Tool,
    ToolRequest,
    ToolResponse,
    TurnDecision,
    TurnMetrics,
    TurnOptions,
)

PATIENT = TurnOptions(eagerness="normal", complete_ms=1_000)


async def answered(call, *, turns=1, **options):
    await call.start(Start(turn=PATIENT, **options))
    await call.end(TurnMetrics, turns)
    return call


async def test_the_answer_is_heard_the_moment_the_turn_is_over():
    call = FakeCall(hears=[(200, 1_000, "what time is it")], answers=[says("It is late. Very late.")])
    await answered(call)
    commit = call.outlet.of(TurnDecision)[-1]
    audio = call.outlet.of(Audio)[0]
    assert commit.decision == "commit"
    assert call.at_ms(audio) == pytest.approx(call.at_ms(commit))
    (metrics,) = call.outlet.of(TurnMetrics)
    assert (metrics.speculations, metrics.speculated, metrics.llm_first_token_ms) == (1, True, 0)
    assert call.at_ms(call.outlet.of(ResponseText)[0]) >= call.at_ms(commit)
    assert call.speculated == ["used"]


async def test_further_words_replace_the_preemptive_answer():
    call = FakeCall()
    call.hears((200, 1_000, "set a timer"), (1_600, 2_400, "ten minutes"))
    call.chat.answers += [says("For how long? I ask because I want to know."), says("Okay, ten minutes.")]
    call.chat.token_s = 0.1
    await answered(call)
    assert call.chat.prompt(0)[1:] == [("user", "set a timer")]
    assert call.chat.prompt(1)[1:] == [("user", "set a timer ten minutes")]
    said = "".join(event.text for event in call.outlet.of(ResponseText))
    assert said == "Okay, ten minutes."
    assert call.outlet.of(Interrupted) == []
    assert len(call.chat.aborted) == 1
    (metrics,) = call.outlet.of(TurnMetrics)
    assert (metrics.turn, metrics.speculations, metrics.speculated) == (1, 2, True)
    assert call.speculated == ["discarded", "used"]


async def test_tools_run_when_the_turn_is_over_and_not_before():
    call = FakeCall()
    call.hears((200, 1_000, "weather"), (1_600, 2_400, "in rome"))
    call.chat.answers += [
        calls(("get_weather", {"city": "Nowhere"})),
        calls(("get_weather", {"city": "Rome"})),
        says("Sunny."),
    ]
    await call.start(Start(turn=PATIENT, tools=[Tool(name="get_weather")]))
    request = await call.wait_for(ToolRequest)
    commit = call.outlet.of(TurnDecision)[-1]
    assert commit.decision == "commit"
    assert request.arguments == {"city": "Rome"}
    assert call.at_ms(request) == pytest.approx(call.at_ms(commit))
    await call.request(ToolResponse(call_id=request.call_id, output="sun"), TurnMetrics)
    await call.end()
    assert [event.arguments["city"] for event in call.outlet.of(ToolRequest)] == ["Rome"]


async def test_failed_preemptive_answer_is_begun_anew():
    call = FakeCall(hears=[(200, 1_000, "hello")])
    call.chat.answers += [[InferenceError("x")]] * 3 + [says("Hello!")]
    await call.start(Start(turn=TurnOptions(eagerness="normal", complete_ms=3_000)))
    await call.end(TurnMetrics)
    assert call.outlet.codes == []
    assert [request.text for request in call.synthesizer.requests] == ["Hello!"]
    (metrics,) = call.outlet.of(TurnMetrics)
    assert (metrics.speculations, metrics.speculated) == (1, False)
    assert call.speculated == ["discarded"]


async def test_a_sound_in_the_pause_keeps_the_turn_open_until_it_is_known():
    call = FakeCall(hears=[(200, 1_000, "set a timer"), (1_900, 2_800, "ten minutes")])
    await answered(call)
    # Speech is believed after 96 ms, which is after the pause had lasted long enough.
    assert [event.decision for event in call.outlet.of(TurnDecision)] == ["wait", "resume", "wait", "commit"]
    assert len(call.outlet.of(TurnMetrics)) == 1
    assert call.chat.prompt()[-1] == ("user", "set a timer ten minutes")


@pytest.mark.parametrize(("per_turn", "begun"), [(0, 0), (1, 1), (2, 2)])
async def test_a_turn_has_so_many_attempts(per_turn, begun):
    call = FakeCall(AgentConfig(speculations_per_turn=per_turn))
    call.hears((200, 600, "one"), (1_100, 1_500, "thing"), (2_000, 2_400, "more"))
    await answered(call)
    (metrics,) = call.outlet.of(TurnMetrics)
    assert metrics.speculations == begun
    assert not metrics.speculated
    assert len(call.chat.requests) == begun + 1


async def test_discarded_preemptive_answers_per_minute_are_bounded():
    call = FakeCall(AgentConfig(wasted_speculations_per_minute=2))
    pauses = [(200 + 900 * n, 600 + 900 * n, "more") for n in range(12)]
    call.hears(*pauses)
    await answered(call)
    assert call.speculated.count("discarded") == 2


async def test_an_interruption_is_prepared_for_as_well():
    call = FakeCall()
    call.recognition.script.extend(utterance(1, 200, 1_000, "hello"))
    call.recognition.script.extend(utterance(2, 6_000, 6_800, "what time is it"))
    await answered(call, turns=2)
    assert call.speculated == ["used", "used"]


def test_the_budget_of_a_turn_is_its_number_of_attempts():
    budget = PreemptionBudget(per_turn=2, wasted_per_minute=10)
    assert [budget.take(0.0) for _ in range(3)] == [True, True, False]
    assert budget.end_turn() == 2
    assert budget.take(0.0)
    assert budget.end_turn() == 1


def test_tokens_of_discarded_answers_are_refilled():
    budget = PreemptionBudget(per_turn=100, wasted_per_minute=2)
    for _ in range(2):
        assert budget.take(0.0)
        budget.record_discarded(0.0)
    assert not budget.take(0.0)
    assert not budget.take(29.0)
    assert budget.take(30.1)


def test_used_answers_cost_no_tokens():
    budget = PreemptionBudget(per_turn=1, wasted_per_minute=1)
    for second in range(100):
        assert budget.take(float(second))
        budget.end_turn()


def test_a_budget_of_zero_allows_none():
    assert not PreemptionBudget(per_turn=0, wasted_per_minute=5).take(0.0)


@given(st.lists(st.tuples(st.floats(0, 10), st.booleans()), max_size=200), st.integers(1, 8))
def test_discarded_answers_are_bounded_for_any_sequence(turns, most):
    budget = PreemptionBudget(per_turn=1, wasted_per_minute=most)
    now, wasted = 0.0, 0
    for passed, useful in turns:
        now += passed
        if budget.take(now) and not useful:
            budget.record_discarded(now)
            wasted += 1
        budget.end_turn()
    assert wasted <= most + most * now / 60 + 1e-6
