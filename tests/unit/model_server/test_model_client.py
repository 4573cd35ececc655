"""Calls to other models inside the server, asynchronous and blocking, and streams beside them."""

import asyncio
import threading

import numpy as np
import pytest
from fake_pb_utils import failure, response

from parley.errors import (
    DeadlineExceededError,
    InferenceError,
    ModelLoadingError,
    ModelUnavailableError,
    OverloadedError,
    ShuttingDownError,
)
from parley.inference import ModelRequest, SequenceFlags, text_tensor
from parley.runtime.parameters import Parameters
from parley.triton import grpc_client
from parley.triton.model_client import (
    InProcessBlockingClient,
    InProcessClient,
    TritonModelClient,
    make_model_client,
)
from parley.triton.server_flags import ServerFlags


def request(**fields):
    return ModelRequest("m", {"X": np.array([1], np.int16)}, ("Y",), **{"timeout_s": 5, **fields})


@pytest.fixture
async def port(pb_utils):
    port = InProcessClient(pb_utils, max_calls=2)
    yield port
    await port.close()


async def wait_until(condition):
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - of another thread
            await asyncio.sleep(0.001)


class TestInfer:
    async def test_sends_the_request_and_reads_the_response(self, port, model):
        flags = SequenceFlags("s", start=True, end=True)
        model.answer(response(Y=[1, 2]))
        result = await port.infer(request(sequence=flags, request_id="id"))
        assert result["Y"].tolist() == [1, 2]
        sent = model.requests[0].fields
        assert (sent["model_name"], sent["request_id"]) == ("m", "id")
        assert (sent["correlation_id"], sent["flags"]) == ("s", 3)
        assert sent["requested_output_names"] == ["Y"]
        assert sent["inputs"][0].as_numpy().tolist() == [1]

    async def test_result_is_a_copy(self, port, model):
        shared = np.array([1])
        model.answer(response(Y=shared))
        result = await port.infer(request())
        shared[0] = 99
        assert result["Y"].tolist() == [1]

    async def test_strings_stay_bytes(self, port, model):
        model.answer(response(Y=text_tensor("ä")))
        assert (await port.infer(request()))["Y"].tolist() == ["ä".encode()]

    async def test_errors_are_mapped(self, port, model):
        model.answer(failure("overloaded: full"))
        with pytest.raises(OverloadedError, match="full"):
            await port.infer(request())
        model.answer(failure("Model 'm' is not ready."))
        with pytest.raises(ModelUnavailableError):
            await port.infer(request())

    async def test_deadline_and_its_place(self, port, model):
        for _ in range(2):
            with pytest.raises(DeadlineExceededError):
                await port.infer(request(timeout_s=0.01))
        # Triton still works on both: there is no room for a third.
        with pytest.raises(OverloadedError):
            await port.infer(request())
        model.answer(response(Y=[1]))
        model.answer(failure("inference_failed: late"))
        await wait_until(model.answers.empty)
        model.answer(response(Y=[3]))
        async with asyncio.timeout(5):
            while True:
                try:
                    assert (await port.infer(request()))["Y"].tolist() == [3]
                    break
                except OverloadedError:
                    await asyncio.sleep(0.001)

    async def test_refuses_calls_after_close(self, port):
        await port.close()
        with pytest.raises(ShuttingDownError):
            await port.infer(request())


async def test_slow_calls_have_threads_of_their_own(pb_utils, model):
    # The default executor of a loop has as few as six.
    port = InProcessClient(pb_utils, max_calls=40)
    calls = [asyncio.ensure_future(port.infer(request())) for _ in range(40)]
    await wait_until(lambda: len([t for t in threading.enumerate() if t.name.startswith("bls")]) == 40)
    for n in range(40):
        model.answer(response(Y=[n]))
    answers = [answer["Y"].tolist() for answer in await asyncio.gather(*calls)]
    assert sorted(answers) == [[n] for n in range(40)]
    await port.close()


async def test_another_event_loop_is_refused(port, model):
    model.answer(response(Y=[1]))
    await port.infer(request())

    def elsewhere():
        with pytest.raises(InferenceError, match="same event loop"):
            asyncio.run(port.infer(request()))

    await asyncio.to_thread(elsewhere)


def blocking_request(model="double", timeout_s=5.0):
    return ModelRequest(model, {"X": np.array([3])}, ("Y",), timeout_s=timeout_s)


class TestBlocking:
    @pytest.fixture
    def port(self, pb_utils):
        port = InProcessBlockingClient(pb_utils)
        yield port
        port.close()

    def test_answers_and_failures_reach_the_caller(self, port, model):
        model.answer(response(Y=[6]))
        assert port.infer(blocking_request())["Y"].tolist() == [6]
        model.answer(failure("overloaded: full"))
        with pytest.raises(OverloadedError, match="full"):
            port.infer(blocking_request())
        model.answer(response(Y=[7]))
        assert port.infer(blocking_request())["Y"].tolist() == [7]

    def test_exception_of_triton_is_a_failed_call(self, port, pb_utils):
        pb_utils.InferenceRequest = None
        with pytest.raises(InferenceError, match="call to double failed"):
            port.infer(blocking_request())

    def test_a_model_that_hangs_is_not_waited_for(self, port, model):
        with pytest.raises(DeadlineExceededError, match=r"hung did not answer within 0\.01 s") as missed:
            port.infer(blocking_request("hung", 0.01))
        assert missed.value.retryable
        with pytest.raises(ModelUnavailableError, match="hung has not answered"):
            port.infer(blocking_request("hung"))
        assert [sent.fields["model_name"] for sent in model.requests] == ["hung"]
        model.answer(response(Y=[1]))  # for the thread

    def test_a_model_that_hangs_does_not_hold_up_another(self, port, model):
        with pytest.raises(DeadlineExceededError):
            port.infer(blocking_request("hung", 0.01))
        model.answer(response(Y=[1]))
        model.answer(response(Y=[1]))
        assert port.infer(blocking_request("well"))["Y"].tolist() == [1]

    def test_a_model_that_answers_late_is_called_again(self, port, model):
        with pytest.raises(DeadlineExceededError):
            port.infer(blocking_request("slow", 0.01))
        model.answer(response(Y=[1]))  # for the call that was given up
        model.answer(response(Y=[2]))
        while True:
            try:
                assert port.infer(blocking_request("slow"))["Y"].tolist() == [2]
                break
            except ModelUnavailableError:
                continue

    def test_close_ends_the_threads_and_takes_no_more_calls(self, port, model):
        model.answer(response(Y=[6]))
        port.infer(blocking_request())
        (thread,) = [thread for thread in threading.enumerate() if thread.name.startswith("calls-double")]
        port.close()
        thread.join(5)
        assert not thread.is_alive()
        with pytest.raises(ShuttingDownError):
            port.infer(blocking_request())


def make(environment=None, **values):
    return make_model_client(None, Parameters("voice_agent", values, environment=environment or {}))


@pytest.mark.parametrize("setting", ["bls_max_calls", "bls_max_streams"])
def test_bounds_are_positive(setting):
    with pytest.raises(ModelLoadingError, match=setting):
        make(**{setting: "0"})


@pytest.mark.parametrize(
    ("given", "words"),
    [("CERT", "given together"), ("KEY", "given together"), ("CERT KEY", "no.pem"), ("CA", "no.pem")],
)
def test_files_of_tls_are_checked_when_the_model_is_loaded(given, words):
    with pytest.raises(ModelLoadingError, match=words):
        make({f"PARLEY_GRPC_{name}_FILE": "no.pem" for name in given.split()})


class RecordingClient:
    """A client that records its calls."""

    def __init__(self):
        self.calls = []
        self.closed = False

    async def infer(self, request):
        self.calls.append(("infer", request))
        return {}

    async def stream(self, request):
        self.calls.append(("stream", request))
        yield {}

    async def close(self):
        self.closed = True
        raise RuntimeError("cannot close")


async def test_calls_stay_in_process_and_streams_go_over_grpc():
    calls, streams = RecordingClient(), RecordingClient()
    port = TritonModelClient(calls, streams)
    await port.infer("a")
    assert [response async for response in port.stream("b")] == [{}]
    assert (calls.calls, streams.calls) == ([("infer", "a")], [("stream", "b")])
    with pytest.raises(RuntimeError):
        await port.close()
    assert calls.closed
    assert streams.closed


@pytest.mark.parametrize(
    ("environment", "values"),
    [
        ({}, {"grpc_url": "127.0.0.1:1"}),
        ({"PARLEY_GRPC_URL": "127.0.0.1:1"}, {"grpc_url": "no address"}),
    ],
)
async def test_streams_go_to_the_configured_endpoint(environment, values):
    port = make(environment, **values)
    request = ModelRequest("m", {"X": text_tensor("x")}, ("Y",), timeout_s=5)
    with pytest.raises(ModelUnavailableError, match=r"127\.0\.0\.1:1"):
        await anext(port.stream(request))
    await port.close()
    for refused in (port.infer(request), anext(port.stream(request))):
        with pytest.raises(ShuttingDownError):
            await refused


@pytest.mark.parametrize(
    ("flags", "environment", "url"),
    [
        (None, {}, "127.0.0.1:8001"),
        (ServerFlags(grpc_url="127.0.0.1:9"), {}, "127.0.0.1:9"),
        (ServerFlags(grpc_url="127.0.0.1:9"), {"PARLEY_GRPC_URL": "127.0.0.1:7"}, "127.0.0.1:7"),
    ],
)
def test_streams_go_to_the_port_of_the_server_s_flags(monkeypatch, flags, environment, url):
    urls = []
    monkeypatch.setattr(grpc_client, "LoopbackClient", lambda address, **_: urls.append(address))
    parameters = Parameters("voice_agent", {}, environment=environment)
    make_model_client(None, parameters, flags)
    assert urls == [url]


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (ServerFlags(has_grpc=False), "start the server without --allow-grpc=false"),
        (ServerFlags(has_grpc_tls=True), "name its certificate in PARLEY_GRPC_CA_FILE"),
    ],
)
def test_a_server_without_usable_grpc_is_refused_with_the_remedy(flags, reason):
    with pytest.raises(ModelLoadingError, match=reason):
        make_model_client(None, Parameters("voice_agent", {}, environment={}), flags)
