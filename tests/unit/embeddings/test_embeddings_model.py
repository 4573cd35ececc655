"""The model ``embeddings`` with a fake network: its requests, their order, and its answers."""

import threading

import fake_pb_utils as pb
import numpy as np
import pytest
from fake_session import FakeSession

from parley.embeddings.encoder import SentenceFolder, TextEncoder
from parley.embeddings.messages import EmbedReply, EmbedRequest
from parley.inference import struct_tensor, tensor_struct, text_tensor
from parley.launcher.options import ROOT
from parley.models.embeddings import EmbeddingService, load_model
from parley.runtime.parameters import Parameters
from parley.triton import request_queue
from parley.triton.model_metrics import ModelMetrics
from parley.triton.model_traces import ModelTraces
from parley.triton.request_queue import RequestQueue

DEADLINE_S = 10
RUN_TOKENS, MAX_WAITING = 12, 3


@pytest.fixture
def session():
    session = FakeSession(size=64)
    session.began, session.gate = threading.Semaphore(0), threading.Event()
    return session


@pytest.fixture
def model(session):
    folder = SentenceFolder(ROOT / "models/tiny-embeddings", {"query": "", "passage": ""})
    encoder = TextEncoder(session, takes_mean=True, run_tokens=RUN_TOKENS)
    service = EmbeddingService(folder, encoder)
    parameters = Parameters("embeddings", {}, environment={})
    running = RequestQueue(
        pb,
        "embed",
        service.read,
        encoder.count_together,
        service.serve,
        max_waiting=MAX_WAITING,
        metrics=ModelMetrics(pb, parameters),
        traces=ModelTraces("embeddings", None),
    )
    yield running
    session.gate.set()
    running.close()


def ask(model, *texts, kind="passage"):
    message = struct_tensor(EmbedRequest(kind=kind), batched=True)
    requests = [pb.Request({"TEXT": text_tensor(text, batched=True), "REQUEST": message}) for text in texts]
    model.execute(requests)
    return [request.sender for request in requests]


def answer(sender):
    assert sender.final.wait(DEADLINE_S)
    (_, content), end = sender.sent
    assert end == ("final",)
    return content


def busy(model, session, text="the"):
    """A request that is in the network."""
    (first,) = ask(model, text)
    assert session.began.acquire(timeout=DEADLINE_S)
    return first


def lengths(session):
    return [[len(ids) for ids in run] for run in session.runs]


def test_answer_has_vector_and_space(model, session):
    session.gate.set()
    content = answer(*ask(model, "the voice"))
    assert content["EMBEDDING"].shape == (1, 64)
    assert np.linalg.norm(content["EMBEDDING"]) == pytest.approx(1)
    reply = tensor_struct(content["REPLY"], EmbedReply)
    assert (reply.space.dimensions, reply.space.max_tokens) == (64, 256)
    assert (reply.tokens, reply.is_truncated) == (4, False)


def test_query_is_served_before_passages_that_wait_for_longer(model, session):
    first = busy(model, session)
    passages = ask(model, "the voice of the agent", "the tools of the agent")
    queries = ask(model, "the", kind="query")
    session.gate.set()
    for sender in (first, *passages, *queries):
        answer(sender)
    assert lengths(session) == [[3], [3], [7], [7]]


def test_passage_has_its_turn_behind_some_runs_of_queries(model, session, monkeypatch):
    monkeypatch.setattr(request_queue, "_URGENT_RUNS", 1)
    first = busy(model, session)
    passages = ask(model, "the voice")
    queries = ask(model, "the voice of the agent", "the tools of the agent", kind="query")
    session.gate.set()
    for sender in (first, *passages, *queries):
        answer(sender)
    assert lengths(session) == [[3], [7], [4], [7]]


def test_short_texts_that_wait_are_run_together(model, session):
    first = busy(model, session)
    others = ask(model, "the", "the voice", "the voice")
    session.gate.set()
    for sender in (first, *others):
        answer(sender)
    assert lengths(session) == [[3], [3, 4, 4]]


def test_passages_that_wait_leave_room_for_queries(model, session):
    busy(model, session)
    *_, refused = ask(model, *["the"] * (MAX_WAITING + 1))
    assert answer(refused) == "overloaded: 3 requests to embed wait already"
    (query,) = ask(model, "voice", kind="query")
    session.gate.set()
    assert "EMBEDDING" in answer(query)


def test_text_for_which_there_is_no_room_is_not_tokenized(model, session):
    busy(model, session)
    ask(model, *["the"] * MAX_WAITING)
    (refused,) = ask(model, b"\xff")
    assert answer(refused).startswith("overloaded: ")


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"TEXT": text_tensor(b"\xff", batched=True)}, "invalid_input: a text is not UTF-8"),
        ({"TEXT": text_tensor("", batched=True)}, "invalid_input: a text has nothing but blanks"),
        ({"TEXT": np.array([[b"a", b"b"]], np.object_)}, r"invalid_input: TEXT has shape [1, 2]"),
        (
            {"TEXT": text_tensor("a", batched=True), "REQUEST": text_tensor('{"kind":"x"}', batched=True)},
            "invalid_message: request cannot be read",
        ),
    ],
)
def test_wrong_request_is_refused_alone(model, session, inputs, said):
    session.gate.set()
    request = pb.Request(inputs)
    model.execute([request])
    assert answer(request.sender).startswith(said)
    assert "EMBEDDING" in answer(*ask(model, "the"))


def test_network_that_fails_is_an_error_and_the_next_text_is_served(model, session):
    session.gate.set()
    session.values = RuntimeError("out of memory")
    assert answer(*ask(model, "the")).startswith("inference_failed: the network failed")
    session.values = None
    assert "EMBEDDING" in answer(*ask(model, "the"))


def test_model_of_the_profile_tiny_is_loaded_by_its_settings():
    parameters = Parameters(
        "embeddings",
        {"weights": "tiny-embeddings"},
        model_dir=ROOT / "model_repository/embeddings",
        environment={},
    )
    model = load_model(pb, parameters)
    try:
        assert answer(*ask(model, "the voice"))["EMBEDDING"].shape == (1, 64)
    finally:
        model.close()
