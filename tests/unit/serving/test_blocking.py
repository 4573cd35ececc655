import threading

import numpy as np
import pytest

from parley.errors import InferenceError, ModelLoadingError
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


def request(model="double"):
    return ModelRequest(model, {"X": np.array([3])}, ("Y",))


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
