"""The pooled channels, with real gRPC: a server that only echoes."""

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager

import grpc.aio
import httpx
import numpy as np
import pytest
from fake_call_server import Triton
from listening_gateway import DEADLINE_S, closed, receive
from tritonclient.grpc import service_pb2_grpc
from websockets.asyncio.client import connect

from parley import protocol
from parley_client.call import Call
from parley_client.events import AgentAudio
from parley_client.transport import TritonTransport, open_triton_channel
from parley_gateway.servers import discovery
from parley_gateway.serving import running
from parley_gateway.settings import load_settings


class Noting(Triton):
    """Notes who calls."""

    def __init__(self, peers):
        super().__init__(models=())  # none that canaries call, too
        self.peers = peers

    async def ModelStreamInfer(self, requests, context):  # noqa: N802 - gRPC's name
        self.peers.add(context.peer())
        async for reply in super().ModelStreamInfer(requests, context):
            yield reply


class EchoServer:
    """Can be stopped and started again on the same port."""

    def __init__(self):
        self.port = 0
        self.peers = set()

    async def start(self):
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Noting(self.peers), self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()

    async def stop(self):
        await self._server.stop(0)


@asynccontextmanager
async def gateway_for(*servers, file="", **more):
    addresses = {
        "file": file,
        "metrics_url": "",
        "addresses": [f"127.0.0.1:{server.port}" for server in servers],
        "check_s": 0.05,
        "retry_s": 0.05,
        "retry_max_s": 0.1,
    }
    settings = load_settings(flags={"listen": {"port": 0}, "servers": addresses, **more})
    async with running(settings) as one, httpx.AsyncClient(timeout=30, base_url=one.url) as http:
        yield http


@asynccontextmanager
async def echoing():
    server = EchoServer()
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@pytest.fixture
async def echo():
    async with echoing() as server:
        yield server


async def stream(stack, http):
    created = (await http.post("/v1/sessions")).raise_for_status().json()
    return await stack.enter_async_context(connect(created["stream_url"], compression=None))


async def ready_is(http, status):
    async with asyncio.timeout(20):
        while (await http.get("/readyz")).status_code != status:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def shows(http, series):
    """Wait until the metrics have a series with this value."""
    async with asyncio.timeout(20):
        while series not in (await http.get("/metrics")).text:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_calls_share_one_connection(echo):
    async with gateway_for(echo) as http, AsyncExitStack() as stack:
        for number in range(4):
            socket = await stream(stack, http)
            samples = np.full(160, number, "<i2").tobytes()
            await socket.send(samples)
            assert (await receive(socket, "audio"))["samples"] == 160
            assert await socket.recv() == samples
        assert len(echo.peers) == 1


async def test_a_server_that_restarts_comes_back_by_itself(echo):
    async with gateway_for(echo, calls={"resume_s": 0.2}) as http, AsyncExitStack() as stack:
        socket = await stream(stack, http)
        await receive(socket, "connected")
        await echo.stop()
        error = await receive(socket, "error")
        assert (error["code"], error["retryable"]) == ("call_lost", True)
        assert await closed(socket) == (1011, "call_lost")
        await ready_is(http, 503)
        refused = await http.post("/v1/sessions")
        assert refused.json()["error"]["code"] == "no_server_ready"
        await echo.start()
        await ready_is(http, 200)
        again = await stream(stack, http)
        await receive(again, "connected")


async def test_a_server_that_is_down_does_not_hold_calls_up(echo):
    other = EchoServer()
    await other.start()
    await other.stop()
    async with gateway_for(other, echo) as http, AsyncExitStack() as stack:
        for _ in range(3):
            socket = await stream(stack, http)
            assert json.loads(await socket.recv())["type"] == "connected"


async def test_a_call_goes_on_while_its_server_is_taken_from_the_file(echo, tmp_path, monkeypatch):
    monkeypatch.setattr(discovery, "_FILE_S", 0.01)
    file = tmp_path / "servers"
    file.write_text(f"127.0.0.1:{echo.port}\n")
    async with echoing() as other, gateway_for(echo, file=str(file)) as http, AsyncExitStack() as stack:
        old = await stream(stack, http)
        await receive(old, "connected")
        file.write_text(f"127.0.0.1:{other.port}\n")
        await shows(http, f'server_ready{{server="127.0.0.1:{other.port}"}} 1')
        page = (await http.get("/metrics")).text
        assert f'server_ready{{server="127.0.0.1:{echo.port}"}}' not in page
        assert f'server_users{{server="127.0.0.1:{echo.port}"}} 1' in page
        new = await stream(stack, http)
        await receive(new, "connected")
        assert other.peers
        for socket in (old, new):
            await socket.send(bytes(320))
            assert (await receive(socket, "audio"))["samples"] == 160
        file.write_text(f"127.0.0.1:{echo.port}\n")
        await shows(http, f'server_ready{{server="127.0.0.1:{echo.port}"}} 1')
        await receive(await stream(stack, http), "connected")
        for socket in (old, new):
            await socket.send(bytes(320))
            assert (await receive(socket, "audio"))["samples"] == 160


async def test_a_borrowed_channel_stays_open(echo):
    address = f"127.0.0.1:{echo.port}"
    async with open_triton_channel(address) as channel:
        for _ in range(2):
            transport = TritonTransport(address, channel=channel)
            call = Call(await transport.open("id", DEADLINE_S), "id", protocol.Start())
            await call.open()
            await call.send_audio(bytes(320))
            async with asyncio.timeout(DEADLINE_S):
                while not isinstance(await anext(call), AgentAudio):
                    pass
            await call.aclose()
            await transport.close()
