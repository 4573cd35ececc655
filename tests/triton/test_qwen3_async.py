"""The chat model on vLLM's asynchronous engine, as the gpu profile runs it, in a real server without a GPU.

The engine's core and its worker are processes of their own, which the model's process starts and ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from contextlib import suppress

import psutil
import pytest
from chat_requests import TOOLS, collect, request, said, story, user
from leftovers import ANY_PORTS, leftovers
from metrics_page import read_metrics

from parley.engines.qwen3 import Qwen3ChatModel
from parley.errors import DeadlineExceededError, InvalidModelOutputError, ModelUnavailableError, ParleyError
from parley.launcher import EmbeddedServer, ServerOptions
from parley.launcher.options import ROOT
from parley.launcher.processes import session_members
from parley.llm.messages import Completed, TextDelta, ToolCalled
from parley.protocol import Tool
from parley.triton.grpc_client import LoopbackClient

CORE, WORKER = "VLLM::EngineCore", "VLLM::Worker"
PLACES = 2
PAGE_S = 60.0
RELOAD_S = 240.0
GONE_S = 10.0


def engine_processes(server):
    return {process.name(): process for process in session_members(server.pid) if "VLLM" in process.name()}


def running_ones(processes):
    """Those that have not ended; what ends them only waits for the model's own process."""
    deadline = time.monotonic() + GONE_S
    while left := [process for process in processes if is_running(process)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return left


def is_running(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Its model alone; stopped at the end with an engine that works, and without a trace."""
    state = tmp_path_factory.mktemp("async")
    arguments = json.loads((ROOT / "model_repository/qwen3/1/model.tiny.json").read_text())
    fewer = state / "model.json"
    fewer.write_text(json.dumps({**arguments, "max_num_seqs": PLACES}))
    options = ServerOptions(
        load_models=("qwen3",),
        environment={
            "PARLEY_QWEN3_ENGINE": "async",
            "PARLEY_QWEN3_ENGINE_ARGS": str(fewer),
            "TORCHDYNAMO_DISABLE": "1",  # otherwise each start compiles
        },
        state_dir=state,
        **ANY_PORTS,
    )
    with EmbeddedServer(options) as running:
        session, prefix = running.pid, running.shm_prefix
        yield running
        engine = engine_processes(running)
        assert set(engine) == {CORE, WORKER}
    assert leftovers(session, prefix) == ([], [])
    assert running_ones(engine.values()) == []


@pytest.fixture
async def chat(server):
    port = LoopbackClient(server.endpoints.grpc, max_streams=4 * PLACES)
    yield Qwen3ChatModel(port, timeout_s=PAGE_S)  # a call is one event, at its end
    await port.close()


class EndlessRequest:
    """The engine has it until it is ended: one that reaches the end of the context is made again."""

    def __init__(self, chat):
        self._chat = chat
        self._wanted = None
        self.answer = asyncio.create_task(self._ask())

    async def _ask(self):
        while True:
            self._wanted = long_call()
            with suppress(InvalidModelOutputError):  # a call that was not finished
                return (await collect(self._chat, self._wanted))[-1].finish_reason

    async def abort(self):
        while not self.answer.done():
            with suppress(DeadlineExceededError):  # the engine's processes leave a busy machine no time
                await self._chat.abort(self._wanted.request_id)
            await asyncio.wait((self.answer,), timeout=1.0)
        return await self.answer


def long_call():
    """A call whose arguments the grammar makes longer than the context."""
    texts = {"type": "array", "minItems": 100, "items": {"type": "string", "minLength": 100}}
    parameters = {"type": "object", "properties": {"city": texts}, "required": ["city"]}
    weather = Tool(name="get_weather", description="Get the weather in a city.", parameters=parameters)
    return request(user("what's the weather in paris"), tools=(weather,), max_tokens=3_500)


async def test_two_answers_stream_side_by_side(chat):
    answers = await asyncio.gather(*(collect(chat, story()) for _ in range(2)))
    for events in answers:
        assert said(events).startswith("Once upon a time")
        assert len([event for event in events if isinstance(event, TextDelta)]) > 5
        assert events[-1].finish_reason == "stop"
    assert said(answers[0]) == said(answers[1])


async def test_a_tool_is_called_under_its_grammar(chat):
    weather, *others = TOOLS
    city = {"type": "string", "enum": ["Rome", "London"]}
    properties = {**weather.parameters["properties"], "city": city}
    narrow = type(weather)(
        name=weather.name,
        description=weather.description,
        parameters={**weather.parameters, "properties": properties},
    )
    wanted = request(user("what's the weather in paris"), tools=(narrow, *others))
    *_, called, completed = await collect(chat, wanted)
    assert isinstance(called, ToolCalled)
    assert called.call.name == "get_weather"
    assert called.call.arguments["city"] in ("Rome", "London")
    assert completed.finish_reason == "tool_calls"


async def until_engine_has(server, running, waiting):
    """By what its core says with each step, on the page of metrics."""
    found = None
    async with asyncio.timeout(PAGE_S):
        while found != (running, waiting):
            page = await asyncio.to_thread(read_metrics, server)
            states = {
                dict(labels)["state"]: value
                for (name, labels), value in page.items()
                if name == "parley_engine_requests"
            }
            found = states.get("running"), states.get("waiting")


async def test_cancelled_requests_leave_nothing_in_the_engine(chat, server):
    """Half of them are aborted, and the readers of the others go away; some run and some wait."""
    held = [EndlessRequest(chat) for _ in range(2 * PLACES)]
    await until_engine_has(server, PLACES, PLACES)
    for one in held[1::2]:
        one.answer.cancel()
    reasons = await asyncio.gather(*(one.abort() for one in held[::2]))
    assert set(reasons) == {"abort"}
    again = [EndlessRequest(chat) for _ in range(PLACES)]
    await until_engine_has(server, PLACES, 0)
    reasons = await asyncio.gather(*(one.abort() for one in again))
    assert set(reasons) == {"abort"}


@pytest.mark.timeout(RELOAD_S + PAGE_S + 60)
async def test_a_core_that_dies_fails_its_requests_and_is_started_again(chat, server):
    before = engine_processes(server)
    running = [EndlessRequest(chat).answer for _ in range(PLACES)]
    await until_engine_has(server, PLACES, 0)
    os.kill(before[CORE].pid, signal.SIGKILL)
    for failure in await asyncio.gather(*running, return_exceptions=True):
        assert isinstance(failure, ModelUnavailableError)
    async with asyncio.timeout(RELOAD_S):
        while not await answers(chat):  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0.2)
    after = engine_processes(server)
    assert set(after) == {CORE, WORKER}
    assert {process.pid for process in before.values()}.isdisjoint(one.pid for one in after.values())
    assert running_ones(before.values()) == []


async def answers(chat):
    try:
        return isinstance((await collect(chat, request()))[-1], Completed)
    except ParleyError:
        return False
