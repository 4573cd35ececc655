"""Calls of a streaming recogniser to other models, which go on while it steps."""

import asyncio

import numpy as np
import pytest

from parley.asr.messages import TranscribeReply, TranscribeRequest
from parley.errors import ModelUnavailableError, ShuttingDownError
from parley.inference import struct_tensor, tensor_struct
from parley.models.nemotron_streaming import RemoteTranscribers


class Port:
    """Answers with the length of the audio once ``go_on`` is set."""

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
    transcribers = RemoteTranscribers(port, timeout_s=1.5)
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
    transcribers = RemoteTranscribers(port, timeout_s=1.5)
    transcribers.close()
    call = transcribers.submit("other", np.zeros(5, np.int16), TranscribeRequest())
    assert isinstance(call.exception(10), ShuttingDownError)
