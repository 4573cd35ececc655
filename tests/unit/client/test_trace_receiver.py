"""Traces that ``parley trace --listen`` takes by OTLP over HTTP."""

from __future__ import annotations

import gzip
import http.client
import json
import math
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from google.protobuf.json_format import ParseDict
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import Link

from parley_client.errors import TraceFileError
from parley_client.waterfall import lines
from parley_client.waterfall import receiver as receiver_module
from parley_client.waterfall.receiver import TraceReceiver
from parley_client.waterfall.traces import read_trace

TAKE_S = 10.0
SPAN = {
    "traceId": "0af7651916cd43dd8448eb211c80319c",
    "spanId": "b7ad6b7169203331",
    "name": "call",
    "startTimeUnixNano": "1",
    "endTimeUnixNano": "2",
}
BODY = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [SPAN]}]}]}, indent=2).encode()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "traces.jsonl"


@pytest.fixture
def receiver(path):
    with TraceReceiver(0, path) as running:
        yield running


def port_of(url):
    return int(url.rsplit(":", 1)[1])


def post(receiver, body, where="/v1/traces", **headers):
    headers = {"Content-Type": "application/json", **headers}
    connection = http.client.HTTPConnection("127.0.0.1", port_of(receiver.url), timeout=TAKE_S)
    try:
        connection.request("POST", where, body, headers)
        return connection.getresponse().status
    finally:
        connection.close()


def export(url, session="call-7", **attributes):
    """A call and its turn with ``attributes``, by OpenTelemetry's SDK."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{url}/v1/traces", timeout=TAKE_S)))
    tracer = provider.get_tracer("test")
    with (
        tracer.start_as_current_span("call", attributes={"gen_ai.conversation.id": session}) as call,
        tracer.start_as_current_span(
            "turn",
            attributes={"parley.outcome": "complete", **attributes},
            links=[Link(call.get_span_context())],
        ),
    ):
        pass
    provider.shutdown()
    return call.get_span_context()


def test_spans_of_the_sdk_become_lines_that_can_be_drawn(receiver, path):
    context = export(receiver.url)
    assert [span.name for span in (*receiver.take(TAKE_S), *receiver.take(TAKE_S))] == ["turn", "call"]
    call = read_trace(path, "call-7")
    assert call.trace_id == f"{context.trace_id:032x}"
    assert [turn.outcome for turn in call.turns] == ["complete"]
    turn = json.loads(path.read_text().splitlines()[0])["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    assert turn["links"][0]["spanId"] == turn["parentSpanId"] == f"{context.span_id:016x}"


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_costs_no_batch(receiver, path, number):
    export(receiver.url, **{"parley.e2e_ms": number, "other": number})
    (turn,) = receiver.take(TAKE_S)
    assert turn.attributes == {"parley.outcome": "complete"}
    receiver.take(TAKE_S)
    assert [turn.outcome for turn in read_trace(path, "call-7").turns] == ["complete"]


def test_json_and_packed_bodies_are_taken(receiver, path):
    assert post(receiver, BODY) == 200
    assert post(receiver, gzip.compress(BODY), **{"Content-Encoding": "gzip"}) == 200
    assert [len(receiver.take(TAKE_S)) for _ in range(2)] == [1, 1]
    assert len(path.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{}", {}, 400),
        (b"\x00", {"Content-Type": "application/x-protobuf"}, 400),
        (BODY, {"Content-Type": "text/plain"}, 415),
        (BODY, {"Content-Encoding": "br"}, 415),
        (b"no gzip", {"Content-Encoding": "gzip"}, 400),
        (gzip.compress(BODY)[:-1], {"Content-Encoding": "gzip"}, 400),
        (gzip.compress(BODY)[:-20], {"Content-Encoding": "gzip"}, 400),
        (b"[" * 100_000, {}, 400),
        (gzip.compress(bytes(8 * 1024 * 1024)), {"Content-Encoding": "gzip"}, 413),
        (BODY, {"Content-Length": "99999999"}, 413),
        (BODY, {"Content-Length": "-1"}, 411),
    ],
)
def test_what_is_no_batch_is_refused(receiver, path, body, headers, status):
    assert post(receiver, body, **headers) == status
    assert path.read_bytes() == b""
    assert post(receiver, BODY) == 200


OF_PROTOBUF = {"Content-Type": "application/x-protobuf"}


def nested(*tags, payload):
    """Messages of protobuf, each the only field of the one before it."""
    for tag in reversed(tags):
        size = len(payload)
        digits = bytearray()
        while size >= 0x80:
            digits.append(size & 0x7F | 0x80)
            size >>= 7
        payload = bytes([tag, *digits, size]) + payload
    return payload


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"\x0a\x00" * 5_000, OF_PROTOBUF),
        (nested(0x0A, payload=b"\x12\x00" * 5_000), OF_PROTOBUF),
        (nested(0x0A, 0x12, payload=b"\x12\x00" * 5_000), OF_PROTOBUF),
        (json.dumps({"resourceSpans": [{}] * 5_000}).encode(), {}),
        (json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [SPAN] * 5_000}]}]}).encode(), {}),
    ],
    ids=["resources", "scopes", "spans", "resources of JSON", "spans of JSON"],
)
def test_a_batch_has_a_limit(receiver, path, body, headers):
    assert len(body) < receiver_module.MAX_BODY_BYTES
    assert post(receiver, body, **headers) == 413
    assert path.read_bytes() == b""


def test_batches_are_read_one_at_a_time(receiver, monkeypatch):
    reading, most = 0, []

    def read(body, limit, *, read_one=receiver_module.line_of_json):
        nonlocal reading
        reading += 1
        most.append(reading)
        time.sleep(0.05)
        reading -= 1
        return read_one(body, limit)

    monkeypatch.setitem(receiver_module._LINES, "application/json", read)
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: post(receiver, BODY), range(4))) == {200}
    assert most == [1] * 4


def test_spans_that_wait_have_a_limit(receiver, monkeypatch):
    monkeypatch.setattr(receiver_module, "MAX_WAITING_SPANS", 3)
    assert [post(receiver, BODY) for _ in range(4)] == [200, 200, 200, 503]
    receiver.take(TAKE_S)
    assert post(receiver, BODY) == 200


def test_a_line_that_could_not_be_read_is_not_written(receiver, path, monkeypatch):
    # A control character is one byte of protobuf and six of JSON.
    text = "\x01" * 1_000
    spans = [{**SPAN, "traceId": "AAAAAAAAAAAAAAAAAAAAAQ==", "spanId": "AAAAAAAAAAE=", "name": text}]
    batch = ExportTraceServiceRequest()
    ParseDict({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}, batch)
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 5_000)
    assert post(receiver, batch.SerializeToString(), **OF_PROTOBUF) == 413
    assert path.read_bytes() == b""
    monkeypatch.undo()
    assert post(receiver, batch.SerializeToString(), **OF_PROTOBUF) == 200


def test_other_paths_do_not_exist(receiver):
    assert post(receiver, BODY, "/v1/logs") == 404


def test_connections_that_send_nothing_do_not_pile_up(receiver, monkeypatch):
    silent = [socket.create_connection(("127.0.0.1", port_of(receiver.url))) for _ in range(20)]
    try:
        # Those beyond the limit are closed at once.
        for one in silent[receiver_module.MAX_REQUESTS :]:
            one.settimeout(TAKE_S)
            assert one.recv(1) == b""
    finally:
        for one in silent:
            one.close()


def test_batches_that_nobody_takes_are_refused(receiver, monkeypatch):
    statuses = {post(receiver, BODY) for _ in range(receiver_module.MAX_BATCHES + 1)}
    assert statuses == {200, 503}


def test_a_port_that_is_taken_and_a_file_that_cannot_be_written(receiver, tmp_path):
    with pytest.raises(TraceFileError, match="cannot be used"):
        TraceReceiver(port_of(receiver.url), tmp_path / "other.jsonl")
    with pytest.raises(TraceFileError, match="cannot be written"):
        TraceReceiver(0, tmp_path)


@pytest.fixture
def small_disk():
    """The process's files may grow to so many bytes, until the test has ended."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_whole_lines_and_is_told(path, small_disk):
    with TraceReceiver(0, path) as receiver:
        assert post(receiver, BODY) == 200
        whole = path.read_bytes()
        small_disk(len(whole) + 20)
        assert post(receiver, BODY) == 507
        small_disk(10_000)
        assert post(receiver, BODY) == 507, "it is not tried again"
        with pytest.raises(TraceFileError, match="File too large"):
            receiver.take(0)
    assert path.read_bytes() == whole


def test_a_device_that_takes_nothing_is_told_as_such():
    receiver = TraceReceiver(0, Path("/dev/full"))
    with receiver:
        assert post(receiver, BODY) == 507
    with pytest.raises(TraceFileError, match="No space left"):
        receiver.take(0)


def test_unpacking_stops_at_the_limit():
    packed = zlib.compress(bytes(100), wbits=16 + zlib.MAX_WBITS)
    assert receiver_module._unpack(packed) == bytes(100)


def test_the_command_draws_what_came_until_it_is_ended(path):
    command = [sys.executable, "-m", "parley_client", "trace", str(path), "--listen", "0"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            shown = ""
            while not (found := re.search(r"ENDPOINT=(\S+)", shown)):
                shown += process.stdout.readline()
            export(found[1])
            process.send_signal(signal.SIGINT)
            rest, _ = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 0
    assert "call call-7" in rest
    assert "turn 1" in rest
