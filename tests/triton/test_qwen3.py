"""The chat model inside the real server."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import aclosing

import msgspec
import pytest
from chat_requests import SALT, TOOLS, collect, request, said, story, user

from parley.agent.config import AgentDeadlines
from parley.agent.generation import SaltedChat, warm_up
from parley.chat import ChatMessage, ToolCall
from parley.engines.qwen3 import Qwen3ChatModel
from parley.errors import ContextTooLongError, InvalidMessageError, OverloadedError
from parley.inference import ModelRequest, text_tensor
from parley.llm.messages import Completed, Priority, Sampling, TextDelta, ToolCalled
from parley.protocol import Tool
from parley.triton.grpc_client import LoopbackClient

MAX_REQUESTS = 64  # of configs/tiny.pbtxt


@pytest.fixture
async def port(server):
    port = LoopbackClient(server.endpoints.grpc, max_streams=200)
    yield port
    await port.close()


@pytest.fixture
def chat(port):
    return Qwen3ChatModel(port)


async def test_answers_in_pieces(chat):
    events = await collect(chat, story())
    assert said(events).startswith("Once upon a time")
    assert len([event for event in events if isinstance(event, TextDelta)]) > 5
    completed = events[-1]
    assert completed.finish_reason == "stop"
    assert completed.completion_tokens > 10
    assert completed.prompt_tokens > 50


async def test_calls_a_tool_and_uses_its_result(chat):
    question = user("what's the weather in paris")
    *_, called, completed = await collect(chat, request(question))
    assert isinstance(called, ToolCalled)
    assert (called.call.name, called.call.arguments) == ("get_weather", {"city": "Paris"})
    assert completed.finish_reason == "tool_calls"
    events = await collect(
        chat,
        request(
            question,
            ChatMessage(role="assistant", tool_calls=[called.call]),
            ChatMessage(
                role="tool", content='{"temperature": 25, "sky": "sunny"}', tool_call_id=called.call.id
            ),
        ),
    )
    assert said(events) == "It's 25 degrees and sunny in Paris."


async def test_a_shared_prefix_is_cached(chat):
    history = [user("hello"), ChatMessage(role="assistant", content="Hello! How can I help you?")] * 5
    await collect(chat, request(*history, user("thank you")))
    completed = (await collect(chat, request(*history, user("goodbye"))))[-1]
    assert completed.cached_tokens > completed.prompt_tokens / 2
    for salt in ("other", ""):
        completed = (await collect(chat, request(*history, user("goodbye"), cache_salt=salt)))[-1]
        assert completed.cached_tokens == 0


async def test_the_first_turn_finds_its_beginning_read(chat):
    # Unlike any other test's, so that it is in no cache.
    system = ChatMessage(role="system", content=f"You are Parley. This is call {uuid.uuid4().hex}.")
    await warm_up(SaltedChat(chat, SALT), uuid.uuid4().hex, [system], TOOLS, AgentDeadlines())
    wanted = request()
    wanted = msgspec.structs.replace(wanted, messages=[system, user("what time is it in tokyo")])
    completed = (await collect(chat, wanted))[-1]
    # Whole blocks of 32 tokens; the user's words are not among them.
    assert completed.prompt_tokens - 48 < completed.cached_tokens < completed.prompt_tokens


async def test_arguments_keep_to_the_tools_schema(chat):
    question = user("what's the weather in paris")
    weather, *others = TOOLS
    properties = {**weather.parameters["properties"], "city": {"type": "string", "enum": ["Rome", "London"]}}
    narrow = msgspec.structs.replace(weather, parameters={**weather.parameters, "properties": properties})
    *_, called, _ = await collect(chat, request(question, tools=(narrow, *others)))
    assert called.call.arguments["city"] in ("Rome", "London")


async def test_a_schema_that_is_not_supported_fails_nothing(chat):
    odd = Tool(name="get_weather", parameters={"type": "object", "properties": {"city": {"enum": []}}})
    events = await collect(chat, request(user("what's the weather in paris"), tools=(odd, *TOOLS[1:])))
    assert isinstance(events[-1], Completed)


async def test_seeded_long_prompts_that_come_together(chat):
    def long(seed):
        question = user("tell me a story " * 600)
        return request(question, tools=(), sampling=Sampling(max_tokens=4, temperature=1.0, seed=seed))

    answers = await asyncio.gather(*(collect(chat, long(seed)) for seed in range(6)))
    assert all(isinstance(events[-1], Completed) for events in answers)
    assert isinstance((await collect(chat, request()))[-1], Completed)


async def test_max_tokens(chat):
    events = await collect(chat, request(user("tell me a story"), max_tokens=3))
    assert (events[-1].finish_reason, events[-1].completion_tokens) == ("length", 3)


async def test_the_answer_takes_what_the_context_leaves(chat):
    filler = [user("hello"), ChatMessage(role="assistant", content="hello " * 50)]
    events = await collect(chat, request(*filler, user("hello"), max_tokens=100_000))
    assert isinstance(events[-1], Completed)
    with pytest.raises(ContextTooLongError):
        await collect(chat, request(*filler * 200, user("hello")))


@pytest.mark.parametrize(
    "fields",
    [
        {"sampling": Sampling(temperature=-1)},
        {"sampling": Sampling(max_tokens=0)},
    ],
)
async def test_requests_that_cannot_be_served(chat, fields):
    with pytest.raises(InvalidMessageError):
        await collect(chat, request(**fields))


async def test_the_model_chooses_an_id_that_is_left_out(chat):
    assert await collect(chat, request(request_id=""))


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe", b'{"op": "fly"}', b"[" * 10_000])
async def test_garbage(port, raw):
    with pytest.raises(InvalidMessageError):
        await anext(port.stream(ModelRequest("qwen3", {"REQUEST": text_tensor(raw)}, ("EVENT",))))


class TestAbort:
    async def test_while_running(self, chat):
        whole = (await collect(chat, story()))[-1]
        assert whole.finish_reason == "stop"
        for _ in range(10):  # on a busy machine the model may be done before the abort
            wanted = story()
            async with aclosing(chat.generate(wanted)) as stream:
                await anext(stream)
                await chat.abort(wanted.request_id)
                cut = [event async for event in stream][-1]
            if cut.finish_reason != "stop":
                break
        assert cut.finish_reason == "abort"
        assert cut.completion_tokens < whole.completion_tokens

    async def test_before_the_request(self, chat):
        wanted = request()
        await chat.abort(wanted.request_id)
        assert await collect(chat, wanted) == [Completed(finish_reason="abort")]

    async def test_while_waiting_for_a_place_in_the_batch(self, chat):
        streams = [chat.generate(story()) for _ in range(16)]  # max_num_seqs of model.tiny.json
        await asyncio.gather(*map(anext, streams))
        waiting = story()
        last = asyncio.ensure_future(collect(chat, waiting))
        await chat.abort(waiting.request_id)
        (completed,) = await last
        assert (completed.finish_reason, completed.completion_tokens) == ("abort", 0)
        for stream in streams:
            assert [event async for event in stream][-1].finish_reason == "stop"

    async def test_abort_of_an_unknown_request_does_nothing(self, chat):
        await chat.abort("no-such-request")

    async def test_a_caller_that_goes_away_frees_its_place(self, chat):
        for _ in range(3):
            streams = [chat.generate(story()) for _ in range(16)]
            await asyncio.gather(*map(anext, streams))
            await asyncio.gather(*(stream.aclose() for stream in streams))
        async with asyncio.timeout(20):
            assert isinstance((await collect(chat, request()))[-1], Completed)


class TestManyAtOnce:
    async def test_an_urgent_request_overtakes_those_that_wait(self, chat):
        # On a slow machine a place may be free before all four have come: then it is tried again.
        orders = []
        while list(Priority) not in orders:
            assert len(orders) < 20, orders
            orders.append(await self.order_of_admission(chat))

    async def order_of_admission(self, chat):
        """Which of four that wait begins when; the least urgent came first."""
        # As many as max_num_seqs of model.tiny.json; four of them end early, one after the other.
        lengths = [25, 33, 41, 49, *[200] * 12]
        question = user("tell me a story")
        streams = [chat.generate(request(question, max_tokens=length)) for length in lengths]
        await asyncio.gather(*map(anext, streams))
        order = []

        async def run(level):
            async with aclosing(chat.generate(story(priority=level))) as stream:
                await anext(stream)
                order.append(level)
                async for _ in stream:
                    pass

        waiting = [asyncio.ensure_future(run(level)) for level in reversed(Priority)]
        for stream in streams:
            assert isinstance([event async for event in stream][-1], Completed)
        await asyncio.gather(*waiting)
        return order

    async def test_an_id_in_use_is_refused(self, chat):
        # They come together, so that the first one is not over when the last one comes.
        wanted = story()
        outcomes = await asyncio.gather(*(collect(chat, wanted) for _ in range(3)), return_exceptions=True)
        refused = [outcome for outcome in outcomes if isinstance(outcome, InvalidMessageError)]
        assert ["in use" in str(error) for error in refused] == [True, True]
        (served,) = [outcome for outcome in outcomes if outcome not in refused]
        assert served[-1].finish_reason == "stop"

    async def test_sixteen_do_not_cross(self, chat):
        texts = ["tell me a joke", "what's the weather in paris", "hello", "what's the weather in london"]
        alone = [await collect(chat, request(user(text))) for text in texts]
        together = await asyncio.gather(*(collect(chat, request(user(text))) for text in texts * 4))
        for number, events in enumerate(together):
            expected = alone[number % 4]
            assert said(events) == said(expected)
            assert calls(events) == calls(expected)

    async def test_too_many_are_refused_and_the_others_served(self, chat):
        outcomes = await asyncio.gather(
            *(collect(chat, story()) for _ in range(2 * MAX_REQUESTS)), return_exceptions=True
        )
        refused = [outcome for outcome in outcomes if isinstance(outcome, OverloadedError)]
        served = [outcome for outcome in outcomes if not isinstance(outcome, OverloadedError)]
        assert refused
        assert len(served) >= MAX_REQUESTS
        assert {events[-1].finish_reason for events in served} == {"stop"}
        assert len({said(events) for events in served}) == 1


def calls(events):
    return [
        ToolCall(id="", name=event.call.name, arguments=event.call.arguments)
        for event in events
        if isinstance(event, ToolCalled)
    ]
