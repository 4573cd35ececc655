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
from parley.inference import ModelRequest
from parley.serving.blocking import InProcessBlockingPort, LoopBlockingPort, make_blocking_port
from parley.serving.parameters import Parameters


class AsyncPort:
    def __init__(self):
        self.closed = False
        self.threads = set()

    async def infer(self, request):
        self.threads.add(threading.current_thread().name)
        if request.model == "broken":
            raise InferenceError("out of order")
        return {"Y": request.inputs["X"] * 2}

    async def close(self):
        self.closed = True


def request(model="double", timeout_s=5.0):
    return ModelRequest(model, {"X": np.array([3])}, ("Y",), timeout_s=timeout_s)


def test_an_asynchronous_port_answers_a_thread_that_waits():
    inner = AsyncPort()
    port = LoopBlockingPort(inner)
    try:
        assert port.infer(request())["Y"].tolist() == [6]
        with pytest.raises(InferenceError, match="out of order"):
            port.infer(request("broken"))
        assert inner.threads == {"blocking-port"}
    finally:
        port.close()
    assert inner.closed
    assert "blocking-port" not in {thread.name for thread in threading.enumerate()}


def parameters(environment):
    return Parameters("m", {}, environment=environment)


def test_the_configuration_chooses_the_way():
    assert isinstance(make_blocking_port(object(), parameters({})), InProcessBlockingPort)
    port = make_blocking_port(object(), parameters({"PARLEY_BLS": "grpc"}))
    try:
        assert isinstance(port, LoopBlockingPort)
    finally:
        port.close()
    with pytest.raises(ModelLoadingError, match="PARLEY_BLS"):
        make_blocking_port(object(), parameters({"PARLEY_BLS": "pigeon"}))


class TestInProcess:
    @pytest.fixture
    def port(self, pb_utils):
        port = InProcessBlockingPort(pb_utils)
        yield port
        port.close()

    def test_answers_and_failures_reach_the_caller(self, port, model):
        model.answer(response(Y=[6]))
        assert port.infer(request())["Y"].tolist() == [6]
        model.answer(failure("overloaded: full"))
        with pytest.raises(OverloadedError, match="full"):
            port.infer(request())
        model.answer(response(Y=[7]))
        assert port.infer(request())["Y"].tolist() == [7]

    def test_what_triton_itself_raises_is_a_failed_call(self, port, pb_utils):
        pb_utils.InferenceRequest = None
        with pytest.raises(InferenceError, match="call to double failed"):
            port.infer(request())

    def test_a_model_that_hangs_is_not_waited_for(self, port, model):
        with pytest.raises(DeadlineExceededError, match=r"hung did not answer within 0\.01 s") as missed:
            port.infer(request("hung", 0.01))
        assert missed.value.retryable
        with pytest.raises(ModelUnavailableError, match="hung has not answered"):
            port.infer(request("hung"))
        assert [sent.fields["model_name"] for sent in model.requests] == ["hung"]
        model.answer(response(Y=[1]))  # for the thread

    def test_a_model_that_hangs_does_not_hold_up_another(self, port, model):
        with pytest.raises(DeadlineExceededError):
            port.infer(request("hung", 0.01))
        model.answer(response(Y=[1]))
        model.answer(response(Y=[1]))
        assert port.infer(request("well"))["Y"].tolist() == [1]

    def test_a_model_that_answers_late_is_called_again(self, port, model):
        with pytest.raises(DeadlineExceededError):
            port.infer(request("slow", 0.01))
        model.answer(response(Y=[1]))  # nobody wants it any more
        model.answer(response(Y=[2]))
        while True:
            try:
                assert port.infer(request("slow"))["Y"].tolist() == [2]
                break
            except ModelUnavailableError:
                continue

    def test_close_ends_the_threads_and_takes_no_more_calls(self, pb_utils, model):
        port = InProcessBlockingPort(pb_utils)
        model.answer(response(Y=[6]))
        port.infer(request())
        assert "calls-double" in {thread.name for thread in threading.enumerate()}
        port.close()
        assert "calls-double" not in {thread.name for thread in threading.enumerate()}
        with pytest.raises(ShuttingDownError):
            port.infer(request())


def test_a_port_without_deadlines_of_its_own_is_not_waited_for(monkeypatch):
    class Silent(AsyncPort):
        async def infer(self, request):
            await asyncio.Event().wait()

    monkeypatch.setattr("parley.serving.blocking._MARGIN_S", 0.0)
    port = LoopBlockingPort(Silent())
    try:
        with pytest.raises(DeadlineExceededError, match="double"):
            port.infer(request(timeout_s=0.01))
    finally:
        port.close()
