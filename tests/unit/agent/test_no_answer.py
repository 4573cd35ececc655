"""Answers of the language model that are of no use: without words, or a tool call that cannot be run."""

from __future__ import annotations

import pytest
from agent_fakes import FakeCall, calls, says, spoken

from parley.agent.config import AgentConfig
from parley.chat import ToolCall
from parley.errors import InferenceError, InvalidModelOutputError
from parley.llm.messages import Completed, TextDelta, ToolCalled
from parley.protocol import ErrorEvent, ResponseText, Start, Tool, ToolRequest, ToolResponse, TurnMetrics

TOOLS = [Tool(name="get_weather")]
UNREADABLE = InvalidModelOutputError("the model wrote a tool call that cannot be read: no name")


async def ask(*answers, config=None, responses=0, **start) -> FakeCall:
    """A session in which the user has asked one thing."""
    call = FakeCall(config)
    call.chat.answers += answers
    call.hears((200, 1_000, "what's the weather"))
    await call.start(Start(**start))
    for count in range(responses):
        request = await call.wait_for(ToolRequest, count + 1)
        call.send(ToolResponse(call_id=request.call_id, output="sunny"))
    await call.end(TurnMetrics)
    return call


def notes(call: FakeCall) -> list[str]:
    """What each request says to the model behind the conversation."""
    last = [request.messages[-1] for request in call.chat.requests]
    return [message.content if message.role == "system" else "" for message in last]


EMPTY = [Completed(finish_reason="stop")]
UNSPEAKABLE = [
    EMPTY,
    says(" \n"),
    says("..."),
    says("\U0001f44d"),
    says("\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f"),
    says("\u3002\uff01 \u2014 \u061f"),
]


@pytest.mark.parametrize("answer", UNSPEAKABLE)
async def test_an_answer_without_words_is_asked_for_once_more(answer):
    call = await ask(answer, says("It is sunny."))
    assert spoken(call) == ["It is sunny."]
    assert call.outlet.codes == []
    first, second = notes(call)
    assert first == ""
    assert "Answer in words" in second


@pytest.mark.parametrize("answer", UNSPEAKABLE)
async def test_two_answers_without_words_are_a_failure(answer):
    call = await ask(answer, answer)
    assert spoken(call) == [AgentConfig().apology]
    (error,) = call.outlet.of(ErrorEvent)
    assert (error.code, error.retryable, error.tools_ran) == ("no_answer", False, False)
    assert len(call.chat.requests) == 2


@pytest.mark.parametrize(
    "text",
    [
        "\u5929\u6c14\u5f88\u597d\u3002",
        "\u0e14\u0e35",
        "\u0928\u092e\u0938\u094d\u0924\u0947",
        "42",
        "\u0661\u0662",
    ],
)
async def test_words_of_any_script_are_an_answer(text):
    call = await ask(says(text))
    assert spoken(call) == [text]
    assert call.outlet.codes == []


async def test_in_a_session_of_text_an_answer_needs_no_words_but_has_to_be_there():
    call = await ask(says("..."), output="text")
    assert call.outlet.codes == []
    assert [event.text for event in call.outlet.of(ResponseText)] == ["..."]
    call = await ask(EMPTY, says(" \n"), output="text")
    assert call.outlet.codes == ["no_answer"]


async def test_text_that_breaks_off_before_anything_was_spoken_is_no_answer():
    call = await ask([TextDelta(text="It is"), InferenceError("broken")])
    assert spoken(call) == [AgentConfig().apology]
    assert call.outlet.codes == ["inference_failed"]


async def test_text_before_a_tool_call_may_be_the_whole_answer():
    goodbye = [
        TextDelta(text="Goodbye."),
        ToolCalled(call=ToolCall(id="x", name="get_weather", arguments={})),
    ]
    call = await ask([*goodbye, Completed(finish_reason="tool_calls")], EMPTY, responses=1, tools=TOOLS)
    assert spoken(call) == ["Goodbye."]
    assert call.outlet.codes == []


async def test_tool_calls_without_end_are_a_failure():
    """The last round gets no tools, and writes a call all the same."""
    config = AgentConfig(max_tool_rounds=2)
    call = await ask(*[calls(("get_weather", {}))] * 4, config=config, responses=2, tools=TOOLS)
    assert [bool(request.tools) for request in call.chat.requests] == [True, True, False, False]
    assert ["Answer in words" in note for note in notes(call)] == [False, False, False, True]
    assert call.outlet.codes == ["no_answer"]
    assert spoken(call) == [config.acted_apology]


async def test_a_call_that_was_not_offered_is_no_answer():
    call = await ask(calls(("get_weather", {})), says("It is sunny."))
    assert spoken(call) == ["It is sunny."]
    assert call.outlet.of(ToolRequest) == []


async def test_an_unreadable_call_is_given_back_to_the_model():
    call = await ask([UNREADABLE], calls(("get_weather", {})), says("Sunny."), responses=1, tools=TOOLS)
    assert spoken(call) == ["Sunny."]
    assert call.outlet.codes == []
    first, second, third = notes(call)
    assert (first, third) == ("", "")
    assert "no name" in second
    assert "Write it again" in second
    assert "JSON" not in second, "a model may write its calls otherwise"


async def test_words_in_front_of_an_unreadable_call_are_spoken():
    call = await ask([TextDelta(text="Let me check"), UNREADABLE], says("It is sunny."), tools=TOOLS)
    assert spoken(call) == ["Let me check", "It is sunny."]


async def test_after_two_unreadable_calls_the_model_has_to_do_without_tools():
    call = await ask([UNREADABLE], [UNREADABLE], says("I cannot say."), tools=TOOLS)
    assert spoken(call) == ["I cannot say."]
    assert call.outlet.codes == []
    assert [bool(request.tools) for request in call.chat.requests] == [True, True, False]


async def test_unreadable_calls_without_end_are_a_failure_of_their_own():
    call = await ask(*[[UNREADABLE]] * 9, tools=TOOLS)
    assert len(call.chat.requests) == 3
    assert len({str(request.messages) for request in call.chat.requests}) == 3, "each is another request"
    assert call.outlet.codes == ["invalid_model_output"]
    assert spoken(call) == [AgentConfig().apology]


async def test_readable_calls_in_front_of_an_unreadable_one_are_run():
    mixed = [*calls(("get_weather", {}))[:1], UNREADABLE]
    call = await ask(mixed, says("Sunny."), responses=1, tools=TOOLS)
    assert [request.name for request in call.outlet.of(ToolRequest)] == ["get_weather"]
    assert spoken(call) == ["Sunny."]
    assert "no name" in notes(call)[1]


async def test_a_synthesizer_that_makes_no_audio_has_failed():
    call = FakeCall()
    call.synthesizer.character_ms = 0
    call.hears((200, 1_000, "what's the weather"))
    await call.start()
    await call.end(TurnMetrics)
    assert call.outlet.codes == ["inference_failed"]
