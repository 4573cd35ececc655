"""Spans of requests to a model."""

from __future__ import annotations

import logging
import time

import fake_pb_utils as pb
import pytest
from recorded_spans import PARENT, Spans

from parley.errors import OverloadedError
from parley.logs import current_ids
from parley.runtime.parameters import Parameters
from parley.tracing import NO_TRACE
from parley.triton.model_traces import ModelTraces, below
from parley.triton.responses import Responder
from parley.tts.messages import SpeakRequest


@pytest.fixture
def spans():
    return Spans(clock=time.monotonic)


@pytest.fixture
def traces(spans):
    return ModelTraces("espeak", spans.tracing)


def test_a_request_s_span_ends_with_it(spans, traces):
    responder = Responder(pb, pb.Request())
    traces.follow(responder, "speak", PARENT, {"parley.characters": 5})
    responder.on_begun({"parley.batch": 2})
    responder.send({})
    responder.send({})
    assert not spans.all()
    responder.finish()
    responder.on_begun()
    span = spans.one("speak espeak")
    assert f"{span.context.trace_id:032x}" == PARENT.split("-")[1]
    assert f"{span.parent.span_id:016x}" == PARENT.split("-")[2]
    assert {name for name in span.attributes if not name.endswith("_ms")} == {
        "parley.model",
        "parley.characters",
        "parley.batch",
    }
    assert 0 <= span.attributes["parley.queue_ms"] <= span.attributes["parley.first_response_ms"]


def test_a_failed_request_has_its_error(spans, traces):
    responder = Responder(pb, pb.Request())
    traces.follow(responder, "speak", PARENT)
    responder.fail(OverloadedError("full"))
    span = spans.one("speak espeak")
    assert span.attributes["error.type"] == OverloadedError.code
    assert "parley.first_response_ms" not in span.attributes


def test_the_span_of_a_request_that_has_ended_ends_at_once(spans, traces):
    responder = Responder(pb, pb.Request())
    responder.answer({})
    traces.follow(responder, "speak", PARENT)
    assert spans.one("speak espeak")


@pytest.mark.parametrize(
    "wrong",
    ["", "hello", PARENT.upper(), PARENT[:-1], f"00-{'0' * 32}-{'0' * 16}-01", f"ff{PARENT[2:]}", "é"],
)
def test_a_request_below_no_span_has_none(spans, traces, wrong):
    responder = Responder(pb, pb.Request())
    assert traces.follow(responder, "speak", wrong) is NO_TRACE
    responder.send({})
    responder.finish()
    assert not spans.all()


def test_a_caller_that_is_not_sampled_leaves_nothing(spans, traces):
    span = traces.begin("speak", f"{PARENT[:-2]}00")
    assert span.traceparent.startswith(PARENT[:36])
    assert span.traceparent.endswith("-00")
    span.end()
    assert not spans.all()


def test_without_an_endpoint_nothing_is_recorded():
    traces = ModelTraces.open(Parameters("espeak", {}, environment={}))
    responder = Responder(pb, pb.Request())
    assert traces.follow(responder, "speak", PARENT) is NO_TRACE
    responder.finish()
    traces.close()


def test_nested_requests_are_below_the_span_of_the_request(traces):
    message = SpeakRequest(request_id="a", traceparent=PARENT)
    span = traces.begin("speak", PARENT)
    assert below(span, message).traceparent == span.traceparent != PARENT
    assert below(NO_TRACE, message) is message


def test_the_log_of_a_failed_request_has_its_trace(traces):
    seen = []
    handler = logging.Handler()
    handler.emit = lambda record: seen.append(current_ids())
    logger = logging.getLogger("parley.triton.responses")
    logger.addHandler(handler)
    try:
        responder = Responder(pb, pb.Request())
        span = traces.follow(responder, "speak", PARENT)
        responder.fail(OverloadedError("full"))
    finally:
        logger.removeHandler(handler)
    (ids,) = seen
    assert [ids.trace_id, ids.span_id] == span.traceparent.split("-")[1:3]
