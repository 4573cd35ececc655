import asyncio
import dataclasses
import os

import grpc
import numpy as np
import pytest
from certificates import Authority
from tritonclient.grpc import service_pb2, service_pb2_grpc

from parley.errors import ModelUnavailableError, OverloadedError, ShuttingDownError
from parley.inference import ModelRequest
from parley.tls import TlsOptions
from parley.triton import grpc_client
from parley.triton.grpc_client import LoopbackClient
from parley.triton.model_control import FOLDER_VARIABLE, RELOAD_S, loss_path

REQUEST = ModelRequest("m", {"X": np.array([1], np.int16)}, ("Y",), timeout_s=10)
STOP = dataclasses.replace(REQUEST, frees=True)


class Server(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Answers when ``answer`` is set; says when an RPC was cancelled."""

    def __init__(self):
        self.served = 0
        self.arrived, self.answer, self.cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def _answer(self):
        self.arrived.set()
        try:
            await self.answer.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        output = service_pb2.ModelInferResponse.InferOutputTensor(name="Y", datatype="INT16", shape=[1])
        return service_pb2.ModelInferResponse(outputs=[output], raw_output_contents=[b"\x07\x00"])

    async def ModelInfer(self, request, context):  # noqa: N802 - gRPC's name
        return await self._answer()

    async def ModelStreamInfer(self, requests, context):  # noqa: N802
        async for _ in requests:
            yield service_pb2.ModelStreamInferResponse(infer_response=await self._answer())
        self.served += 1


@pytest.fixture
async def server():
    found = Server()
    running = grpc.aio.server()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(found, running)
    found.port = running.add_insecure_port("127.0.0.1:0")
    await running.start()
    yield found
    await running.stop(0)


@pytest.fixture
async def port(server):
    port = LoopbackClient(f"127.0.0.1:{server.port}", max_calls=1, max_streams=1)
    yield port
    await port.close()


async def within(work):
    async with asyncio.timeout(10):
        return await work


async def leave(server, work):
    """Begin ``work`` and stop waiting for it before it is answered."""
    task = asyncio.ensure_future(work)
    await within(server.arrived.wait())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def listen(port, request=REQUEST):
    return [response["Y"].tolist() async for response in port.stream(request)]


async def until_there_is_room(work):
    async with asyncio.timeout(10):
        while True:
            try:
                return await work()
            except OverloadedError:
                await asyncio.sleep(0)


async def test_answers(port, server):
    server.answer.set()
    assert (await port.infer(REQUEST))["Y"].tolist() == [7]
    assert await listen(port) == [[7]]


async def test_a_stream_that_is_left_gives_its_place_back_at_once_and_is_not_cut_off(port, server):
    await leave(server, listen(port))
    server.arrived.clear()
    next_one = asyncio.ensure_future(listen(port))
    await within(server.arrived.wait())
    assert not server.cancelled.is_set()
    server.answer.set()
    assert await within(next_one) == [[7]]
    async with asyncio.timeout(10):
        while server.served < 2:  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0)
    assert not server.cancelled.is_set()


@pytest.fixture
def watched(server, tmp_path, monkeypatch):
    """A client in a process of a server that a launcher watches."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(grpc_client, "_LOOK_S", 0.01)
    return LoopbackClient(f"127.0.0.1:{server.port}", max_calls=1, max_streams=1)


async def test_stream_of_a_model_that_loses_its_process_fails_when_that_is_noted(watched, server, tmp_path):
    loss_path(tmp_path, REQUEST.model).touch()  # of an earlier process
    os.utime(loss_path(tmp_path, REQUEST.model), ns=(0, 0))
    waiting = asyncio.ensure_future(listen(watched))
    await within(server.arrived.wait())
    loss_path(tmp_path, "another").touch()
    await asyncio.wait({waiting}, timeout=0.1)
    assert not waiting.done()
    loss_path(tmp_path, REQUEST.model).touch()
    with pytest.raises(ModelUnavailableError) as failure:
        await within(waiting)
    assert failure.value.retry_after_s == RELOAD_S
    await within(server.cancelled.wait())
    await watched.close()


async def test_stream_after_a_loss_is_answered(watched, server, tmp_path):
    loss_path(tmp_path, REQUEST.model).touch()
    server.answer.set()
    assert await within(listen(watched)) == [[7]]
    await watched.close()


async def test_streams_that_are_left_are_not_piled_up(port, server):
    for _ in range(4):
        await leave(server, listen(port))
        server.arrived.clear()
    assert not server.cancelled.is_set()
    await leave(server, listen(port))
    await within(server.cancelled.wait())  # the oldest


async def test_abort_needs_no_place_of_streams(port, server):
    busy = asyncio.ensure_future(listen(port))
    await within(server.arrived.wait())
    with pytest.raises(OverloadedError):
        await listen(port)
    stops = [asyncio.ensure_future(listen(port, STOP)) for _ in range(4)]
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError):  # a bound of their own
        await listen(port, STOP)
    server.answer.set()
    assert await within(asyncio.gather(busy, *stops)) == [[[7]]] * 5
    assert await listen(port, STOP) == [[7]]


async def test_a_stream_that_is_left_between_answers_is_read_to_its_end(port, server):
    server.answer.set()
    stream = port.stream(REQUEST)
    assert (await anext(stream))["Y"].tolist() == [7]
    await stream.aclose()
    assert await until_there_is_room(lambda: listen(port)) == [[7]]
    assert not server.cancelled.is_set()
    assert server.served == 2


async def test_a_stream_that_is_left_and_never_answered_is_cancelled(port, server, monkeypatch):
    monkeypatch.setattr(grpc_client, "_SETTLE_S", 0.0)
    await leave(server, listen(port))
    await within(server.cancelled.wait())
    server.answer.set()
    assert await until_there_is_room(lambda: listen(port)) == [[7]]


async def test_a_call_that_is_left_keeps_its_place_until_it_is_answered(port, server):
    await leave(server, port.infer(REQUEST))
    with pytest.raises(OverloadedError):
        await port.infer(REQUEST)
    server.answer.set()
    assert (await until_there_is_room(lambda: port.infer(REQUEST)))["Y"].tolist() == [7]
    assert not server.cancelled.is_set()


@pytest.mark.parametrize("kind", ["call", "stream"])
async def test_closing_the_port_cuts_off_what_is_under_way(port, server, kind):
    waiting = asyncio.ensure_future(port.infer(REQUEST) if kind == "call" else listen(port))
    await within(server.arrived.wait())
    await within(port.close())
    with pytest.raises(ShuttingDownError):
        await within(waiting)


async def test_a_server_with_tls_is_called_with_the_certificate_that_it_demands(tmp_path):
    authority = Authority()
    certificate, key = authority.issue("triton.example")
    for name, content in (("ca", authority.certificate), ("cert", certificate), ("key", key)):
        (tmp_path / name).write_bytes(content)
    found, running = Server(), grpc.aio.server()
    found.answer.set()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(found, running)
    credentials = grpc.ssl_server_credentials(
        [(key, certificate)], authority.certificate, require_client_auth=True
    )
    port = running.add_secure_port("127.0.0.1:0", credentials)
    await running.start()
    own = {"cert_file": tmp_path / "cert", "key_file": tmp_path / "key"}
    for more, is_taken in ((own, True), ({}, False)):
        tls = TlsOptions(ca_file=tmp_path / "ca", server_name="triton.example", **more)
        client = LoopbackClient(f"127.0.0.1:{port}", tls=tls)
        if is_taken:
            assert (await within(client.infer(REQUEST)))["Y"] == [7]
        else:
            with pytest.raises(ModelUnavailableError):
                await within(client.infer(REQUEST))
        await client.close()
    await running.stop(0)
