"""One chat model answers where another fails."""

from __future__ import annotations

import asyncio

import pytest

from parley.chat import ChatMessage, ToolCall
from parley.engines.chat_fallback import ChatFallback, ChatFallbackLimits, FallbackChat, NamedChat, join_chats
from parley.errors import (
    ContextTooLongError,
    InferenceError,
    ModelUnavailableError,
    OverloadedError,
    ShuttingDownError,
)
from parley.llm.messages import Completed, GenerateRequest, Priority, Question, TextDelta, ToolCalled, TurnEnd

HANGS = object()
DONE = Completed(finish_reason="stop")
LIMITS = ChatFallbackLimits(first_token_s=2.0, cooldown_s=10.0, abort_s=0.5)


class Chat:
    """Gives the same events to every request."""

    def __init__(self, *events):
        self.events = events
        self.requests, self.aborted = [], []
        self.closed = False

    async def generate(self, request):
        self.requests.append(request)
        for event in self.events:
            if isinstance(event, Exception):
                raise event
            if event is HANGS:
                await asyncio.sleep(10_000)
            yield event

    async def abort(self, request_id):
        self.aborted.append(request_id)

    async def close(self):
        self.closed = True


class Rig:
    def __init__(self, *chats):
        self.fallbacks = []
        self.chats = chats
        names = ("first", "second", "third")
        models = [NamedChat(name, chat) for name, chat in zip(names, chats, strict=False)]
        self.chat = FallbackChat(models, LIMITS, self.fallbacks.append)

    async def ask(self, **options):
        request = GenerateRequest(
            request_id="r", messages=[ChatMessage(role="user", content="hi")], **options
        )
        return [event async for event in self.chat.generate(request)]

    @property
    def asked(self):
        return [len(chat.requests) for chat in self.chats]


def answers(text="Yes.", **fields):
    return Chat(TextDelta(text=text), Completed(finish_reason="stop", **fields))


async def test_first_model_answers_alone():
    rig = Rig(answers(), answers("No."))
    assert await rig.ask() == [TextDelta(text="Yes."), DONE]
    assert (rig.asked, rig.fallbacks, rig.chat.model) == ([1, 0], [], "first")


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([ModelUnavailableError("its process has ended")], "model_unavailable"),
        ([OverloadedError("HTTP 429")], "overloaded"),
        ([InferenceError("HTTP 400")], "inference_failed"),
        ([HANGS], "deadline_exceeded"),
        ([TextDelta(text=" \n"), HANGS], "deadline_exceeded"),
        ([DONE], "no_answer"),
        ([TextDelta(text="\n"), Completed(finish_reason="length")], "no_answer"),
    ],
)
async def test_failure_before_the_first_text_is_answered_by_the_next_model(events, reason, caplog):
    rig = Rig(Chat(*events), answers(completion_tokens=3))
    *texts, completed = await rig.ask()
    assert texts == [TextDelta(text="Yes.")]
    assert (completed.model, completed.completion_tokens) == ("second", 3)
    assert rig.fallbacks == [ChatFallback("first", "second", reason)]
    assert f"first is replaced by second: {reason}" in caplog.text


async def test_what_an_answer_says_of_the_user_s_words_is_passed_on_at_once_and_is_no_beginning():
    rig = Rig(Chat(TurnEnd(probability=0.5), HANGS), answers())
    request = GenerateRequest(messages=[ChatMessage(role="user", content="hi")], reads_turn=True)
    stream = rig.chat.generate(request)
    assert await asyncio.wait_for(anext(stream), 0.1) == TurnEnd(probability=0.5)
    assert await anext(stream) == TextDelta(text="Yes.")
    assert rig.fallbacks == [ChatFallback("first", "second", "deadline_exceeded")]
    await stream.aclose()


@pytest.mark.parametrize(
    "begins", [TextDelta(text="I"), ToolCalled(call=ToolCall(id="c", name="t", arguments={}))]
)
async def test_failure_after_the_beginning_is_not_replaced(begins):
    rig = Rig(Chat(begins, InferenceError("broken")), answers())
    with pytest.raises(InferenceError, match="broken"):
        await rig.ask()
    assert (rig.asked, rig.fallbacks) == ([1, 0], [])


async def test_late_model_is_stopped_before_the_next_is_asked():
    rig = Rig(Chat(HANGS), answers())
    began = asyncio.get_running_loop().time()
    await rig.ask()
    assert asyncio.get_running_loop().time() - began == pytest.approx(LIMITS.first_token_s)
    assert rig.chats[0].aborted == ["r"]
    assert not rig.chats[1].aborted


async def test_model_that_died_is_not_asked_to_stop():
    rig = Rig(Chat(ModelUnavailableError("gone")), answers())
    await rig.ask()
    assert not rig.chats[0].aborted


async def test_text_after_white_space_is_passed_on_whole():
    rig = Rig(Chat(TextDelta(text="\n"), TextDelta(text="Yes."), DONE), answers("No."))
    assert await rig.ask() == [TextDelta(text="\n"), TextDelta(text="Yes."), DONE]


async def test_answer_that_was_begun_elsewhere_may_have_nothing_more():
    rig = Rig(Chat(DONE), answers())
    assert await rig.ask(prefix="It is eight.") == [DONE]


@pytest.mark.parametrize("error", [ContextTooLongError("too long"), ShuttingDownError("stops")])
async def test_what_no_other_model_can_mend_is_the_callers(error):
    rig = Rig(Chat(error), answers())
    with pytest.raises(type(error)):
        await rig.ask()
    assert rig.asked == [1, 0]


async def test_last_models_outcome_is_the_callers():
    rig = Rig(Chat(InferenceError("one")), Chat(DONE))
    (completed,) = await rig.ask()
    assert completed.model == "second"
    rig = Rig(Chat(InferenceError("one")), Chat(OverloadedError("two")))
    with pytest.raises(OverloadedError):
        await rig.ask()


async def test_model_is_passed_over_after_an_outage_and_then_asked_again():
    rig = Rig(Chat(ModelUnavailableError("gone")), answers())
    await rig.ask()
    assert rig.chat.model == "second"
    await asyncio.sleep(9.0)
    await rig.ask()
    assert rig.asked == [1, 2]
    await asyncio.sleep(1.5)
    assert rig.chat.model == "first"
    await rig.ask()
    assert rig.asked == [2, 3]
    await asyncio.sleep(15.0)  # the second outage in a row counts twice
    await rig.ask()
    assert rig.asked == [2, 4]
    rig.chats[0].events = answers().events
    await asyncio.sleep(6.0)
    assert (await rig.ask())[-1].model == ""
    rig.chats[0].events = [ModelUnavailableError("gone")]
    await rig.ask()
    await asyncio.sleep(11.0)  # the first one in a row again
    assert rig.chat.model == "first"


async def test_outage_lasts_as_long_as_the_model_says():
    rig = Rig(Chat(OverloadedError("full", retry_after_s=60.0)), answers())
    await rig.ask()
    await asyncio.sleep(50.0)
    assert rig.chat.model == "second"


async def test_empty_answer_is_no_outage():
    rig = Rig(Chat(DONE), answers())
    await rig.ask()
    assert rig.chat.model == "first"


async def test_all_are_asked_where_all_had_an_outage():
    rig = Rig(Chat(ModelUnavailableError("gone")), Chat(ModelUnavailableError("gone")))
    for _ in range(2):
        with pytest.raises(ModelUnavailableError):
            await rig.ask()
    rig.chats[1].events = answers().events
    assert (await rig.ask())[-1].model == "second"


async def test_warm_up_is_for_the_first_model_only():
    rig = Rig(Chat(DONE), answers())
    assert await rig.ask(priority=Priority.WARM_UP) == [DONE]
    rig = Rig(Chat(ModelUnavailableError("gone")), answers())
    with pytest.raises(ModelUnavailableError):
        await rig.ask(priority=Priority.WARM_UP)
    assert (rig.asked, rig.fallbacks, rig.chat.model) == ([1, 0], [], "second")


async def test_refusal_of_what_is_no_answer_is_no_outage():
    rig = Rig(Chat(OverloadedError("full")), answers())
    with pytest.raises(OverloadedError):
        await rig.ask(priority=Priority.WARM_UP)
    assert rig.chat.model == "first"


async def test_abort_reaches_the_model_that_answers_also_after_it_was_left():
    rig = Rig(Chat(ModelUnavailableError("gone")), Chat(TextDelta(text="I"), HANGS))
    stream = rig.chat.generate(GenerateRequest(request_id="r", messages=[]))
    assert await anext(stream) == TextDelta(text="I")
    await stream.aclose()
    await rig.chat.abort("r")
    await rig.chat.abort("r")
    assert [chat.aborted for chat in rig.chats] == [[], ["r"]]


async def test_models_are_closed_together():
    rig = Rig(answers(), answers())
    await rig.chat.close()
    assert all(chat.closed for chat in rig.chats)


def test_one_model_stays_as_it_is():
    chat = answers()
    assert join_chats([NamedChat("one", chat)], LIMITS, print) is chat


async def test_questions_that_fail_are_not_asked_elsewhere():
    rig = Rig(Chat(InferenceError("no log probabilities")), answers())
    with pytest.raises(InferenceError, match="no log probabilities"):
        await rig.ask(questions=[Question(text="Is it late?", choices=["Yes", "No"])])
    assert (rig.asked, rig.fallbacks, rig.chat.model) == ([1, 0], [], "first")
