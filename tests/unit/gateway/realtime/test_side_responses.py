"""Responses outside the conversation."""

import asyncio

import pytest

from parley.chat import ChatMessage, ToolCall
from parley.errors import OverloadedError
from parley.llm.messages import Completed, TextDelta, ToolCalled

DONE = Completed(finish_reason="stop", prompt_tokens=9, cached_tokens=4, completion_tokens=2)
FIELDS = {"conversation": "none", "output_modalities": ["text"]}
QUESTION = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Is it late?"}]}
TOOL = {"type": "function", "name": "rate", "parameters": {"type": "object"}}


async def ask(session, *answers, **options):
    """Ask the language model; returns the server events."""
    session.answers = answers
    session.send("response.create", event_id="e", response={**FIELDS, **options})
    await asyncio.sleep(0.01)
    return session.take()


async def test_text_is_no_item_of_the_conversation(session):
    session.user_says("hello")
    session.agent_says("Hello!")
    session.take()
    events = await ask(
        session, TextDelta(text="It "), TextDelta(text="is."), DONE, input=[QUESTION], metadata={"a": "b"}
    )
    assert [event["type"] for event in events] == [
        "response.created",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.done",
    ]
    response = events[-1]["response"]
    assert (response["status"], response["conversation_id"], response["metadata"]) == (
        "completed",
        None,
        {"a": "b"},
    )
    assert response["output"][0]["content"] == [{"type": "output_text", "text": "It is."}]
    assert (response["usage"]["input_tokens"], response["usage"]["output_tokens"]) == (9, 2)
    assert session.commands.take() == []
    session.agent_finishes()
    assert session.one("response.done")["response"]["id"] != response["id"], "the agent's answer went on"


async def test_own_items_and_references_are_the_prompt(session):
    text = [{"type": "input_text", "text": "It is noon."}]
    item = {"id": "item_1", "type": "message", "role": "system", "content": text}
    session.send("conversation.item.create", item=item)
    given = [
        {"type": "item_reference", "id": "item_1"},
        {"type": "function_call", "call_id": "c", "name": "rate", "arguments": '{"x": 1}'},
        {"type": "function_call_output", "call_id": "c", "output": "5"},
        QUESTION,
    ]
    await ask(session, DONE, input=given, instructions="Say yes or no.", max_output_tokens=7)
    (asked,) = session.written
    assert asked.max_tokens == 7
    assert asked.messages == [
        ChatMessage(role="system", content="Say yes or no."),
        ChatMessage(role="system", content="It is noon."),
        ChatMessage(role="assistant", tool_calls=[ToolCall(id="c", name="rate", arguments={"x": 1})]),
        ChatMessage(role="tool", content="5", tool_call_id="c"),
        ChatMessage(role="user", content="Is it late?"),
    ]


async def test_without_items_the_prompt_is_the_conversation(session):
    session.send("session.update", session={"type": "realtime", "instructions": "Be kind.", "tools": [TOOL]})
    session.user_says("hello")
    session.agent_says("Hello!")
    session.agent_finishes()
    session.take()
    await ask(session, DONE, tool_choice="required")
    await ask(session, DONE, tool_choice="none")
    forced, free = session.written
    assert [(one.role, one.content) for one in forced.messages] == [
        ("system", "Be kind."),
        ("user", "hello"),
        ("assistant", "Hello!"),
    ]
    assert ([tool.name for tool in forced.tools], forced.must_call, forced.max_tokens) == (
        ["rate"],
        "*",
        None,
    )
    assert (free.tools, free.must_call) == ([], "")


async def test_function_call_is_an_output_of_the_response_alone(session):
    called = ToolCalled(call=ToolCall(id="x-0", name="rate", arguments={"x": 1}))
    events = await ask(session, called, DONE, tools=[TOOL], input=[])
    (call,) = events[-1]["response"]["output"]
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "rate", '{"x":1}')
    assert not any(event["type"].startswith("conversation") for event in events)


async def test_response_can_be_cancelled_by_its_id_and_the_agents_goes_on(session):
    session.user_says("hello")
    session.agent_says("Hello!")
    session.take()
    created, *_ = await ask(session, TextDelta(text="It"), None)
    session.send("response.cancel", response_id=created["response"]["id"])
    response = session.one("response.done")["response"]
    assert (response["id"], response["status"]) == (created["response"]["id"], "cancelled")
    assert session.commands.take() == []
    await asyncio.sleep(0.01)
    assert session.take() == []
    session.send("response.cancel", event_id="again", response_id=created["response"]["id"])
    assert session.error() == ("response_cancel_not_active", "again")


@pytest.mark.parametrize(
    ("answers", "status", "detail"),
    [
        ([TextDelta(text="It"), OverloadedError("full")], "failed", "overloaded"),
        ([TextDelta(text="It"), RuntimeError("a bug")], "failed", "internal_error"),
        ([TextDelta(text="It"), Completed(finish_reason="length")], "incomplete", "max_output_tokens"),
    ],
)
async def test_response_that_does_not_end_by_itself_says_why(session, answers, status, detail):
    response = (await ask(session, *answers))[-1]["response"]
    assert response["status"] == status
    assert detail in str(response["status_details"])


async def test_responses_at_once_are_bounded_and_end_with_the_session(session):
    for _ in range(4):
        await ask(session, None)
    (error,) = await ask(session, None)
    assert error["error"]["code"] == "too_many_responses"
    assert len(session.written) == 4
    await session.conversation.close()
    assert session.take() == []


@pytest.mark.parametrize(
    ("options", "code", "param"),
    [
        ({"output_modalities": ["audio"]}, "unsupported", "response.output_modalities"),
        ({"output_modalities": None}, "unsupported", "response.output_modalities"),
        ({"prompt": {"id": "p"}}, "unsupported", "response.prompt"),
        ({"tool_choice": {"type": "mcp"}}, "unsupported", "response.tool_choice"),
        ({"tools": [{"type": "mcp"}]}, "unsupported", "response.tools[0].type"),
        ({"tools": [7]}, "invalid_value", "response.tools[0]"),
        ({"max_output_tokens": 0}, "invalid_value", "response.max_output_tokens"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "item_reference_invalid_item_id", "item_id"),
        ({"input": [7]}, "invalid_value", "response.input[0]"),
        ({"input": [{"type": "item_reference", "id": "item_1"}] * 2}, "invalid_value", "response.input[1]"),
        ({"tool_choice": {"type": "function", "name": ""}}, "unsupported", "response.tool_choice"),
        ({"tool_choice": {"type": "function", "name": "*"}}, "unsupported", "response.tool_choice"),
        ({"tool_choice": {"type": "function", "name": "a" * 65}}, "unsupported", "response.tool_choice"),
        ({"input": [{"type": "mcp_call"}]}, "unsupported", "response.input[0].type"),
        ({"input": [{**QUESTION, "role": "robot"}]}, "invalid_value", "response.input[0].role"),
        (
            {"input": [{**QUESTION, "content": [{"type": "input_image"}]}]},
            "unsupported",
            "response.input[0].content[0].type",
        ),
        (
            {"input": [{"type": "function_call", "name": "f", "arguments": "[]"}]},
            "invalid_value",
            "response.input[0].arguments",
        ),
    ],
)
async def test_what_is_not_possible_is_refused(session, options, code, param):
    session.send("conversation.item.create", item={"id": "item_1", **QUESTION})
    session.take()
    (event,) = await ask(session, DONE, **options)
    assert (event["error"]["code"], event["error"]["param"]) == (code, param)
    assert session.written == []
