"""Noticing that the server stops, and ending sequences while it does."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from parley.errors import DeadlineExceededError, InferenceError, ModelUnavailableError, ShuttingDownError
from parley.inference import ModelRequest, SequenceFlags
from parley.models.voice_agent import SequenceEndingClient
from parley.triton.request_loop import wait_for_stop
from parley.triton.server_watch import wait_for_closed_endpoint

SERVES = "Please use 'decoupled=True' argument to the 'exec'"
EXITS = "Model a - Error when running inference: Server not ready"


class FakeServer:
    """Refuses calls in the words of Triton; ``raises``: as an exception instead of a response."""

    def __init__(self, text, *, raises=False):
        self.text, self.raises, self.asked = text, raises, 0
        self.TritonModelException = type("TritonModelException", (Exception,), {})

    def InferenceRequest(self, **_):  # noqa: N802 - Triton's name
        return self

    async def async_exec(self):
        self.asked += 1
        if self.text is None:
            await asyncio.sleep(3_600)
        if self.raises:
            raise self.TritonModelException(self.text)
        return SimpleNamespace(
            has_error=lambda: True, error=lambda: SimpleNamespace(message=lambda: self.text)
        )


async def begin(server, *, served=False):
    watch = asyncio.create_task(wait_for_stop(server, "a", lambda: served))
    await asyncio.sleep(3)
    return watch


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("text", [EXITS, "Model 'a' is not ready.", "'a' has no available versions"])
async def test_a_serving_server_that_stops(text, raises):
    server = FakeServer(SERVES, raises=raises)
    watch = await begin(server)
    assert not watch.done()
    server.text = text
    await asyncio.wait_for(watch, 1)


async def test_loading_is_not_stopping():
    server = FakeServer(EXITS)
    watch = await begin(server)
    assert not watch.done()
    server.text = SERVES
    await asyncio.sleep(1)
    server.text = EXITS
    await asyncio.wait_for(watch, 1)


async def test_a_request_proves_that_loading_is_over():
    watch = await begin(FakeServer(EXITS), served=True)
    assert watch.done()


async def test_a_server_that_is_slow_is_asked_again():
    server = FakeServer(None)
    watch = await begin(server, served=True)
    await asyncio.sleep(10)
    assert not watch.done()
    server.text = EXITS
    await asyncio.wait_for(watch, 10)
    assert server.asked >= 2


class FakePort:
    def __init__(self):
        self.ways = []

    async def infer(self, request):
        self.ways.append("call")
        return {}

    async def stream(self, request):
        self.ways.append("stream")
        yield {"REPLY": 1}
        yield {"REPLY": 2}


@pytest.mark.parametrize(
    ("flags", "way"),
    [
        (None, "call"),
        (SequenceFlags("s"), "call"),
        (SequenceFlags("s", start=True), "call"),
        (SequenceFlags("s", start=True, end=True), "call"),
        (SequenceFlags("s", end=True), "stream"),
    ],
)
async def test_only_the_end_of_an_open_sequence_takes_the_stream(flags, way):
    port = FakePort()
    answer = await SequenceEndingClient(port).infer(ModelRequest("m", {}, (), sequence=flags))
    assert port.ways == [way]
    assert answer == ({"REPLY": 2} if way == "stream" else {})


async def test_an_end_that_is_not_answered_is_a_failed_call():
    class Silent(FakePort):
        async def stream(self, request):
            return
            yield

    # The caller looks for an output by its name.
    with pytest.raises(InferenceError, match="m ended its stream without an answer"):
        await SequenceEndingClient(Silent()).infer(
            ModelRequest("m", {}, (), sequence=SequenceFlags("s", end=True))
        )


async def test_an_end_goes_in_process_where_the_endpoint_is_closed():
    class Closed(FakePort):
        async def stream(self, request):
            self.ways.append("stream")
            raise ModelUnavailableError("m: failed to connect")
            yield

    port = Closed()
    await SequenceEndingClient(port).infer(ModelRequest("m", {}, (), sequence=SequenceFlags("s", end=True)))
    assert port.ways == ["stream", "call"]


class Endpoint:
    """Answers the given things in turn, the last one for ever."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = 0

    async def __call__(self, timeout_s):
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


GONE = ModelUnavailableError("failed to connect")
STOPPING = ShuttingDownError("cut off")
LATE = DeadlineExceededError("late")


@pytest.mark.parametrize("refusal", [GONE, STOPPING])
async def test_an_endpoint_that_closes_is_noticed(refusal):
    versions = []
    watch = wait_for_closed_endpoint(Endpoint("2.71.0", "2.71.0", refusal), versions.append, lambda: True)
    await asyncio.wait_for(watch, 5)
    assert versions == ["2.71.0"]


@pytest.mark.parametrize(
    "answers",
    [
        (GONE,),
        ("2.71.0", GONE, GONE, "2.71.0"),
        ("2.71.0", LATE),
    ],
)
async def test_an_endpoint_that_is_loading_slow_or_connected_anew_is_not_closed(answers):
    endpoint = Endpoint(*answers)
    watch = asyncio.create_task(wait_for_closed_endpoint(endpoint, lambda _: None, lambda: False))
    await asyncio.sleep(30)
    assert endpoint.asked > 10
    assert not watch.done()
    watch.cancel()


async def test_an_address_at_which_nothing_answers_is_reported_once(caplog):
    endpoint = Endpoint(GONE)
    watch = asyncio.create_task(wait_for_closed_endpoint(endpoint, lambda _: None, lambda: True))
    await asyncio.sleep(60)
    watch.cancel()
    assert caplog.text.count("Set PARLEY_GRPC_URL") == 1
