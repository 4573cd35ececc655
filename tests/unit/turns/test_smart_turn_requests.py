"""The queue of the end-of-turn model's requests."""

import threading
import time
from functools import partial

import fake_pb_utils as pb
import numpy as np
import pytest
from google.protobuf import text_format
from recorded_spans import PARENT, Spans
from tritonclient.grpc.model_config_pb2 import ModelConfig

from parley.errors import InvalidAudioError
from parley.inference import struct_tensor, text_tensor
from parley.launcher.options import ROOT
from parley.models.smart_turn import count_together, read_request
from parley.runtime.parameters import Parameters
from parley.triton.model_metrics import ModelMetrics
from parley.triton.model_traces import ModelTraces
from parley.triton.request_queue import RequestQueue
from parley.turns.smart_turn import TurnRequest

DEADLINE_S = 10


class Network:
    """Answers with the first sample; does not answer until ``go`` is set."""

    def __init__(self):
        self.runs = []
        self.began, self.go = threading.Semaphore(0), threading.Event()

    def serve(self, requests):
        self.runs.append([int(tensors["AUDIO"][0, 0]) for tensors in requests])
        self.began.release()
        assert self.go.wait(DEADLINE_S)
        if -2 in self.runs[-1]:
            raise RuntimeError("broken")
        return [
            InvalidAudioError("negative") if value < 0 else {"PROBABILITY": np.array([[value]], np.float32)}
            for value in self.runs[-1]
        ]


@pytest.fixture
def network():
    return Network()


@pytest.fixture
def model(network):
    running = start(network, rows=2)
    yield running
    network.go.set()
    running.close()


NO_TRACES = ModelTraces("smart_turn", None)


def metrics():
    return ModelMetrics(pb, Parameters("smart_turn", {}, environment={}))


def start(network, *, rows, traces=NO_TRACES):
    together = partial(count_together, rows=rows)
    return RequestQueue(
        pb,
        "score",
        read_request,
        together,
        network.serve,
        max_waiting=3,
        metrics=metrics(),
        traces=traces,
    )


def ask(model, *values):
    requests = [pb.Request({"AUDIO": np.array([[value]], np.int16)}) for value in values]
    model.execute(requests)
    return [request.sender for request in requests]


def answer(sender):
    assert sender.final.wait(DEADLINE_S)
    (kind, content), end = sender.sent
    assert end == ("final",)
    assert sender.sends == 1, "the answer and its end at once"
    return content if kind == "error" else content["PROBABILITY"].tolist()


def busy(model, network, value=1):
    """A request that is in the network."""
    (first,) = ask(model, value)
    assert network.began.acquire(timeout=DEADLINE_S)
    return first


def test_requests_that_wait_are_run_together_in_their_order(model, network):
    senders = [busy(model, network), *ask(model, 2, 3, 4)]
    network.go.set()
    assert [answer(sender) for sender in senders] == [[[1.0]], [[2.0]], [[3.0]], [[4.0]]]
    assert network.runs == [[1], [2, 3], [4]]


def test_one_too_many_is_refused_at_once(model, network):
    busy(model, network)
    *_, refused = ask(model, 2, 3, 4, 5)
    assert answer(refused) == "overloaded: 3 requests to score wait already"
    network.go.set()


def test_a_request_fails_alone_and_the_thread_goes_on(model, network):
    network.go.set()
    bad, good = ask(model, -1, 1)
    assert answer(bad) == "invalid_audio: negative"
    assert answer(good) == [[1.0]]
    (broken,) = ask(model, -2)
    assert answer(broken).startswith("internal_error")
    assert answer(*ask(model, 3)) == [[3.0]]


def test_what_waits_is_refused_when_the_model_is_unloaded(network):
    model = start(network, rows=1)
    first, waiting = busy(model, network), ask(model, 2)
    closing = threading.Thread(target=model.close)
    closing.start()
    while not model._closed:
        time.sleep(0.001)
    network.go.set()
    closing.join(DEADLINE_S)
    assert answer(first) == [[1.0]]
    assert answer(*waiting).startswith("shutting_down")
    assert answer(*ask(model, 3)).startswith("shutting_down")


@pytest.mark.parametrize(
    "path", sorted((ROOT / "model_repository").rglob("*.pbtxt")), ids=lambda path: str(path.parent.name)
)
def test_no_model_has_a_bounded_queue_of_tritons(path):
    """With one, Triton 24.10 overlooks a request that comes as another ends, for half a second."""
    config = text_format.Parse(path.read_text(), ModelConfig())
    assert not config.dynamic_batching.default_queue_policy.max_queue_size


def test_the_score_of_a_traced_pause_is_a_span(network):
    spans = Spans(clock=time.monotonic)
    model = start(network, rows=2, traces=ModelTraces("smart_turn", spans.tracing))
    network.go.set()
    audio = np.array([[5]], np.int16)
    messages = [struct_tensor(TurnRequest(traceparent=PARENT), batched=True), text_tensor("{", batched=True)]
    requests = [pb.Request({"AUDIO": audio}), *(pb.Request({"AUDIO": audio, "REQUEST": m}) for m in messages)]
    model.execute(requests)
    for request in requests:
        assert request.sender.final.wait(DEADLINE_S)
    model.close()
    span = spans.one("score smart_turn")
    assert f"{span.parent.span_id:016x}" == PARENT.split("-")[2]
    assert {"parley.queue_ms", "parley.first_response_ms"} <= span.attributes.keys()
    assert requests[2].sender.sent[0][0] == "error"
