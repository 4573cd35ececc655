"""What a streaming recogniser needs of its server: calls that go on beside it, and counters."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from parley.asr.messages import TranscribeReply, TranscribeRequest
from parley.errors import ModelUnavailableError, ShuttingDownError
from parley.inference import struct_tensor, tensor_struct
from parley.models.nemotron_streaming import PortTranscribers
from parley.triton.observability import Counter


class Port:
    """Answers with the length of the audio once it is told to go on."""

    def __init__(self):
        self.requests = []
        self.go_on = asyncio.Event()
        self.closed = False
        self.failure = None

    async def infer(self, request):
        self.requests.append(request)
        if self.failure:
            raise self.failure
        await self.go_on.wait()
        reply = TranscribeReply(text=str(request.inputs["AUDIO"].shape))
        return {"REPLY": struct_tensor(reply, batched=True)}

    async def close(self):
        self.closed = True
        self.go_on.set()


@pytest.fixture
def port():
    return Port()


@pytest.fixture
def transcribers(port):
    transcribers = PortTranscribers(port, timeout_s=1.5)
    yield transcribers
    transcribers.close()
    assert port.closed


def test_calls_are_under_way_at_the_same_time_while_the_caller_goes_on(port, transcribers):
    request = TranscribeRequest(language="en", phrases=["Parley"])
    calls = [transcribers.submit("other", np.zeros(length, np.int16), request) for length in (5, 7)]
    assert not any(call.done() for call in calls)
    transcribers._loop.call(port.go_on.set)
    assert [call.result(10).text for call in calls] == ["(1, 5)", "(1, 7)"]
    assert {sent.model for sent in port.requests} == {"other"}
    assert {sent.timeout_s for sent in port.requests} == {1.5}
    assert tensor_struct(port.requests[0].inputs["REQUEST"], TranscribeRequest) == request


def test_a_failure_comes_with_the_call(port, transcribers):
    port.failure = ModelUnavailableError("gone")
    call = transcribers.submit("other", np.zeros(5, np.int16), TranscribeRequest())
    assert isinstance(call.exception(10), ModelUnavailableError)


def test_after_the_end_a_call_fails_at_once(port):
    transcribers = PortTranscribers(port, timeout_s=1.5)
    transcribers.close()
    call = transcribers.submit("other", np.zeros(5, np.int16), TranscribeRequest())
    assert isinstance(call.exception(10), ShuttingDownError)


class MetricFamily:
    COUNTER = "counter"

    def __init__(self, *, name, description, kind):
        self.said = (name, description, kind)
        self.metrics = []
        MetricFamily.made = self

    def Metric(self, *, labels):  # noqa: N802 - Triton's name
        self.metrics.append([labels, 0])
        return Metric(self.metrics[-1])


class Metric:
    def __init__(self, entry):
        self._entry = entry

    def increment(self, by):
        self._entry[1] += by


def test_a_counter_counts_every_combination_of_labels_apart():
    pb_utils = SimpleNamespace(MetricFamily=MetricFamily)
    counter = Counter(pb_utils, "parley_things_total", "Things")
    for reason in ("late", "late", "broken"):
        counter.count(model="a", reason=reason)
    assert MetricFamily.made.said == ("parley_things_total", "Things", "counter")
    assert MetricFamily.made.metrics == [
        [{"model": "a", "reason": "late"}, 2],
        [{"model": "a", "reason": "broken"}, 1],
    ]
