import threading

import numpy as np
import pytest
from fake_pb_utils import failure, response

from parley.errors import (
    DeadlineExceededError,
    InferenceError,
    ModelUnavailableError,
    OverloadedError,
    ShuttingDownError,
)
from parley.inference import ModelRequest
from parley.triton.blocking_client import InProcessBlockingClient


def request(model="double", timeout_s=5.0):
    return ModelRequest(model, {"X": np.array([3])}, ("Y",), timeout_s=timeout_s)


class TestInProcess:
    @pytest.fixture
    def port(self, pb_utils):
        port = InProcessBlockingClient(pb_utils)
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
        port = InProcessBlockingClient(pb_utils)
        model.answer(response(Y=[6]))
        port.infer(request())
        assert "calls-double" in {thread.name for thread in threading.enumerate()}
        port.close()
        assert "calls-double" not in {thread.name for thread in threading.enumerate()}
        with pytest.raises(ShuttingDownError):
            port.infer(request())
