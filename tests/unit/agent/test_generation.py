"""Requests to a language model that fails."""

from __future__ import annotations

import asyncio
from collections import deque

import pytest

from parley.agent.config import AgentConfig, AgentDeadlines
from parley.agent.generation import generate, warm_up
from parley.chat import ChatMessage
from parley.errors import (
    ContextTooLongError,
    DeadlineExceededError,
    InferenceError,
    ModelUnavailableError,
    OverloadedError,
    ShuttingDownError,
)
from parley.llm.messages import Completed, GenerateRequest, Priority, TextDelta, TurnEnd
from parley.runtime.parameters import Parameters

LIMITS = AgentDeadlines(llm_s=10.0, llm_retries=2, llm_retry_s=0.2)
ANSWER = [TextDelta(text="Yes."), Completed(finish_reason="stop")]
SILENCE = object()


class Model:
    """Gives the prepared answers in order."""

    def __init__(self, *answers):
        self.answers = deque(answers)
        self.asked = []
        self.at = []
        self.aborted = []

    async def generate(self, request):
        self.asked.append(request)
        self.at.append(asyncio.get_running_loop().time())
        for event in self.answers.popleft():
            if isinstance(event, Exception):
                raise event
            if event is SILENCE:
                await asyncio.sleep(3_600)
            yield event

    async def abort(self, request_id):
        self.aborted.append(request_id)


def request():
    return GenerateRequest(request_id="r", messages=[ChatMessage(role="user", content="hi")])


async def ask(model, limits=LIMITS):
    return [event async for event in generate(model, request(), limits)]


async def test_what_is_said_of_the_user_s_words_before_the_answer_is_no_beginning():
    ending = TurnEnd(probability=None)
    model = Model([ending, OverloadedError("busy")], [ending, *ANSWER])
    assert await ask(model) == [ending, ending, *ANSWER]


async def test_failures_that_pass_are_not_noticed(caplog):
    model = Model([ModelUnavailableError("restarting")], [OverloadedError("full")], ANSWER)
    assert await ask(model) == ANSWER
    first, second, third = model.at
    assert 0.15 <= second - first <= 0.25
    assert 0.45 <= third - second <= 0.75
    ids = [asked.request_id for asked in model.asked]
    assert ids == ["r", "r-again1", "r-again2"]
    assert model.aborted == ids[1:2]  # of a model without a process there is nothing to stop
    assert [asked.messages for asked in model.asked] == [request().messages] * 3
    assert "restarting" in caplog.text


async def test_failure_that_lasts_for_longer_than_a_second_is_reported_at_once():
    model = Model([ModelUnavailableError("loaded again", retry_after_s=5.0)], ANSWER)
    with pytest.raises(ModelUnavailableError):
        await ask(model)
    assert (len(model.asked), model.aborted) == (1, [])


async def test_the_last_failure_is_the_callers():
    model = Model(*[[InferenceError(f"failure {number}")] for number in range(4)])
    with pytest.raises(InferenceError, match="failure 2"):
        await ask(model)
    assert len(model.asked) == 3


@pytest.mark.parametrize(
    "failure",
    [ContextTooLongError("too long"), ShuttingDownError("stopping"), ZeroDivisionError("a bug")],
)
async def test_failures_that_do_not_pass_are_the_callers_at_once(failure):
    model = Model([failure], ANSWER)
    with pytest.raises(type(failure)):
        await ask(model)
    assert len(model.asked) == 1


async def test_after_the_first_event_there_is_no_other_try():
    model = Model([TextDelta(text="The"), InferenceError("broken")], ANSWER)
    with pytest.raises(InferenceError, match="broken"):
        await ask(model)
    assert len(model.asked) == 1


async def test_all_attempts_share_one_deadline():
    model = Model([ModelUnavailableError("gone")], [SILENCE], ANSWER)
    began = asyncio.get_running_loop().time()
    with pytest.raises(DeadlineExceededError):
        await ask(model)
    assert asyncio.get_running_loop().time() - began == pytest.approx(10.0)
    assert len(model.asked) == 2


async def test_without_time_for_a_pause_there_is_no_other_try():
    model = Model([ModelUnavailableError("gone")], ANSWER)
    with pytest.raises(ModelUnavailableError):
        await ask(model, AgentDeadlines(llm_s=0.1, llm_retry_s=0.2))
    assert len(model.asked) == 1


async def test_later_events_have_the_whole_deadline_each():
    class Slow(Model):
        async def generate(self, request):
            for event in (*[TextDelta(text="a")] * 3, ANSWER[-1]):
                await asyncio.sleep(8)
                yield event

    assert len(await ask(Slow())) == 4


async def test_a_listener_that_goes_away_during_the_pause_ends_it():
    model = Model([ModelUnavailableError("gone")], ANSWER)
    task = asyncio.ensure_future(ask(model))
    await asyncio.sleep(0.1)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert len(model.asked) == 1


async def test_a_warm_up_is_less_urgent_and_not_tried_again():
    model = Model([ModelUnavailableError("gone")], ANSWER)
    await warm_up(model, "call", [ChatMessage(role="system", content="Be brief.")], [], LIMITS)
    (asked,) = model.asked
    assert asked.priority is Priority.WARM_UP > Priority.SPECULATION > Priority.ANSWER
    assert asked.sampling.max_tokens == 1


def test_retry_settings_are_read_from_parameters():
    values = {"llm_retries": "0", "llm_retry_s": "0.5"}
    deadlines = AgentConfig.from_parameters(Parameters("voice_agent", values, environment={})).deadlines
    assert (deadlines.llm_retries, deadlines.llm_retry_s) == (0, 0.5)
