"""Calls to other models, from inside a model of the real server.

The repository ``tests/triton/repository`` holds a model that runs the scenarios of
``port_scenarios.py`` and two small models that are called.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from leftovers import ANY_PORTS, leftovers

from parley.inference import ModelRequest, tensor_bytes, text_tensor
from parley.launcher import EmbeddedServer, ServerOptions
from parley.launcher.options import GPU_PROFILE
from parley.triton.grpc_client import LoopbackClient

REPOSITORY = Path(__file__).with_name("repository")
MAX_STREAMS = 40  # of port_probe


@pytest.fixture(scope="module")
def probe_server(tmp_path_factory):
    options = ServerOptions(
        model_repository=REPOSITORY,
        profile=GPU_PROFILE,  # whose configurations are config.pbtxt
        state_dir=tmp_path_factory.mktemp("probe"),
        **ANY_PORTS,
    )
    with EmbeddedServer(options) as running:
        session = running.pid
        yield running
    assert leftovers(session, running.shm_prefix) == ([], [])


@pytest.fixture
async def outside(probe_server):
    port = LoopbackClient(probe_server.endpoints.grpc)
    yield port
    await port.close()


@pytest.fixture
def run(outside):
    """Runs a scenario."""

    async def run(scenario, **arguments):
        asked = {"scenario": scenario, "arguments": arguments}
        call = ModelRequest(
            "port_probe", {"REQUEST": text_tensor(json.dumps(asked))}, ("RESULT",), timeout_s=60
        )
        (response,) = [response async for response in outside.stream(call)]
        return json.loads(tensor_bytes(response["RESULT"]))

    return run


async def test_stream(run):
    assert await run("stream", count=0) == []
    assert await run("stream", count=30) == list(range(30))
    assert await run("stream", count=30, take=4) == list(range(4))


async def test_stream_failures(run):
    refused = {"code": "overloaded", "text": "asked to fail"}
    assert await run("stream_failure", count=5, fail_at=0) == refused
    assert await run("stream_failure", count=5, fail_at=2) == refused


async def test_stream_deadlines(run):
    first = await run("stream_failure", count=1, first_delay_s=1.0, timeout_s=0.1)
    assert first["code"] == "deadline_exceeded"
    later = await run("stream_failure", count=2, delay_s=0.4, first_delay_s=0, timeout_s=0.1)
    assert later["code"] == "deadline_exceeded"
    assert await run("stream", count=3) == [0, 1, 2]


async def test_unknown_models(run):
    assert [outcome["code"] for outcome in await run("unknown_models")] == ["model_unavailable"] * 2


async def test_streams_are_bounded(run):
    outcome = await run("too_many", streams=MAX_STREAMS + 5)
    assert outcome["later"] == [0, 1]
    assert outcome["refused"] >= 5
    assert outcome["served"] + outcome["refused"] == MAX_STREAMS + 5


async def test_sequences(run):
    outcome = await run("sequence", chunks=5)
    replies = outcome["replies"]
    assert [reply["n"] for reply in replies] == list(range(5))
    assert {reply["sequence"] for reply in replies} == {outcome["name"]}
    assert [reply["flags"] for reply in replies] == [1, 0, 0, 0, 2]


async def test_call_failures(run):
    outcome = await run("call_failures")
    assert outcome["not started"]["code"] == "inference_failed"
    assert "START" in outcome["not started"]["text"]
    assert outcome["model error"] == {"code": "overloaded", "text": "asked to fail"}
    assert outcome["late"]["code"] == "deadline_exceeded"


async def test_streams_that_wait_do_not_hold_up_calls(run):
    outcome = await run("calls_beside_slow_streams", streams=20)
    assert outcome["still_waiting"] == 20


async def test_stress(run):
    totals = await run("stress", users=16, seconds=6, think_s=0.02)
    assert totals["streams"] > 50
    assert totals["cut"] > 10
    assert totals["calls"] > 100


async def test_closing_early_cancels_the_model(outside):
    def ask(**asked):
        request = {"REQUEST": text_tensor(json.dumps({"stream": "left", **asked}))}
        return outside.stream(ModelRequest("probe_stream", request, ("EVENT", "AUDIO")))

    async def end():
        (response,) = [response async for response in ask(op="end")]
        return tensor_bytes(response["EVENT"])

    stream = ask(count=1000, delay_s=0.02)
    await anext(stream)
    await stream.aclose()
    async with asyncio.timeout(10):
        while not (found := await end()):
            pass
    assert found == b"cancelled"
