"""Where spans go, and what happens without a collector."""

from __future__ import annotations

import socket
import sys
import threading
import time
from contextlib import suppress

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
    assert "pip install '.[traces]'" in caplog.text


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


class Collector:
    """Answers each request with a head, then with the same piece again and again."""

    def __init__(self, head, piece, pause_s):
        self.sent = 0
        self.is_cut_off = threading.Event()
        self._parts = head, piece, pause_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        head, piece, pause_s = self._parts
        connection, _ = self._listener.accept()
        with self._listener, connection:
            connection.recv(65_536)
            with suppress(OSError):
                connection.sendall(head)
                while self.sent < 64 * 1024 * 1024:
                    connection.sendall(piece)
                    self.sent += len(piece)
                    time.sleep(pause_s)
            self.is_cut_off.set()


PLAIN = b"HTTP/1.1 200 OK\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
REDIRECT = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "piece", "pause_s"),
    [
        (PLAIN, bytes(65_536), 0),
        (CHUNKED, b"10000\r\n" + bytes(65_536) + b"\r\n", 0),
        (REDIRECT, bytes(65_536), 0),
        (PLAIN, b"x", 0.02),
    ],
)
def test_an_endless_answer_of_a_collector_is_cut_off(monkeypatch, head, piece, pause_s):
    monkeypatch.setattr(tracing, "_EXPORT_S", 0.5)
    monkeypatch.setattr(tracing, "_CLOSE_S", 30.0)
    collector = Collector(head, piece, pause_s)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    traces = open_tracing("test", {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}, clock=time.monotonic)
    traces.begin("call").end()
    traces.close()
    assert collector.is_cut_off.wait(30)
    assert collector.sent < 32 * 1024 * 1024  # most of it waits in the buffers of the sockets


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
    span = spans.tracing.begin("step", PARENT, start_s=4.0, alone=False)
    span.child("part", start_s=4.0).end(4.5)
    span.end()
    span.set({"late": 1})
    whole, part = spans.one("step"), spans.one("part")
    assert whole.end_time - whole.start_time == pytest.approx(1e9, abs=1e3)
    assert part.end_time - part.start_time == pytest.approx(5e8, abs=1e3)
    assert part.start_time == whole.start_time
    assert not whole.attributes
