"""The trace of a caller, passed on to the agent and to the log."""

from __future__ import annotations

import json
import logging
from contextlib import suppress

import pytest
from fake_agent import CONNECTED
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from websockets.exceptions import ConnectionClosed

from parley.errors import ModelUnavailableError
from parley.logs import current_ids
from parley.protocol import SpeechStarted
from parley.tracing import Tracing

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-11111111111111111111111111111111-2222222222222222-01"


def start_of(one):
    """What the agent of the last call was opened with."""
    (*_, stream) = one.agents[0].streams
    return json.loads(stream.seen[0].message)


async def test_the_header_of_the_stream_goes_to_the_agent(gateway):
    one = await gateway()
    async with one.stream(additional_headers={"traceparent": PARENT}) as socket:
        await socket.recv()
        assert start_of(one)["traceparent"] == PARENT


async def test_the_header_of_the_request_that_made_the_session_counts_first(gateway):
    one = await gateway()
    made = await one.http.post("/v1/sessions", json={}, headers={"traceparent": OTHER})
    async with one.stream(made.json()["session_id"], additional_headers={"traceparent": PARENT}) as socket:
        await socket.recv()
        assert start_of(one)["traceparent"] == OTHER


@pytest.mark.parametrize("wrong", ["hello", PARENT[:-1], "00-" + "x" * 32 + PARENT[35:]])
async def test_an_invalid_header_is_ignored(gateway, wrong):
    one = await gateway()
    async with one.stream(additional_headers={"traceparent": wrong}) as socket:
        await socket.recv()
        assert not start_of(one).get("traceparent")


async def breaks(stream):
    """Connects, begins, and is gone."""
    await stream.frames.get()
    stream.say(CONNECTED)
    stream.say(SpeechStarted(at_ms=0))
    stream.fail(ModelUnavailableError("gone"))


async def test_a_call_that_breaks_is_a_failed_span(gateway):
    one = await gateway(breaks)
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    one.gateway.calls._tracing = Tracing(provider, content=False)
    async with one.stream() as socket:
        with suppress(ConnectionClosed):
            while True:
                await socket.recv()
    while not exporter.get_finished_spans():
        await one.http.get("/healthz")
    (span,) = exporter.get_finished_spans()
    assert span.attributes["parley.reason"] == "lost"
    assert span.status.status_code is StatusCode.ERROR


async def test_a_call_is_a_span_between_the_caller_s_and_the_agent_s(gateway):
    one = await gateway()
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    one.gateway.calls._tracing = Tracing(provider, content=False)
    async with one.stream(additional_headers={"traceparent": PARENT}) as socket:
        await socket.recv()
        sent = start_of(one)["traceparent"].split("-")
    while not exporter.get_finished_spans():
        await one.http.get("/healthz")
    (span,) = exporter.get_finished_spans()
    assert f"{span.parent.span_id:016x}" == PARENT.split("-")[2]
    assert sent[1:3] == [f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"]
    assert sent[1] == PARENT.split("-")[1]
    assert span.attributes["parley.api"] == "sessions"
    assert span.attributes["gen_ai.conversation.id"] == one.agents[0].call_ids[0]


async def test_log_lines_of_a_call_have_its_ids(gateway):
    lines = []

    class Handler(logging.Handler):
        def emit(self, record):
            lines.append((record.getMessage(), current_ids()))

    handler = Handler(logging.INFO)
    logger = logging.getLogger("parley.gateway")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        one = await gateway()
        async with one.stream(additional_headers={"traceparent": PARENT}) as socket:
            await socket.recv()
        while not any(" WS " in message for message, _ in lines):
            await one.http.get("/healthz")
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
    ((opened, ids),) = [line for line in lines if "is open" in line[0]]
    call_id = one.agents[0].call_ids[0]
    assert opened == f"call {call_id} is open: sessions"
    assert (ids.session, ids.trace_id) == (call_id, PARENT.split("-")[1])
    ((named, _),) = [line for line in lines if line[0].startswith("session ")]
    assert named.endswith(f" has call {call_id}")
    ((_, access),) = [line for line in lines if " WS " in line[0]]
    assert access.request == ids.request
    made = next(other for message, other in lines if "POST /v1/sessions " in message)
    assert made.request not in ("", ids.request)
