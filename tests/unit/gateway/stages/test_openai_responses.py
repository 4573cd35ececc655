"""OpenAI's ``/v1/responses``."""

import json

import pytest
from test_openai_chat import DONE, call, says

from parley.errors import InferenceError
from parley.llm.messages import Completed, TextDelta

PATH = "/v1/responses"
TOOL = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}}
CUT = Completed(finish_reason="length", prompt_tokens=7, cached_tokens=3, completion_tokens=2)
USAGE = {
    "input_tokens": 7,
    "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
    "output_tokens": 2,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 9,
}


async def ask(gateway, **fields):
    return await gateway.http.post(PATH, json={"model": "gpt-4o", "input": "Hello", **fields})


async def stream(gateway, **fields):
    """The events of a streamed response."""
    answer = await ask(gateway, stream=True, **fields)
    assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
    blocks = [block.split("\n") for block in answer.text.strip().split("\n\n")]
    events = [json.loads(data.removeprefix("data: ")) for _, data in blocks]
    assert [kind.removeprefix("event: ") for kind, _ in blocks] == [event["type"] for event in events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def kinds(events):
    return [event["type"].removeprefix("response.") for event in events]


async def test_a_response(gateway):
    says(gateway, TextDelta(text="one "), TextDelta(text="two"), DONE)
    body = (await ask(gateway, instructions="Be kind.", metadata={"a": "b"})).json()
    assert (body["object"], body["status"], body["model"]) == ("response", "completed", "qwen3")
    (item,) = body["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    part = {"type": "output_text", "text": "one two", "annotations": [], "logprobs": []}
    assert item["content"] == [part]
    assert (body["usage"], body["metadata"], body["store"]) == (USAGE, {"a": "b"}, False)
    (asked,) = gateway.models.asked
    assert asked["messages"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hello"},
    ]


async def test_items_reach_the_model(gateway):
    says(gateway, DONE)
    items = [
        {"role": "developer", "content": "Be kind."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"role": "assistant", "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
        {"type": "function_call", "id": "fc", "call_id": "c1", "name": "f", "arguments": '{"x": 1}'},
        {"type": "function_call", "call_id": "c2", "name": "f", "arguments": "{}", "status": "completed"},
        {"type": "function_call_output", "call_id": "c1", "output": "2"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "3"}]},
    ]
    options = {"temperature": 0.7, "top_p": 0.9, "max_output_tokens": 40, "tools": [TOOL], "user": "u"}
    assert (await ask(gateway, input=items, **options)).status_code == 200
    (asked,) = gateway.models.asked
    calls = [{"id": "c1", "name": "f", "arguments": {"x": 1}}, {"id": "c2", "name": "f", "arguments": {}}]
    assert asked["messages"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "I look.", "tool_calls": calls},
        {"role": "tool", "content": "2", "tool_call_id": "c1"},
        {"role": "tool", "content": "3", "tool_call_id": "c2"},
    ]
    assert asked["tools"] == [{"name": "f", "description": "d", "parameters": {"type": "object"}}]
    assert asked["sampling"] == {"temperature": 0.7, "top_p": 0.9, "max_tokens": 40, "seed": None}


async def test_events_add_up_to_the_response(gateway):
    says(gateway, TextDelta(text="one "), TextDelta(text="two"), call(1), call(2), DONE)
    events = await stream(gateway, tools=[TOOL])
    item = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done"]
    assert kinds(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        *[*item, "output_item.done"] * 2,
        "completed",
    ]
    body = events[-1]["response"]
    done = [event for event in events if event["type"] == "response.output_item.done"]
    assert [event["item"] for event in done] == body["output"]
    assert [event["output_index"] for event in done] == [0, 1, 2]
    assert body["output"][1]["arguments"] == '{"x":1}'
    assert body["usage"] == USAGE
    assert events[0]["response"]["output"] == []


@pytest.mark.parametrize(
    ("choice", "must_call", "tools"),
    [
        ("required", "*", ["f", "g"]),
        ("none", "", []),
        ({"type": "function", "name": "g"}, "g", ["f", "g"]),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]}, "", ["g"]),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]},
            "*",
            ["g"],
        ),
    ],
)
async def test_choice_of_tools_reaches_the_model(gateway, choice, must_call, tools):
    says(gateway, call(1), DONE)
    both = [TOOL, {**TOOL, "name": "g"}]
    body = (await ask(gateway, tools=both, tool_choice=choice)).json()
    (asked,) = gateway.models.asked
    assert asked.get("must_call", "") == must_call
    assert [tool["name"] for tool in asked.get("tools", [])] == tools
    assert body["tool_choice"] == choice


async def test_one_call_at_most_where_calls_are_not_parallel(gateway):
    says(gateway, call(1), call(2), DONE)
    body = (await ask(gateway, tools=[TOOL], parallel_tool_calls=False)).json()
    assert len(body["output"]) == 1


async def test_json_of_a_schema(gateway):
    says(gateway, TextDelta(text="{}"), DONE)
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    form = {"type": "json_schema", "name": "point", "schema": schema, "strict": True}
    body = (await ask(gateway, text={"format": form})).json()
    assert gateway.models.asked[0]["json_schema"] == schema
    assert body["text"]["format"] == form


async def test_a_response_that_is_cut_is_incomplete(gateway):
    says(gateway, TextDelta(text="one"), CUT)
    *_, item, end = await stream(gateway, max_output_tokens=1)
    assert (item["item"]["status"], end["type"]) == ("incomplete", "response.incomplete")
    assert end["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_a_failure_has_a_status_or_is_the_last_event(gateway):
    says(gateway, InferenceError.__name__)
    assert (await ask(gateway, stream=True)).status_code >= 500
    says(gateway, TextDelta(text="one"), "failed")
    *_, end = await stream(gateway)
    assert end["type"] == "response.failed"
    assert (end["response"]["status"], end["response"]["usage"]) == ("failed", None)
    assert end["response"]["error"]["code"]


def refuses_more_than(gateway, most):
    """The model has room for so many messages."""

    async def answer(message):
        if message["op"] == "abort":
            return
        if len(message["messages"]) > most:
            yield f"context_too_long: {len(message['messages'])} messages"
        else:
            yield {"EVENT": DONE}

    gateway.models.answer = answer


async def test_oldest_turns_are_left_out_on_request(gateway):
    refuses_more_than(gateway, 4)
    turns = [{"role": role, "content": str(at)} for at in range(8) for role in ("user", "assistant")]
    items = [{"role": "system", "content": "s"}, *turns, {"role": "user", "content": "last"}]
    refused = await ask(gateway, input=items)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert (await ask(gateway, input=items, truncation="auto")).status_code == 200
    kept = [message["content"] for message in gateway.models.asked[-1]["messages"]]
    assert kept[0] == "s"
    assert kept[-1] == "last"
    assert len(kept) % 2 == 0  # it begins with a turn of the user
    alone = [{"role": "user", "content": "long"}]
    refuses_more_than(gateway, 0)
    assert (await ask(gateway, input=alone, truncation="auto")).status_code == 400


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
        ({"tools": [TOOL], "text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "m"}]}, "input[0].type"),
        ({"input": [{"content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0].type",
        ),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
        (
            {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "[]"}]},
            "input[0].arguments",
        ),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"role": "user", "content": [{"type": "text"}] * 2_048}]}, "input"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
async def test_unsupported_requests_are_refused(gateway, fields, param):
    says(gateway, DONE)
    answer = await ask(gateway, **fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert gateway.models.asked == []
