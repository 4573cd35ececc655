import pytest

from parley.chat import ChatMessage, ToolCall
from parley.errors import InvalidMessageError
from parley_client.chat_format import read_messages, read_tool


def call(arguments):
    return {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}


@pytest.mark.parametrize("arguments", ['{"a": 1}', {"a": 1}])
def test_a_conversation(arguments):
    assert read_messages(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "developer", "content": "a hint"},
            {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "image_url"}]},
            {"role": "assistant", "content": None, "tool_calls": [call(arguments)]},
            {"role": "tool", "tool_call_id": "c1", "content": "3"},
        ]
    ) == [
        ChatMessage(role="system", content="Be brief."),
        ChatMessage(role="user", content="a hint"),
        ChatMessage(role="user", content="one"),
        ChatMessage(role="assistant", tool_calls=[ToolCall(id="c1", name="f", arguments={"a": 1})]),
        ChatMessage(role="tool", tool_call_id="c1", content="3"),
    ]


@pytest.mark.parametrize("arguments", ["", None])
def test_a_call_without_arguments(arguments):
    (message,) = read_messages([{"role": "assistant", "tool_calls": [call(arguments)]}])
    assert message.tool_calls[0].arguments == {}


@pytest.mark.parametrize(
    "message",
    [
        {"content": "no role"},
        {"role": "narrator", "content": "x"},
        {"role": "assistant", "tool_calls": [call("no JSON")]},
        {"role": "assistant", "tool_calls": [call("[1]")]},
        {"role": "assistant", "tool_calls": [{"id": "c1"}]},
        {"role": "assistant", "tool_calls": ["f"]},
        {"role": "assistant", "tool_calls": [{**call("{}"), "id": 7}]},
        {"role": "assistant", "tool_calls": 5},
        {"role": "tool", "tool_call_id": 5, "content": "3"},
        {"role": "user", "content": 5},
        {"role": "user", "content": ["one", "two"]},
        {"role": "user", "content": [{"type": "text"}]},
        {"role": "user", "content": [{"type": "text", "text": 5}]},
        {"role": ["user"], "content": "x"},
        "hello",
    ],
)
def test_invalid_conversation_is_refused(message):
    with pytest.raises(InvalidMessageError):
        read_messages([message])


def test_a_tool_loses_titles_but_no_property_of_that_name():
    schema = {
        "title": "BookArguments",
        "type": "object",
        "properties": {
            "title": {"title": "Title", "type": "string"},
            "tags": {"type": "array", "items": {"title": "Tag", "type": "string"}},
            "kind": {"anyOf": [{"title": "A", "const": "a"}, {"type": "null"}]},
        },
    }
    tool = read_tool({"name": "find", "description": None, "parameters": schema})
    assert (tool.name, tool.description) == ("find", "")
    assert tool.parameters == {
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "kind": {"anyOf": [{"const": "a"}, {"type": "null"}]},
        },
    }


@pytest.mark.parametrize(
    "function",
    [
        {"description": "nameless"},
        {"name": 5},
        {"name": "f", "description": 5},
        {"name": "f", "parameters": ["city"]},
        {"name": "f", "parameters": "city"},
        "f",
    ],
)
def test_invalid_tool_is_refused(function):
    with pytest.raises(InvalidMessageError):
        read_tool(function)
