import pytest

from parley.errors import ModelLoadingError, ModelUnavailableError, ShuttingDownError
from parley.inference import ModelRequest, text_tensor
from parley.runtime.parameters import Parameters
from parley.triton.model_client import TritonModelClient, make_model_client


def make(environment=None, **values):
    return make_model_client(None, Parameters("voice_agent", values, environment=environment or {}))


@pytest.mark.parametrize("setting", ["bls_max_calls", "bls_max_streams"])
def test_bounds_are_positive(setting):
    with pytest.raises(ModelLoadingError, match=setting):
        make(**{setting: "0"})


class Way:
    """A port that records its calls."""

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


async def test_mixed_port_sends_each_kind_its_own_way():
    calls, streams = Way(), Way()
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
