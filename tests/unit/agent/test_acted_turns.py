"""Turns that fail after tools have been run: nothing may be done twice."""

from __future__ import annotations

import pytest
from agent_fakes import FakeCall, calls, says, spoken

from parley.agent.config import AgentConfig, AgentDeadlines
from parley.agent.memory import ToolRound, cut_after, shorten_results
from parley.errors import ContextTooLongError, InferenceError, ModelUnavailableError
from parley.llm.history import estimate_tokens
from parley.protocol import ErrorEvent, Start, Tool, ToolRequest, ToolResponse, TurnMetrics

BOOK = Start(tools=[Tool(name="book")])
NO_RETRIES = AgentDeadlines(llm_retries=0, llm_s=2.0)


async def booked(*answers, config=None, count=1, output="booked", more=()) -> FakeCall:
    """A session in which ``count`` tables have been booked, and the turn is over."""
    call = FakeCall(config or AgentConfig(deadlines=NO_RETRIES))
    call.chat.answers += [calls(*(("book", {"table": index}) for index in range(count))), *answers]
    call.hears((200, 1_000, "book a table"), *more)
    await call.start(BOOK)
    await call.wait_for(ToolRequest, count)
    for request in call.outlet.of(ToolRequest):
        call.send(ToolResponse(call_id=request.call_id, output=output))
    await call.wait_for(TurnMetrics)
    return call


async def test_the_model_is_asked_once_more_without_tools():
    call = await booked([InferenceError("broken")], says("Booked."))
    await call.end()
    assert spoken(call) == ["Booked."]
    assert call.outlet.codes == []
    assert [bool(request.tools) for request in call.chat.requests] == [True, True, False]
    assert call.chat.requests[-1].messages[-1].role == "system"


async def test_the_user_is_not_asked_to_say_it_again():
    failure = [ModelUnavailableError("gone")]
    call = await booked(failure, failure, says("It is booked."), more=[(9_000, 9_500, "is it booked")])
    assert spoken(call) == [AgentConfig().acted_apology]
    (error,) = call.outlet.of(ErrorEvent)
    assert (error.code, error.tools_ran) == ("model_unavailable", True)
    await call.end(TurnMetrics, 2)
    assert call.chat.prompt()[1:] == [
        ("user", "book a table"),
        ("assistant", ""),
        ("tool", '"booked"'),
        ("user", "is it booked"),
    ]


async def test_a_user_who_has_waited_long_is_not_made_to_wait_again():
    call = FakeCall(AgentConfig(deadlines=NO_RETRIES))
    call.chat.answers += [calls(("book", {}))]
    call.hears((200, 1_000, "book a table"))
    await call.start(BOOK)
    request = await call.wait_for(ToolRequest)
    call.chat.first_s = 30.0
    await call.request(ToolResponse(call_id=request.call_id, output="booked"), TurnMetrics)
    await call.end()
    assert call.outlet.codes == ["deadline_exceeded"]
    assert len(call.chat.requests) == 2
    assert spoken(call) == [AgentConfig().acted_apology]


async def test_a_call_that_was_refused_has_done_nothing():
    call = FakeCall(AgentConfig(deadlines=NO_RETRIES))
    call.chat.answers += [calls(("cancel", {})), [InferenceError("broken")]]
    call.hears((200, 1_000, "book a table"))
    await call.start(BOOK)
    await call.end(TurnMetrics)
    assert [error.tools_ran for error in call.outlet.of(ErrorEvent)] == [False]
    assert spoken(call) == [AgentConfig().apology]


async def test_missing_phrase_is_not_spoken():
    config = AgentConfig(acted_apology="", deadlines=NO_RETRIES)
    failure = [InferenceError("broken")]
    call = await booked(failure, failure, config=config)
    await call.end()
    assert spoken(call) == []
    assert call.outlet.codes == ["inference_failed"]


def limit_window(call: FakeCall, tokens: int, characters_per_token: float) -> None:
    """The model refuses what is longer than its window."""
    generate = call.chat.generate

    async def limited(request):
        length = sum(len(message.content) for message in request.messages)
        if length / characters_per_token > tokens and request.sampling.max_tokens > 1:
            raise ContextTooLongError(f"{length} characters")
        async for event in generate(request):
            yield event

    call.chat.generate = limited


@pytest.mark.parametrize("context_tokens", [4_096, 8_192])
@pytest.mark.parametrize("characters_per_token", [3.0, 1.0])
async def test_results_that_overflow_the_window_are_shortened(context_tokens, characters_per_token):
    """Four rounds of twelve results with 4,000 characters each, in text of any density."""
    call = FakeCall(AgentConfig(context_tokens=context_tokens))
    limit_window(call, context_tokens - 128, characters_per_token)
    round_of_calls = calls(*(("book", {"table": index}) for index in range(12)))
    call.chat.answers += [*[round_of_calls] * 4, says("All booked.")]
    call.hears((200, 1_000, "book them all"), (30_000, 30_500, "thanks"))
    await call.start(BOOK)
    for count in range(48):
        request = await call.wait_for(ToolRequest, count + 1)
        call.send(ToolResponse(call_id=request.call_id, output=f"booked {count} " + "x" * 5_000))
    await call.end(TurnMetrics, 2)
    assert call.outlet.codes == []
    assert spoken(call)[-2:] == ["All booked.", "Okay."]
    results = [message.content for message in call.chat.requests[-2].messages if message.role == "tool"]
    assert len(results) == 48
    assert all("cut after" in result for result in results)
    assert len(results[-1]) > len(results[0]) - 12, "the newest keep the most, the marks aside"


def rounds_of(*lengths: int) -> list[ToolRound]:
    return [ToolRound(results={"a": "x" * length}) for length in lengths]


def total(rounds: list[ToolRound]) -> int:
    return sum(estimate_tokens(result) for answer in rounds for result in answer.results.values())


def test_results_that_fit_stay_as_they_are():
    rounds = rounds_of(300, 300)
    assert not shorten_results(rounds, 200)
    assert total(rounds) == 200


def test_the_oldest_results_are_cut_first():
    rounds = rounds_of(3_000, 3_000, 3_000)
    assert shorten_results(rounds, 1_500)
    assert len(rounds[0].results["a"]) <= len(rounds[1].results["a"]) <= len(rounds[2].results["a"])
    assert total(rounds) <= 1_500
    assert not shorten_results(rounds, 1_500), "cutting has an end"


def test_a_cut_is_marked_once():
    rounds = rounds_of(4_000)
    for budget in (1_000, 500, 250, 125):
        assert shorten_results(rounds, budget)
        (text,) = rounds[0].results.values()
        kept = text.index("…")
        assert text == cut_after("x" * 4_000, kept)
        assert estimate_tokens(text) <= budget


@pytest.mark.parametrize("count", [1, 7, 48])
@pytest.mark.parametrize("budget", [48 * 14, 1_920, 10_000])
def test_any_number_of_results_fits(count, budget):
    rounds = rounds_of(*[4_000] * count)
    shorten_results(rounds, budget)
    assert total(rounds) <= budget


def test_result_of_two_scripts_is_cut_to_its_tokens():
    rounds = [ToolRound(results={"one": "\u4f60" * 1_000 + "a" * 3_000, "two": "[1, 2, 3]"})]
    assert shorten_results(rounds, 1_000)
    assert sum(map(estimate_tokens, rounds[0].results.values())) <= 1_000
    assert not shorten_results([ToolRound(results={"one": "[1, 2, 3]"})], 2)
