"""Where spans go, and what happens without a collector."""

from __future__ import annotations

import socket
import sys

import pytest
from recorded_spans import PARENT, Spans

from parley import tracing
from parley.errors import InferenceError
from parley.tracing import NO_TRACE, open_tracing


@pytest.fixture
def nowhere(monkeypatch):
    """The environment names a port at which no collector listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"}


def test_without_an_endpoint_there_are_no_traces():
    assert open_tracing("test", {}) is None
    assert open_tracing("test", {"OTEL_EXPORTER_OTLP_ENDPOINT": ""}) is None
    off = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4318", "OTEL_SDK_DISABLED": "true"}
    assert open_tracing("test", off) is None


def test_without_the_packages_there_are_no_traces(nowhere, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    assert open_tracing("test", nowhere) is None
    assert "parley[traces]" in caplog.text


def test_settings_that_the_sdk_refuses_cost_the_traces_and_nothing_else(nowhere, monkeypatch, caplog):
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "16")
    assert open_tracing("test", nowhere) is None
    assert "there are no traces" in caplog.text


async def test_a_trace_that_cannot_be_begun_is_none(nowhere, monkeypatch):
    monkeypatch.setattr(tracing, "_CLOSE_S", 0.2)
    traces = open_tracing("test", nowhere)
    monkeypatch.setattr(traces, "_tracer", None)
    assert traces.begin("call") is NO_TRACE
    traces.close()


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
async def test_a_collector_that_is_away_costs_a_call_nothing(nowhere, protocol, monkeypatch):
    monkeypatch.setattr(tracing, "_CLOSE_S", 0.2)
    traces = open_tracing("test", {**nowhere, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol})
    with traces.begin("call") as call:
        assert call.traceparent
        for number in range(5_000):
            call.child("turn", {"parley.turn": number}).end()
    traces.close()


async def test_a_block_ends_its_span_with_its_error(nowhere, monkeypatch):
    monkeypatch.setattr(tracing, "_CLOSE_S", 0.2)
    traces = open_tracing("test", nowhere)
    with pytest.raises(InferenceError), traces.begin("call") as call:
        raise InferenceError("no")
    assert call._ended
    assert call._span.attributes["error.type"] == InferenceError.code
    call.end(failure="another")
    assert call._span.attributes["error.type"] == InferenceError.code
    traces.close()


async def test_without_traces_nothing_is_recorded():
    with NO_TRACE.child("turn", {"a": 1}) as span:
        span.set({"b": 2})
        span.set_content("text", "hello")
        assert span is NO_TRACE
    assert NO_TRACE.traceparent == ""


def test_a_span_needs_no_event_loop():
    spans = Spans(clock=lambda: 5.0)
    span = spans.tracing.begin_below("step", PARENT, start_s=4.0)
    span.child("part", start_s=4.0).end(4.5)
    span.end()
    span.set({"late": 1})
    whole, part = spans.one("step"), spans.one("part")
    assert whole.end_time - whole.start_time == pytest.approx(1e9, abs=1e3)
    assert part.end_time - part.start_time == pytest.approx(5e8, abs=1e3)
    assert part.start_time == whole.start_time
    assert not whole.attributes
