"""OpenAI's ``/v1/chat/completions``."""

import asyncio
import json

import pytest
from fake_models import Chat

from parley.chat import ToolCall
from parley.llm.messages import Completed, TextDelta, ToolCalled
from parley_gateway.apis.openai.answers import StopFilter
from parley_gateway.apis.realtime.output_audio import AudioOutput
from parley_gateway.apis.realtime.server_events import emitter
from parley_gateway.apis.realtime.session import RealtimeSession
from parley_gateway.apis.realtime.session_config import SessionConfig
from parley_gateway.model_limits import ModelLimiter
from parley_gateway.security.keys import new_key
from parley_gateway.security.principal import Principal

PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
DONE = Completed(finish_reason="stop", prompt_tokens=7, cached_tokens=3, completion_tokens=2)
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
ARRAY_CALL = {"id": "1", "function": {"name": "f", "arguments": "[]"}}
USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 2,
    "total_tokens": 9,
    "prompt_tokens_details": {"cached_tokens": 3},
}


def says(gateway, *events):
    """The model answers with these events."""

    async def answer(message):
        if message["op"] != "abort":
            for event in events:
                yield event if isinstance(event, str) else {"EVENT": event}

    gateway.models.answer = answer


def call(number):
    return ToolCalled(call=ToolCall(id=f"c{number}", name="f", arguments={"x": number}))


async def ask(gateway, **fields):
    return await gateway.http.post(PATH, json={"model": "gpt-4o", "messages": HELLO, **fields})


async def stream(gateway, **fields):
    """The events of a streamed answer."""
    answer = await ask(gateway, stream=True, **fields)
    assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def deltas(chunks):
    return [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]


async def test_an_answer(gateway):
    says(gateway, TextDelta(text="one "), TextDelta(text="two"), DONE)
    answer = (await ask(gateway)).json()
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "qwen3"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "one two", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert answer["usage"] == USAGE


async def test_chat_request_reaches_the_model(gateway):
    says(gateway, DONE)
    messages = [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": None,
            "refusal": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
    ]
    harmless = {"user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "n": 1}
    await ask(
        gateway,
        messages=messages,
        tools=[TOOL],
        temperature=0.7,
        top_p=0.9,
        max_tokens=50,
        max_completion_tokens=40,
        seed=5,
        **harmless,
    )
    (asked,) = gateway.models.asked
    assert asked["messages"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "ab"},
        {"role": "assistant", "tool_calls": [{"id": "c1", "name": "f", "arguments": {"x": 1}}]},
        {"role": "tool", "content": "2", "tool_call_id": "c1"},
    ]
    assert asked["tools"] == [{"name": "f", "description": "d", "parameters": {"type": "object"}}]
    assert asked["sampling"] == {"temperature": 0.7, "top_p": 0.9, "max_tokens": 40, "seed": 5}


@pytest.mark.parametrize(
    ("choice", "must_call"),
    [("required", "*"), ({"type": "function", "function": {"name": "f"}}, "f"), ("auto", ""), (None, "")],
)
async def test_forced_call_reaches_the_model(gateway, choice, must_call):
    says(gateway, call(1), DONE)
    await ask(gateway, tools=[TOOL], tool_choice=choice)
    (asked,) = gateway.models.asked
    assert asked["must_call"] == must_call


@pytest.mark.parametrize(
    ("form", "schema"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "object"}),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array"}}},
            {"type": "array"},
        ),
    ],
)
async def test_schema_of_the_answer_reaches_the_model(gateway, form, schema):
    says(gateway, TextDelta(text="{}"), DONE)
    await ask(gateway, response_format=form)
    (asked,) = gateway.models.asked
    assert asked["json_schema"] == schema


async def test_defaults_are_the_gateways(start):
    gateway = await start(stages={"answer_tokens": 9, "temperature": 0.5})
    says(gateway, DONE)
    await ask(gateway, tools=[TOOL], tool_choice="none")
    (asked,) = gateway.models.asked
    assert (asked["sampling"]["max_tokens"], asked["sampling"]["temperature"], asked["tools"]) == (9, 0.5, [])


async def test_an_answer_in_pieces(gateway):
    says(gateway, TextDelta(text="one "), TextDelta(text="two"), DONE)
    chunks = await stream(gateway)
    assert deltas(chunks) == [
        {"role": "assistant", "content": "", "refusal": None},
        {"content": "one "},
        {"content": "two"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "stop"]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)


async def test_usage_comes_last_where_it_is_asked_for(gateway):
    says(gateway, TextDelta(text="one"), DONE)
    chunks = await stream(gateway, stream_options={"include_usage": True})
    assert [chunk["usage"] for chunk in chunks] == [None, None, None, USAGE]
    assert chunks[-1]["choices"] == []


async def test_calls_of_tools(gateway):
    says(gateway, TextDelta(text="Wait."), call(1), call(2), Completed(finish_reason="tool_calls"))
    answer = (await ask(gateway, tools=[TOOL])).json()["choices"][0]
    assert answer["finish_reason"] == "tool_calls"
    assert answer["message"]["content"] == "Wait."
    assert answer["message"]["tool_calls"][1] == {
        "id": "c2",
        "type": "function",
        "function": {"name": "f", "arguments": '{"x":2}'},
    }
    chunks = await stream(gateway, tools=[TOOL])
    calls = [one for delta in deltas(chunks) for one in delta.get("tool_calls", [])]
    assert [(one["index"], one["id"]) for one in calls] == [(0, "c1"), (1, "c2")]


async def test_an_answer_ends_before_a_stop(gateway):
    model = Chat(gateway.models)  # "one", "two", and then nothing until it is aborted
    chunks = await stream(gateway, stop=["x", "etw"])
    assert "".join(delta.get("content", "") for delta in deltas(chunks)) == "on"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    await asyncio.wait_for(model.aborted.wait(), 5)


ABORTED = Completed(finish_reason="abort", prompt_tokens=7, cached_tokens=3, completion_tokens=2)


class AbortedChat(Chat):
    """Reports its usage when it is aborted."""

    async def answer(self, message):
        async for output in super().answer(message):
            is_end = isinstance(output, dict) and isinstance(output["EVENT"], Completed)
            yield {"EVENT": ABORTED} if is_end else output


async def test_usage_of_an_answer_that_reaches_stop_is_reported(gateway):
    AbortedChat(gateway.models)
    answer = (await ask(gateway, stop=["etw"])).json()
    assert (answer["choices"][0]["finish_reason"], answer["usage"]) == ("stop", USAGE)
    AbortedChat(gateway.models)
    chunks = await stream(gateway, stop=["etw"], stream_options={"include_usage": True})
    assert chunks[-1]["usage"] == USAGE
    assert "".join(delta.get("content", "") for delta in deltas(chunks)) == "on"


async def test_usage_of_an_answer_that_ends_with_the_last_permitted_call_is_reported(gateway):
    says(gateway, call(1), call(2), ABORTED)
    answer = (await ask(gateway, tools=[TOOL], parallel_tool_calls=False)).json()
    assert (answer["choices"][0]["finish_reason"], answer["usage"]) == ("tool_calls", USAGE)
    message = answer["choices"][0]["message"]
    assert ([one["id"] for one in message["tool_calls"]], message["content"]) == (["c1"], None)


async def test_keys_have_separate_prefix_caches(start, tmp_path):
    keys = [new_key(name, ["chat"]) for name in ("one", "other")]
    (tmp_path / "keys").write_text("\n".join(key.line for key in keys))
    guarded, public = await start(security={"keys_file": str(tmp_path / "keys")}), await start()

    async def salt_of(gateway, **headers):
        says(gateway, TextDelta(text="one"), DONE)
        body = {"model": "qwen3", "messages": HELLO, "user": "other", "prompt_cache_key": "other"}
        assert (await gateway.http.post(PATH, json=body, headers=headers)).status_code == 200
        return gateway.models.asked[-1]["cache_salt"]

    one, again, other = [
        await salt_of(guarded, authorization=f"Bearer {key.secret}") for key in (keys[0], *keys)
    ]
    assert one == again
    assert len({"", one, other, await salt_of(public), await salt_of(public)}) == 5


@pytest.mark.parametrize(
    ("stops", "texts", "shown"),
    [
        ([], ["a", "b"], ["a", "b", ""]),
        (["END"], ["one E", "N", "D two"], ["one ", "", "", ""]),
        (["END"], ["one E", "Nx"], ["one ", "ENx", ""]),
        (["END"], ["one EN"], ["one ", "EN"]),
        (["b", "ab"], ["xab"], ["x", ""]),
        (["aab"], ["aa", "ab"], ["", "a", ""]),
    ],
)
def test_stop_filter_withholds_possible_stops(stops, texts, shown):
    stopper = StopFilter(stops)
    assert [stopper.feed(text) for text in texts] + [stopper.finish()] == shown


async def test_a_client_that_leaves_stops_the_model(gateway):
    model = Chat(gateway.models)
    async with gateway.http.stream(
        "POST", PATH, json={"model": "qwen3", "messages": HELLO, "stream": True}
    ) as answer:
        lines = answer.aiter_lines()
        while '"two"' not in await anext(lines):
            pass
    await asyncio.wait_for(model.aborted.wait(), 5)


async def test_a_client_that_leaves_stops_the_model_also_where_it_waits_for_the_whole(gateway):
    model = Chat(gateway.models)
    asking = asyncio.create_task(ask(gateway))
    await asyncio.wait_for(model.asked.wait(), 5)
    asking.cancel()
    await asyncio.wait_for(model.aborted.wait(), 5)
    await asyncio.wait([asking])


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("context_too_long: 9000", (400, "context_length_exceeded", "invalid_request_error")),
        ("invalid_message: no", (400, "invalid_message", "invalid_request_error")),
        ("overloaded: enough", (503, "overloaded", "server_error")),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_errors_of_the_model_have_their_status(gateway, said, expected, streamed):
    says(gateway, said)
    answer = await ask(gateway, stream=streamed)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"]) == expected


async def test_a_failure_after_the_first_event_is_an_event(gateway):
    says(gateway, TextDelta(text="one"), "inference_failed: oh no")
    answer = await ask(gateway, stream=True)
    last = answer.text.splitlines()[-2].removeprefix("data: ")
    assert json.loads(last)["error"]["code"] == "inference_failed"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "x - at `$.top_k`", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "unknown field `x`", "content": "x"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0].type",
        ),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [ARRAY_CALL]}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        ({"temperature": 3}, "temperature"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": [TOOL]}, "tool_choice"),
        ({"tool_choice": {"type": "function"}, "tools": [TOOL]}, "tool_choice.function"),
        ({"response_format": {"type": "json_object"}, "tools": [TOOL]}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"logprobs": True}, "logprobs"),
        ({"n": 2}, "n"),
        ({"frequency_penalty": 1.0}, "frequency_penalty"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "chat_template_kwargs"),
        ({"logit_bias": {"1": 1}}, "logit_bias"),
        ({"modalities": ["text", "audio"]}, "modalities[1]"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"cache_salt": "other"}, "cache_salt"),
        ({"top_k": 3}, "top_k"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"model": "espeak"}, "model"),
    ],
)
async def test_unsupported_fields_are_refused(gateway, fields, param):
    says(gateway, DONE)
    answer = await ask(gateway, **fields)
    assert answer.status_code == (404 if param == "model" else 400)
    assert answer.json()["error"]["param"] == param
    assert gateway.models.asked == []


async def test_clients_of_vllm_may_turn_thinking_off(gateway):
    says(gateway, DONE)
    answer = await ask(gateway, chat_template_kwargs={"enable_thinking": False})
    assert answer.status_code == 200


@pytest.mark.parametrize("number", [0, 2])
async def test_the_refusal_of_several_choices_names_the_limit(gateway, number):
    says(gateway, DONE)
    error = (await ask(gateway, n=number)).json()["error"]
    assert error["message"] == "'n' is not supported: a request has one response; leave it at 1"
    assert (error["param"], error["code"]) == ("n", "unsupported_parameter")


@pytest.mark.parametrize("depth", [10_000, 50_000])
async def test_arguments_may_not_be_nested_without_end(gateway, depth):
    says(gateway, DONE)
    arguments = '{"x":' * depth + "1" + "}" * depth
    call = {"id": "1", "function": {"name": "f", "arguments": arguments}}
    answer = await ask(gateway, messages=[{"role": "assistant", "tool_calls": [call]}])
    param = "messages[0].tool_calls[0].function.arguments"
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 50_000, b'{"model": "gpt-4o"}'])
async def test_a_body_that_cannot_be_read(gateway, body):
    answer = await gateway.http.post(PATH, content=body)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


async def test_every_answer_has_an_id_of_its_own(gateway):
    says(gateway, DONE)
    answers = [await ask(gateway), await ask(gateway, stream=True), await ask(gateway, n=2)]
    assert len({answer.headers["x-request-id"] for answer in answers}) == 3


def outside(gateway, *, limiter=None, **principal):
    """A session of the Realtime protocol, and its events."""
    events = asyncio.Queue()
    session = RealtimeSession(
        gateway.gateway,
        Principal(**{"id": "key-1", "scopes": frozenset({"agent"}), **principal}),
        SessionConfig("sess_1", "gpt-realtime"),
        emitter(events.put_nowait),
        AudioOutput(),
        limiter=limiter or ModelLimiter(gateway.gateway, "realtime"),
    )
    session.conversation.on_call_opened(1_000)
    return session, events


async def ask_outside(session, events):
    """The response to a request outside the conversation."""
    options = {"conversation": "none", "output_modalities": ["text"], "instructions": "Is it late?"}
    await session.on_client_event(json.dumps({"type": "response.create", "response": options}))
    while (event := await asyncio.wait_for(events.get(), 10))["type"] != "response.done":
        assert event["type"] != "error", event
    return event["response"]


async def test_response_outside_a_realtime_conversation_asks_the_model(gateway):
    says(gateway, TextDelta(text="Yes."), DONE)
    response = await ask_outside(*outside(gateway))
    assert response["output"][0]["content"] == [{"type": "output_text", "text": "Yes."}]
    (asked,) = gateway.models.asked
    assert (asked["priority"], asked["messages"][0]["content"]) == (3, "Is it late?")


async def test_responses_outside_of_all_sessions_share_the_limit_of_single_stages(start):
    gateway = await start(stages={"requests": 1})
    says(gateway, DONE)
    limiter = ModelLimiter(gateway.gateway, "realtime")
    session, events = outside(gateway, limiter=limiter)
    with limiter.place(Principal(id="key-2", scopes=frozenset())):
        response = await ask_outside(session, events)
        assert response["status_details"]["error"]["code"] == "too_many_calls"
    assert (await ask_outside(session, events))["status"] == "completed"


@pytest.mark.parametrize(
    ("scopes", "agents", "status"),
    [
        ({"agent"}, {"restaurant"}, "failed"),
        ({"agent"}, {"restaurant", ""}, "completed"),
        ({"agent", "chat"}, {"restaurant"}, "completed"),
    ],
)
async def test_credentials_of_some_agents_do_not_reach_the_model_alone(gateway, scopes, agents, status):
    says(gateway, DONE)
    session, events = outside(gateway, scopes=frozenset(scopes), agents=frozenset(agents))
    response = await ask_outside(session, events)
    assert response["status"] == status
    if status == "failed":
        assert response["status_details"]["error"]["code"] == "not_permitted"
        assert gateway.models.asked == []
