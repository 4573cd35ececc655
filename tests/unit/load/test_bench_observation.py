"""Scraping and spans of ``make bench-observation``."""

from __future__ import annotations

import importlib.util
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import bench_observation
import fake_pb_utils
import pytest
from recorded_spans import PARENT, Spans

from parley.chat import ChatMessage
from parley.inference import struct_tensor
from parley.llm.messages import GenerateRequest
from parley.triton import model_traces
from parley.tts.messages import SpeakRequest
from parley_client.errors import ClientError

MODELS = Path(bench_observation.__file__).parent / "growth" / "models"
TAKE_S = 10.0


class Page(BaseHTTPRequestHandler):
    """Answers with the statuses that the test says, and the last of them from then on."""

    statuses: list
    read: threading.Event

    def do_GET(self):
        is_last = len(self.statuses) == 1
        self.send_response(self.statuses[0] if is_last else self.statuses.pop(0))
        self.end_headers()
        if is_last:
            self.read.set()

    def log_message(self, *_):
        pass


@pytest.fixture
def serve():
    servers = []

    def start(*statuses):
        handler = type("Handler", (Page,), {"statuses": list(statuses), "read": threading.Event()})
        server = HTTPServer(("127.0.0.1", 0), handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        servers.append((server, thread))
        return f"127.0.0.1:{server.server_port}", handler.read

    yield start
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_page_that_can_be_read_is_read(serve):
    address, read = serve(200)
    with bench_observation._scraped(address):
        assert read.wait(TAKE_S)


def test_a_page_that_fails_later_is_told(serve, monkeypatch):
    monkeypatch.setattr(bench_observation, "_SCRAPE_S", 0.01)
    address, read = serve(200, 200, 500)
    with pytest.raises(ClientError, match="read 2 times, and then not: status 500"):  # noqa: SIM117
        with bench_observation._scraped(address):
            assert read.wait(TAKE_S)


def test_a_page_that_never_comes_is_told(monkeypatch):
    monkeypatch.setattr(bench_observation, "_PAGE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ClientError, match="read 0 times"), bench_observation._scraped(address):
            pass


def test_a_failure_of_the_calls_is_the_one_that_is_told(monkeypatch):
    monkeypatch.setattr(bench_observation, "_PAGE_S", 0.1)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(KeyError, match="lost"),
        bench_observation._scraped(f"127.0.0.1:{silent.getsockname()[1]}"),
    ):
        raise KeyError("lost")


@pytest.fixture
def model(monkeypatch):
    """Loads a model without a network, as Triton does."""
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", fake_pb_utils)
    loaded = []

    def load(name):
        path = MODELS / name / "1" / "model.py"
        spec = importlib.util.spec_from_file_location(f"growth_{name}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        monkeypatch.setattr(module, "log_to_triton", lambda *_: None)
        one = module.TritonPythonModel()
        one.initialize(
            {
                "model_name": name,
                "model_config": "{}",
                "model_repository": str(MODELS / name),
                "model_version": "1",
            }
        )
        loaded.append(one)
        return one

    yield load
    for one in loaded:
        one.finalize()


@pytest.mark.parametrize(
    ("name", "message", "operation"),
    [
        (
            "qwen3",
            GenerateRequest(
                request_id="r1", messages=[ChatMessage(role="user", content="Hi")], traceparent=PARENT
            ),
            "generate qwen3",
        ),
        ("espeak", SpeakRequest(request_id="r1", text="Hi.", traceparent=PARENT), "speak espeak"),
    ],
)
def test_models_without_networks_have_spans(name, message, operation, model, monkeypatch):
    spans = Spans(clock=time.monotonic)
    monkeypatch.setattr(model_traces, "open_tracing", lambda *_, **__: spans.tracing)
    request = fake_pb_utils.Request({"REQUEST": struct_tensor(message)})
    model(name).execute([request])
    assert request.sender.final.wait(TAKE_S)
    end = time.monotonic() + TAKE_S
    while not spans.all() and time.monotonic() < end:
        time.sleep(0.001)  # the span ends behind the end of the request
    span = spans.one(operation)
    assert f"{span.parent.span_id:016x}" == PARENT.split("-")[2]
