import pytest

from parley.errors import ModelLoadingError
from parley.serving.bls import InProcessPort
from parley.serving.loopback import LoopbackPort
from parley.serving.parameters import Parameters
from parley.serving.ports import MixedPort, make_port


def make(pb_utils, environment=None, **values):
    return make_port(pb_utils, Parameters("voice_agent", values, environment=environment or {}))


@pytest.mark.parametrize(
    ("environment", "values", "kind"),
    [
        ({}, {}, MixedPort),
        ({}, {"bls": "grpc"}, LoopbackPort),
        ({"PARLEY_BLS": "inprocess"}, {"bls": "grpc"}, InProcessPort),
    ],
)
def test_choice(pb_utils, environment, values, kind):
    assert type(make(pb_utils, environment, **values)) is kind


def test_unknown_choice(pb_utils):
    with pytest.raises(ModelLoadingError, match="PARLEY_BLS"):
        make(pb_utils, {"PARLEY_BLS": "udp"})
    with pytest.raises(ModelLoadingError, match="bls"):
        make(pb_utils, bls="udp")


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
    port = MixedPort(calls, streams)
    await port.infer("a")
    assert [response async for response in port.stream("b")] == [{}]
    assert (calls.calls, streams.calls) == ([("infer", "a")], [("stream", "b")])
    with pytest.raises(RuntimeError):
        await port.close()
    assert calls.closed
    assert streams.closed


async def test_nobody_listens(pb_utils):
    from parley.errors import ModelUnavailableError, ShuttingDownError
    from parley.inference import ModelRequest, text_tensor

    port = LoopbackPort("127.0.0.1:1")
    request = ModelRequest("m", {"X": text_tensor("x")}, ("Y",), timeout_s=5)
    with pytest.raises(ModelUnavailableError):
        await port.infer(request)
    with pytest.raises(ModelUnavailableError):
        await anext(port.stream(request))
    await port.close()
    with pytest.raises(ShuttingDownError):
        await port.infer(request)
