import numpy as np
import pytest

from parley.asr.messages import AsrOptions, AsrReply, AsrRequest
from parley.engines.recognizers import ModelRecognizer
from parley.errors import (
    InferenceError,
    OverloadedError,
    SessionNotFoundError,
    TooManySessionsError,
    UnsupportedLanguageError,
)
from parley.inference import SequenceFlags, struct_tensor, tensor_struct


class Port:
    """Replies with the count of samples so far; records every request."""

    def __init__(self):
        self.requests = []
        self.failure = None

    async def infer(self, request):
        self.requests.append(request)
        if self.failure:
            raise self.failure
        received = sum(sent.inputs["AUDIO"].shape[1] for sent in self.requests)
        return {"REPLY": struct_tensor(AsrReply(stream_ms=received), batched=True)}

    def said(self):
        """The message of each request; None: it has none."""
        sent = [request.inputs.get("REQUEST") for request in self.requests]
        return [None if message is None else tensor_struct(message, AsrRequest) for message in sent]


@pytest.fixture
def port():
    return Port()


@pytest.fixture
def recognizer(port):
    return ModelRecognizer(port, "call-1", model="parakeet_tdt", timeout_s=2.5)


async def test_a_stream_is_one_sequence(port, recognizer):
    options = AsrOptions(partial_interval_ms=500)
    await recognizer.start(options)
    assert (await recognizer.push(np.arange(5, dtype=np.int16))).stream_ms == 5
    assert (await recognizer.flush()).stream_ms == 5
    await recognizer.close()
    assert [request.sequence for request in port.requests] == [
        SequenceFlags("call-1", start=True),
        SequenceFlags("call-1"),
        SequenceFlags("call-1"),
        SequenceFlags("call-1", end=True),
    ]
    assert port.said() == [AsrRequest(options=options), None, AsrRequest(flush=True), None]
    assert {request.model for request in port.requests} == {"parakeet_tdt"}
    assert {request.timeout_s for request in port.requests} == {2.5}
    audio = port.requests[1].inputs["AUDIO"]
    assert (audio.shape, audio.dtype) == ((1, 5), np.int16)


async def test_options_are_checked_without_leaving_a_sequence(port, recognizer):
    options = AsrOptions(language="de")
    port.failure = UnsupportedLanguageError("language 'de' is not understood; only en")
    with pytest.raises(UnsupportedLanguageError):
        await recognizer.check(options)
    await recognizer.close()
    assert [request.sequence for request in port.requests] == [SequenceFlags("call-1", start=True, end=True)]
    assert port.said() == [AsrRequest(options=options)]


async def test_closed_stream_sends_nothing(port, recognizer):
    await recognizer.close()
    with pytest.raises(SessionNotFoundError):
        await recognizer.push(np.zeros(5, np.int16))
    assert port.requests == []


async def test_closing_twice_sends_one_end(port, recognizer):
    await recognizer.start(AsrOptions())
    await recognizer.close()
    await recognizer.close()
    assert len(port.requests) == 2
    with pytest.raises(SessionNotFoundError):
        await recognizer.flush()


async def test_a_failure_reaches_the_caller_and_closing_still_ends_the_sequence(port, recognizer):
    port.failure = TooManySessionsError("full")
    with pytest.raises(TooManySessionsError):
        await recognizer.start(AsrOptions())
    port.failure = InferenceError("gone")
    await recognizer.close()
    assert port.requests[-1].sequence == SequenceFlags("call-1", end=True)


async def test_an_answer_that_cannot_be_read_is_an_inference_error(port, recognizer):
    async def garbage(request):
        return {"REPLY": np.array([[b"garbage"]], dtype=np.object_)}

    port.infer = garbage
    with pytest.raises(InferenceError, match="cannot be read"):
        await recognizer.start(AsrOptions())


async def test_the_end_of_a_turn_goes_with_the_next_piece_of_audio(port, recognizer):
    await recognizer.start(AsrOptions())
    recognizer.begin_turn()
    port.failure = OverloadedError("not now")
    with pytest.raises(OverloadedError):
        await recognizer.push(np.zeros(5, np.int16))
    port.failure = None
    await recognizer.push(np.zeros(5, np.int16))
    await recognizer.push(np.zeros(5, np.int16))
    assert port.said()[1:] == [AsrRequest(turn_over=True), AsrRequest(turn_over=True), None]
