"""A chat model behind an HTTP server, against a small server whose answers a test gives."""

import asyncio
import json
from contextlib import asynccontextmanager

import msgspec
import pytest
from recorded_spans import PARENT

from parley.agent.config import AgentConfig
from parley.chat import ChatMessage, ToolCall
from parley.engines import openai_chat
from parley.engines.base import Closable, RemoteChat
from parley.engines.openai_chat import OpenAiChatModel
from parley.engines.registry import CHAT_MODELS, find_engine
from parley.errors import (
    ContextTooLongError,
    DeadlineExceededError,
    InferenceError,
    InvalidModelOutputError,
    ModelLoadingError,
    ModelUnavailableError,
    OverloadedError,
    ShuttingDownError,
)
from parley.llm.messages import (
    Choices,
    Completed,
    GenerateRequest,
    Priority,
    Question,
    Sampling,
    TextDelta,
    ToolCalled,
)
from parley.protocol import Tool
from parley.runtime.parameters import Parameters

KEY = "sk-secret-4711"
TIMER = Tool(name="set_timer", parameters={"type": "object"})


class Server:
    """Answers each request with these pieces; ``None`` waits until the client has gone."""

    def __init__(self, *pieces, status="200 OK"):
        self.pieces, self.status = pieces, status
        self.requests, self.headers = [], []
        self.gone, self.asked = asyncio.Event(), asyncio.Event()

    async def serve(self, reader, writer):
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.headers.append(head)
            length = next(
                int(line.split(":")[1]) for line in head.splitlines() if "content-length" in line.lower()
            )
            self.requests.append(json.loads(await reader.readexactly(length)))
            self.asked.set()
            writer.write(f"HTTP/1.1 {self.status}\r\nConnection: close\r\n\r\n".encode())
            for piece in self.pieces:
                if piece is None:
                    await writer.drain()
                    await reader.read()
                    self.gone.set()
                else:
                    writer.write(piece if isinstance(piece, bytes) else event(piece))
                    await writer.drain()
        except ConnectionError:
            self.gone.set()
        finally:
            writer.close()


def event(chunk):
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def delta(reason=None, **fields):
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": reason}]}


def called(index, name=None, arguments=""):
    return {"index": index, "id": "x", "function": {"name": name, "arguments": arguments}}


USAGE = {
    "choices": [],
    "usage": {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 5}},
}
DONE = b"data: [DONE]\n\n"


@asynccontextmanager
async def chatting(*pieces, timeout_s=5.0, continuation="none", **options):
    server = Server(*pieces, **options)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    remote = RemoteChat(f"http://127.0.0.1:{port}/v1/", "their-model", KEY, continuation)
    chat = find_engine(CHAT_MODELS, "openai_chat")(None, timeout_s=timeout_s, remote=remote)
    assert isinstance(chat, Closable)
    try:
        yield chat, server
    finally:
        await chat.close()
        listening.close()
        await listening.wait_closed()


def request(*messages, tools=(), **sampling):
    messages = messages or (ChatMessage(role="user", content="hello"),)
    return GenerateRequest(
        request_id="r", messages=list(messages), tools=list(tools), sampling=Sampling(**sampling)
    )


async def collect(generator):
    return [event async for event in generator]


async def test_the_span_goes_with_the_request():
    traced = msgspec.structs.replace(request(), traceparent=PARENT)
    async with chatting(delta("stop"), DONE) as (chat, server):
        await collect(chat.generate(traced))
        await collect(chat.generate(request()))
    assert f"traceparent: {PARENT}" in server.headers[0]
    assert "traceparent" not in server.headers[1]


@pytest.mark.parametrize("size", [1, 3, 1_000])
@pytest.mark.parametrize(
    ("written", "prefix", "spoken"),
    [
        ("<think>Tea is wanted.</think>\n\nHere is your tea.", "", "Here is your tea."),
        ("\n<think>\n\n</think>\n\nTea.", "", "Tea."),
        ("Wait.<think>Which?</think> Green <think>or</think>black.", "", "Wait. Green black."),
        ("<think>It goes on and on", "", ""),
        ("a < b, <b>c</b>, </think> and <thin", "", "a < b, <b>c</b>, </think> and <thin"),
        ("<think>On.</think> is ten.", "It", " is ten."),
        (" is ten.", "It", " is ten."),
        ("<think>On.</think>It is ten.", "It", " is ten."),
        ("<think></think>" * 60_000 + "Tea.", "", "Tea."),
    ],
)
async def test_thoughts_of_a_remote_model_are_not_text(written, prefix, spoken, size):
    size = max(size, len(written) // 1_000)
    pieces = [delta(content=written[at : at + size]) for at in range(0, len(written), size)]
    asked = msgspec.structs.replace(request(), prefix=prefix)
    async with chatting(*pieces, delta("stop"), DONE, continuation="message") as (chat, _):
        *texts, _ = await collect(chat.generate(asked))
    assert "".join(event.text for event in texts) == spoken


async def test_text_and_usage():
    pieces = (
        delta(role="assistant", content=""),
        delta(content="It is "),
        delta(content="ten."),
        delta("stop"),
    )
    async with chatting(*pieces, USAGE, DONE) as (chat, server):
        events = await collect(chat.generate(request(temperature=0.5, max_tokens=9, seed=3)))
    assert events == [
        TextDelta(text="It is "),
        TextDelta(text="ten."),
        Completed(finish_reason="stop", prompt_tokens=9, completion_tokens=4),
    ]
    assert server.requests == [
        {
            "model": "their-model",
            "messages": [{"role": "user", "content": "hello"}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0.5,
            "top_p": 1.0,
            "max_tokens": 9,
            "seed": 3,
        }
    ]
    assert server.headers[0].startswith("POST /v1/chat/completions ")
    assert f"Bearer {KEY}" in server.headers[0]


async def test_calls_come_whole_and_in_their_order():
    pieces = (
        delta(tool_calls=[called(0, "set_timer", '{"min')]),
        delta(tool_calls=[called(1, "stop"), called(0, None, 'utes": 3}')]),
        delta("tool_calls"),
    )
    async with chatting(*pieces, DONE) as (chat, server):
        events = await collect(chat.generate(request(tools=[TIMER])))
    assert events == [
        ToolCalled(call=ToolCall(id="r-0", name="set_timer", arguments={"minutes": 3})),
        ToolCalled(call=ToolCall(id="r-1", name="stop", arguments={})),
        Completed(finish_reason="tool_calls"),
    ]
    assert server.requests[0]["tools"][0]["function"]["name"] == "set_timer"


async def test_past_calls_are_sent_as_the_interface_has_them():
    call = ToolCall(id="c", name="set_timer", arguments={"minutes": 3})
    history = (
        ChatMessage(role="assistant", tool_calls=[call]),
        ChatMessage(role="tool", content="{}", tool_call_id="c"),
    )
    async with chatting(delta("stop"), DONE) as (chat, server):
        await collect(chat.generate(request(*history)))
    sent, result = server.requests[0]["messages"]
    assert sent["tool_calls"][0]["function"]["arguments"] == '{"minutes": 3}'
    assert result["tool_call_id"] == "c"


@pytest.mark.parametrize("size", [1, 7, 1_000])
async def test_events_may_be_cut_anywhere(size):
    text = (
        b": comment\r\n\r\n"
        + event(delta(content="Grüß dich"))
        + event(delta("stop")).replace(b"\n", b"\r\n")
    )
    pieces = [text[place : place + size] for place in range(0, len(text), size)]
    async with chatting(*pieces, DONE) as (chat, _):
        assert (await collect(chat.generate(request())))[0] == TextDelta(text="Grüß dich")


async def test_answer_at_its_limit_has_the_reason_length():
    async with chatting(delta("length", content="And then")) as (chat, _):
        assert (await collect(chat.generate(request())))[-1] == Completed(finish_reason="length")


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        ([delta(content="x")], InferenceError),
        ([b"data: {\n\n"], InferenceError),
        ([delta("content_filter", content="I think")], InferenceError),
        ([b'data: {"choices": [{"delta": {"content": "\xff\xfe"}}]}\n\n'], InferenceError),
        ([{"error": {"message": "x"}}], InferenceError),
        ([b"data: " + b"x" * (2 << 20)], InferenceError),
        ([b": filler\n" * 10_000] * 60, InferenceError),
        ([delta("tool_calls", tool_calls=[called(0, "set_timer", "{")])], InvalidModelOutputError),
        ([delta("tool_calls", tool_calls=[called(0, None, "{}")])], InvalidModelOutputError),
        ([delta("length", tool_calls=[called(0, "set_timer", "{}")])], InvalidModelOutputError),
        ([delta(tool_calls=[called(index, "x") for index in range(40)])], InvalidModelOutputError),
    ],
)
async def test_answers_that_are_no_use(pieces, error):
    async with chatting(*pieces) as (chat, _):
        with pytest.raises(InferenceError) as raised:
            await collect(chat.generate(request()))
    assert type(raised.value) is error


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        ("400 Bad Request", b"{}", InferenceError),
        ("400 Bad Request", b'{"error": {"code": "context_length_exceeded"}}', ContextTooLongError),
        ("401 Unauthorized", KEY.encode(), ModelUnavailableError),
        ("302 Found", b"", InferenceError),
        ("429 Too Many Requests", b"", OverloadedError),
        ("500 Internal Server Error", b"x" * 200_000, ModelUnavailableError),
        ("503 Service Unavailable", b"", OverloadedError),
    ],
)
async def test_refusals(status, body, error):
    async with chatting(body, status=status) as (chat, _):
        with pytest.raises(InferenceError) as raised:
            await collect(chat.generate(request()))
    assert type(raised.value) is error
    assert KEY not in str(raised.value)
    assert status[:3] in str(raised.value)


async def test_a_server_that_is_not_there():
    async with chatting() as (chat, _):
        pass
    chat = OpenAiChatModel(RemoteChat(chat._url.removesuffix("/chat/completions"), "m"), timeout_s=5.0)
    with pytest.raises(ModelUnavailableError, match="cannot be reached"):
        await collect(chat.generate(request()))
    await chat.close()


async def test_a_server_that_is_silent():
    async with chatting(delta(content="x"), None, timeout_s=0.2) as (chat, _):
        with pytest.raises(DeadlineExceededError, match="silent"):
            await collect(chat.generate(request()))


async def test_an_abort_closes_the_connection():
    async with chatting(delta(content="x"), None) as (chat, server):
        answer = chat.generate(request())
        assert await anext(answer) == TextDelta(text="x")
        waiting = asyncio.ensure_future(anext(answer))
        await asyncio.sleep(0)
        await chat.abort("r")
        await chat.abort("unknown")
        assert await waiting == Completed(finish_reason="abort")
        await answer.aclose()
        await asyncio.wait_for(server.gone.wait(), 5)


async def test_closing_the_answer_closes_the_connection():
    async with chatting(delta(content="x"), None) as (chat, server):
        answer = chat.generate(request())
        await anext(answer)
        await answer.aclose()
        await asyncio.wait_for(server.gone.wait(), 5)


# --- settings -------------------------------------------------------------------------------


@pytest.mark.parametrize("remote", [RemoteChat(), RemoteChat("ftp://x", "m"), RemoteChat("http://x", "")])
def test_settings_that_name_no_server(remote):
    with pytest.raises(ModelLoadingError, match="llm_url and llm_model"):
        OpenAiChatModel(remote)


def read(values, **environment):
    return AgentConfig.from_parameters(Parameters("voice_agent", values, environment=environment)).remote_chat


def test_the_key_comes_from_a_file_or_the_environment(tmp_path):
    (tmp_path / "key").write_text(f"{KEY}\n")
    values = {"llm_url": "http://x/v1", "llm_model": "m", "llm_key_file": str(tmp_path / "key")}
    remote = read(values)
    assert remote == RemoteChat("http://x/v1", "m", KEY)
    assert KEY not in repr(remote)
    assert read(values, PARLEY_VOICE_AGENT_LLM_KEY="other").key == "other"
    # Anybody can read a model's configuration from Triton.
    assert read({"llm_key": "from the configuration"}).key == ""


@pytest.mark.parametrize("content", ["Grüße", "two\nlines", None])
def test_a_key_that_cannot_be_one(tmp_path, content):
    if content is not None:
        (tmp_path / "key").write_text(content, encoding="utf-8")
    with pytest.raises(ModelLoadingError) as raised:
        read({"llm_key_file": str(tmp_path / "key")})
    assert content is None or content not in str(raised.value)


async def test_a_last_event_may_have_no_end_of_line():
    async with chatting(event(delta("stop", content="Hi.")).rstrip()) as (chat, _):
        assert (await collect(chat.generate(request())))[0] == TextDelta(text="Hi.")


async def test_calls_without_a_number_begin_with_their_names():
    def call(**function):
        return delta(tool_calls=[{"function": function}])

    pieces = (call(name="a", arguments='{"x":'), call(arguments="1}"), call(name="b"), delta("tool_calls"))
    async with chatting(*pieces) as (chat, _):
        *calls, _ = await collect(chat.generate(request()))
    assert [(one.call.name, one.call.arguments) for one in calls] == [("a", {"x": 1}), ("b", {})]


async def test_a_closed_model_is_shutting_down():
    async with chatting(delta("stop", content="Hi.")) as (chat, _):
        await chat.close()
        with pytest.raises(ShuttingDownError):
            await collect(chat.generate(request()))


BEGUN = msgspec.structs.replace(request(), prefix="It is")


@pytest.mark.parametrize(
    ("continuation", "message", "fields"),
    [
        ("message", {}, {}),
        ("prefix", {"prefix": True}, {}),
        ("continue_final_message", {}, {"continue_final_message": True, "add_generation_prompt": False}),
    ],
)
@pytest.mark.parametrize("repeated", [[], ["I", "t is"], ["It is"]])
async def test_an_answer_goes_on(continuation, message, fields, repeated):
    pieces = [delta(content=text) for text in (*repeated, " ten", ".")]
    async with chatting(*pieces, delta("stop"), DONE, continuation=continuation) as (chat, server):
        *texts, completed = await collect(chat.generate(BEGUN))
    assert "".join(event.text for event in texts) == " ten."
    assert completed.finish_reason == "stop"
    (sent,) = server.requests
    assert sent["messages"][-1] == {"role": "assistant", "content": "It is", **message}
    assert fields.items() <= sent.items()


async def test_a_short_rest_is_not_taken_for_a_repetition():
    async with chatting(delta(content="It"), delta("stop"), DONE, continuation="message") as (chat, _):
        text, _ = await collect(chat.generate(BEGUN))
    assert text == TextDelta(text="It")


@pytest.mark.parametrize(("prefix", "reason"), [("It is ten", "length"), ("It is ten. (Really!)", "stop")])
async def test_a_server_that_cannot_go_on_is_not_asked(prefix, reason):
    async with chatting(delta("stop"), DONE) as (chat, server):
        events = await collect(chat.generate(msgspec.structs.replace(request(), prefix=prefix)))
    assert events == [Completed(finish_reason=reason)]
    assert server.requests == []


async def test_warm_up_is_not_sent():
    async with chatting(delta(content="Yes."), delta("stop"), DONE) as (chat, server):
        warm_up = msgspec.structs.replace(request(tools=[TIMER]), priority=Priority.WARM_UP)
        assert await collect(chat.generate(warm_up)) == [Completed(finish_reason="stop")]
        assert not server.requests
        await collect(chat.generate(request()))
        assert len(server.requests) == 1


def scored(**logprobs):
    tokens = [{"token": token, "logprob": value} for token, value in logprobs.items()]
    chunk = delta(content="A")
    chunk["choices"][0]["logprobs"] = {"content": [{"token": "A", "logprob": -0.1, "top_logprobs": tokens}]}
    return chunk


def questions(*texts, **options):
    asked = [Question(text=text, choices=["Yes", "No"]) for text in texts]
    return msgspec.structs.replace(request(**options), questions=asked)


@pytest.mark.parametrize(
    ("must_call", "choice"),
    [("*", "required"), ("set_timer", {"type": "function", "function": {"name": "set_timer"}})],
)
async def test_a_forced_call_is_asked_for_and_its_absence_is_an_error(must_call, choice):
    forced = msgspec.structs.replace(request(tools=[TIMER]), must_call=must_call)
    call = delta(tool_calls=[called(0, "set_timer", "{}")])
    said = delta(content="One moment.")
    async with chatting(said, call, delta("tool_calls"), DONE) as (chat, server):
        event, _ = await collect(chat.generate(forced))
    assert event.call.name == "set_timer"
    assert server.requests[0]["tool_choice"] == choice
    async with chatting(delta(content="Hello."), delta("stop"), DONE) as (chat, _):
        with pytest.raises(InvalidModelOutputError, match="made no call"):
            await anext(chat.generate(forced))


async def test_json_is_asked_for_with_its_schema():
    wanted = msgspec.structs.replace(request(), json_schema={"type": "object"})
    async with chatting(delta(content="{}"), delta("stop"), DONE) as (chat, server):
        await collect(chat.generate(wanted))
    form = server.requests[0]["response_format"]
    assert (form["type"], form["json_schema"]["schema"]) == ("json_schema", {"type": "object"})


async def test_questions_are_compared_by_the_letters_of_their_choices():
    # " a" is the same letter, and less likely.
    async with chatting(scored(A=-0.5, B=-1.5, **{" a": -3.0, "The": -2.0}), DONE) as (chat, server):
        asked = questions("Is it late?", "Is it dark?", tools=[TIMER])
        choices, completed = await collect(chat.generate(asked))
    assert choices.probabilities == [pytest.approx([0.731, 0.269], abs=0.001)] * 2
    assert completed.finish_reason == "stop"
    body = next(body for body in server.requests if "late" in body["messages"][-1]["content"])
    note = "A question about the user: Is it late?\nA: Yes\nB: No\nAnswer with one letter."
    assert body["messages"][-1] == {"role": "system", "content": note}
    assert (body["logprobs"], body["top_logprobs"], body["max_tokens"]) == (True, 20, 1)
    assert body["tool_choice"] == "none"


async def test_a_choice_that_is_not_listed_is_at_most_as_likely_as_the_last():
    async with chatting(scored(A=-0.01, The=-5.0), DONE) as (chat, _):
        choices, _ = await collect(chat.generate(questions("Is it late?")))
    assert choices.probabilities == [pytest.approx([0.993, 0.007], abs=0.001)]


async def test_choices_of_which_none_is_listed_have_no_probabilities():
    async with chatting(scored(The=-0.1), DONE) as (chat, _):
        assert (await collect(chat.generate(questions("Is it late?"))))[0] == Choices(probabilities=[[]])


async def test_a_server_without_log_probabilities_is_asked_no_more_for_a_while(monkeypatch):
    async with chatting(delta(content="A"), delta("stop"), DONE) as (chat, server):
        for _ in range(5):
            with pytest.raises(InferenceError, match="no log probabilities"):
                await collect(chat.generate(questions("Is it late?")))
        assert len(server.requests) == 3
        later = chat._asked_again_at + 1.0
        monkeypatch.setattr(openai_chat, "loop_time", lambda: later)
        with pytest.raises(InferenceError, match="no log probabilities"):
            await collect(chat.generate(questions("Is it late?")))
        assert len(server.requests) == 4
        assert (await collect(chat.generate(request())))[0] == TextDelta(text="A")


async def test_a_failed_question_fails_the_request():
    async with chatting(status="500 No") as (chat, server):
        with pytest.raises(ModelUnavailableError):
            await collect(chat.generate(questions(*"abcdef")))
    assert len(server.requests) == 6


async def test_an_abort_ends_questions_and_their_connections():
    async with chatting(None) as (chat, server):
        running = asyncio.create_task(collect(chat.generate(questions("Is it late?"))))
        await asyncio.wait_for(server.asked.wait(), 5)
        await chat.abort("r")
        assert await running == [Completed(finish_reason="abort")]
        await asyncio.wait_for(server.gone.wait(), 5)
