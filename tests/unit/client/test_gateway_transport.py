"""Calls through a gateway: what the client sends, and what becomes of events and refusals."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from contextlib import asynccontextmanager, suppress

import numpy as np
import pytest
import uvicorn
from certificates import Authority
from fastapi import FastAPI, Request, WebSocket
from fastapi.responses import JSONResponse
from starlette.websockets import WebSocketDisconnect
from websockets.asyncio.server import serve

from parley import protocol
from parley.errors import TooManySessionsError
from parley_client import NO_RETRY, AgentAudio, CallLostError, ConnectError, connect, gateway_transport
from parley_client.gateway_transport import GatewayTransport
from parley_gateway.serving import running
from parley_gateway.settings import load_settings

RATE = 22_050
GIVE_UP_S = 10
"""After this a call that does not end by itself fails its test."""
CONNECTED = {
    "type": "connected",
    "session_id": "s",
    "encoding": "pcm16",
    "input_sample_rate": 16_000,
    "output_sample_rate": RATE,
    "max_message_bytes": 1_000,
}


class Gateway:
    """As much of one as a client sees: answers the first audio, and closes when it is asked to."""

    def __init__(self, *, breaks=False, refusal=None, retry_after=None, unreadable=()):
        self.breaks = breaks
        self.refusal = refusal
        self.headers = {} if retry_after is None else {"Retry-After": retry_after}
        self.unreadable = unreadable
        self.url = ""
        self.stream_url = ""
        self.body = None
        self.keys = []
        self.audio = b""

    def app(self):
        app = FastAPI()
        app.post("/v1/sessions")(self.create)
        app.websocket("/stream")(self.stream)
        return app

    async def create(self, request: Request):
        self.keys.append(request.headers.get("authorization"))
        self.body = await request.json()
        if self.refusal:
            return JSONResponse(
                {"error": {"code": self.refusal, "message": "no", "retryable": True}}, 503, self.headers
            )
        return {"stream_url": self.stream_url or self.url.replace("http", "ws") + "/stream"}

    async def stream(self, websocket: WebSocket):
        await websocket.accept("parley.v1")
        await websocket.send_json(CONNECTED)
        await websocket.send_json({"type": "state", "state": "listening"})
        for message in self.unreadable:
            await (websocket.send_bytes if isinstance(message, bytes) else websocket.send_text)(message)
        with suppress(WebSocketDisconnect):
            while True:
                message = await websocket.receive()
                if message["type"] == "websocket.disconnect":
                    return
                if message.get("bytes"):
                    self.audio += message["bytes"]
                    if self.breaks:
                        await websocket.close(1011)
                        return
                    audio = protocol.Audio(turn=1, response_id="r", offset_ms=0, sample_rate=RATE, samples=3)
                    await websocket.send_text(protocol.encode(audio).decode())
                    await websocket.send_bytes(np.array([1, 2, 3], "<i2").tobytes())
                elif "hangup" in message.get("text", ""):
                    await websocket.send_text(protocol.encode(protocol.Closed(reason="hangup")).decode())
                    await websocket.close(1000)
                    return


@asynccontextmanager
async def serving(gateway, **options):
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(gateway.app(), log_config=None, lifespan="off", **options))
    server.capture_signals = suppress  # signals stay with pytest
    task = asyncio.create_task(server.serve([listener]))
    try:
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)
        scheme = "https" if options else "http"
        gateway.url = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
        yield gateway.url
    finally:
        server.should_exit = True
        await task
        listener.close()


def calling(url, key="", tls=None, **options):
    return connect("", transport=lambda: GatewayTransport(url, key, tls=tls), retry=NO_RETRY, **options)


def certified(folder, name):
    """The TLS options of a gateway with a certificate for a name, and what its clients trust."""
    authority = Authority()
    files = folder / "chain.pem", folder / "key.pem"
    for path, content in zip(files, authority.issue(name), strict=True):
        path.write_bytes(content)
    options = {"ssl_certfile": files[0], "ssl_keyfile": files[1]}
    return options, ssl.create_default_context(cadata=authority.certificate.decode())


async def test_the_certificate_of_a_gateway_of_ones_own_is_believed_where_it_is_named(tmp_path):
    options, trust = certified(tmp_path, "localhost")
    gateway = Gateway()
    async with serving(gateway, **options) as url:
        gateway.url = url.replace("127.0.0.1", "localhost")  # as the certificate names it
        async with calling(gateway.url, tls=trust) as call:
            await call.send_audio(np.ones(160, np.int16))
            sounds = [event async for event in _until(call, AgentAudio)]
        assert list(sounds[-1].samples) == [1, 2, 3]
        with pytest.raises(ConnectError, match="no gateway answers"):
            async with calling(gateway.url):
                pass


async def test_a_call_has_audio_both_ways_and_is_hung_up():
    gateway = Gateway()
    async with serving(gateway) as url, calling(url, "secret", greeting="Good day.") as call:
        await call.send_audio(np.ones(160, np.int16))
        sounds = [event async for event in _until(call, AgentAudio)]
        closed = await call.hang_up()
    assert list(sounds[-1].samples) == [1, 2, 3]
    assert closed.reason == "hangup"
    assert gateway.audio == np.ones(160, "<i2").tobytes()
    assert gateway.keys == ["Bearer secret"]
    assert gateway.body["greeting"] == "Good day."
    assert not {"type", "input_sample_rate"} & set(gateway.body)
    assert call.stats.sent == 3
    assert (call.stats.acknowledged, list(call.stats.round_trips_ms)) == (0, [])
    assert "gateway-stream" not in {task.get_name() for task in asyncio.all_tasks()}


async def _until(call, kind):
    async for event in call:
        yield event
        if isinstance(event, kind):
            return


async def test_a_refusal_keeps_its_code():
    async with serving(Gateway(refusal="too_many_sessions")) as url:
        with pytest.raises(ConnectError) as refused:
            await calling(url).__aenter__()
    assert isinstance(refused.value.__cause__, TooManySessionsError)


@pytest.mark.parametrize("code", ["too_many_sessions", "no_server_ready"])
@pytest.mark.parametrize(
    ("sent", "wait_s"),
    [("12", 12.0), (None, None), ("Wed, 21 Oct 2026 07:28:00 GMT", None), ("9" * 400, None), ("-1", None)],
)
async def test_a_refusal_says_when_to_try_again(code, sent, wait_s):
    async with serving(Gateway(refusal=code, retry_after=sent)) as url:
        with pytest.raises(ConnectError) as refused:
            await calling(url).__aenter__()
    assert refused.value.retry_after_s == wait_s


async def test_a_connection_that_breaks_loses_the_call():
    async with serving(Gateway(breaks=True)) as url, calling(url) as call:
        await call.send_audio(np.ones(160, np.int16))
        with pytest.raises(CallLostError, match="1011"):
            [event async for event in call]


AUDIO = protocol.encode(
    protocol.Audio(turn=1, response_id="r", offset_ms=0, sample_rate=RATE, samples=3)
).decode()


@pytest.mark.parametrize("messages", [("{}",), ("[]",), ("{",), (AUDIO, b"odd")])
async def test_a_message_that_cannot_be_read_loses_the_call(messages):
    gateway = Gateway(unreadable=messages)
    async with asyncio.timeout(GIVE_UP_S), serving(gateway) as url, calling(url) as call:
        with pytest.raises(CallLostError, match="a message of the gateway cannot be read"):
            [event async for event in call]


async def test_a_gateway_that_has_vanished_loses_the_call(monkeypatch):
    monkeypatch.setattr(gateway_transport, "_PING_S", 0.1)
    over = asyncio.Event()

    async def vanish(connection):
        await connection.send(json.dumps(CONNECTED))
        connection.transport.pause_reading()  # so that no ping is answered
        await over.wait()
        connection.transport.abort()

    gateway = Gateway()
    deaf = serve(vanish, "127.0.0.1", 0, subprotocols=["parley.v1"])
    async with asyncio.timeout(GIVE_UP_S), serving(gateway) as url, deaf as server:
        gateway.stream_url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with calling(url) as call:
            with pytest.raises(CallLostError, match="1006"):
                [event async for event in call]
        over.set()


async def test_key_and_audio_never_leave_tls(tmp_path):
    options, trust = certified(tmp_path, "127.0.0.1")
    gateway = Gateway()
    async with asyncio.timeout(GIVE_UP_S), serving(gateway, **options) as url:
        # As behind a proxy that speaks TLS, where the gateway has no `listen.public_url`.
        gateway.stream_url = url.replace("https", "ws") + "/stream"
        async with calling(url, tls=trust) as call:
            assert (await call.hang_up()).reason == "hangup"


async def test_answer_of_another_program_is_reported():
    gateway = Gateway()

    async def greet():
        return ["hello"]

    gateway.create = greet
    async with serving(gateway) as url:
        with pytest.raises(ConnectError, match="answers as no gateway does"):
            await calling(url).__aenter__()


async def test_missing_gateway_is_reported():
    with pytest.raises(ConnectError, match="no gateway answers at"):
        await calling("http://127.0.0.1:1").__aenter__()


async def test_a_real_gateway_without_a_server_refuses():
    settings = load_settings(flags={"listen": {"port": 0}, "servers": {"addresses": ["127.0.0.1:1"]}})
    async with running(settings) as one:
        with pytest.raises(ConnectError) as refused:
            await calling(one.url).__aenter__()
    assert refused.value.code == "no_server_ready"
