"""Clients that read too slowly, have gone without a word, or send too much."""

import asyncio
import base64
import errno
import gc
import json
import os
import re
import ssl
import struct
from contextlib import asynccontextmanager, suppress

import httpx
import numpy as np
import pytest
from certificates import Authority
from fake_agent import CONNECTED, serve
from listening_gateway import DEADLINE_S, closed, frame_of, receive, until
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from parley import protocol
from parley_gateway.errors import TooManyCallsError
from parley_gateway.protocols import HttpProtocol, WebSocketProtocol
from parley_gateway.security.principal import Principal
from parley_gateway.serving import running
from parley_gateway.settings import load_settings

SECOND = np.zeros(48_000, np.int16)


async def talkative(stream):
    """Sends much audio at every frame that brings some."""
    audio = protocol.Audio(turn=1, response_id="r", offset_ms=0, sample_rate=48_000, samples=len(SECOND))

    def talk(frame):
        for _ in range(200 if frame.audio else 0):
            stream.say(audio, SECOND)

    await serve(stream, talk)


@asynccontextmanager
async def raw_stream(one):
    """The connection of a session's WebSocket, whose client does nothing by itself."""
    session_id = await one.create()
    key = base64.b64encode(os.urandom(16)).decode()
    async with one.connection(limit=1_024) as (reader, writer):
        writer.write(
            f"GET /v1/sessions/{session_id}/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        async with asyncio.timeout(DEADLINE_S):
            assert b"101" in await reader.readuntil(b"\r\n\r\n")
        yield reader, writer


async def read_to_the_end(reader):
    """Until the connection is gone; whether it was closed or reset."""
    with suppress(ConnectionResetError):
        async with asyncio.timeout(DEADLINE_S):
            while await reader.read(65_536):
                pass


def frame(opcode, payload=b"", *, fin=True):
    """A client's frame, masked with zeros."""
    head = bytes([(0x80 if fin else 0) | opcode])
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else bytes([0x80 | 126]) + struct.pack("!H", size)
    return head + length + bytes(4) + payload


def connections(one):
    """WebSockets whose connections the gateway still holds."""
    return [kept for kept in gc.get_objects() if type(kept) is WebSocketProtocol and not kept.disconnected]


async def ended(one):
    await frame_of(one.agents[0], lambda frame: frame.end)
    await until(lambda: one.gateway.calls.count == 0)


async def test_a_client_that_reads_too_slowly_is_closed_and_its_call_ended(gateway):
    one = await gateway(talkative, writer={"bytes": 200_000})
    async with one.stream(max_queue=1) as socket:
        await receive(socket, "connected")
        await socket.send(bytes(320))
        await ended(one)
        assert await closed(socket) == (1013, "slow_reader")
    assert await one.metric("parley_gateway_slow_readers_total") == 1
    assert (await one.status(socket.session_id))["reason"] == "slow_reader"


async def test_a_client_that_reads_nothing_at_all_cannot_keep_its_connection(gateway, monkeypatch):
    monkeypatch.setattr("parley_gateway.protocols._LINGER_S", 0.05)
    monkeypatch.setattr("parley_gateway.websocket._CLOSE_S", 0.05)
    one = await gateway(talkative, writer={"bytes": 200_000, "stall_s": 0.2})
    async with raw_stream(one) as (reader, writer):
        writer.write(frame(2, bytes(100)))
        await ended(one)
        await until(lambda: not connections(one))
        await read_to_the_end(reader)


async def test_a_half_open_connection_is_noticed(gateway):
    one = await gateway(limits={"ping_interval_s": 0.05, "ping_timeout_s": 0.05})
    async with raw_stream(one):  # answers no ping
        await ended(one)


async def test_a_client_that_answers_pings_stays(gateway):
    one = await gateway(limits={"ping_interval_s": 0.01})
    async with one.stream() as socket:
        await receive(socket, "connected")
        await until_pinged(socket)
        assert one.gateway.calls.count == 1


async def until_pinged(socket):
    """Wait for five pings, and nothing else."""
    pings = []
    answer = socket.protocol.recv_frame

    def note(frame):
        pings.append(frame.opcode)
        return answer(frame)

    socket.protocol.recv_frame = note
    await until(lambda: len(pings) >= 5)
    assert set(pings) == {9}


@pytest.fixture
def pinged(monkeypatch):
    """The gateway's ends of the connections on which it has sent a ping, again for each ping."""
    found = []
    ask = WebSocketProtocol.send_keepalive_ping

    def note(self):
        ask(self)
        found.append(self)

    monkeypatch.setattr(WebSocketProtocol, "send_keepalive_ping", note)
    return found


def let_pass(connection):
    """The time for an answer to the newest ping is over."""
    connection.pong_timer.cancel()
    connection.keepalive_timeout()


async def test_a_client_whose_pongs_lie_behind_its_audio_stays(gateway, pinged):
    async def stuck(stream):
        await stream.frames.get()
        stream.say(CONNECTED)
        stream.may_send.clear()
        await asyncio.Event().wait()

    one = await gateway(stuck, limits={"ping_interval_s": 0.01}, calls={"close_s": 0.1})
    async with one.stream() as socket:
        await receive(socket, "connected")

        async def pour():
            while True:
                await socket.send(bytes(32_000))

        pouring = asyncio.create_task(pour())
        await until(lambda: pinged and pinged[0].read_paused and pinged[0].pong_timer)
        for _ in range(5):
            let_pass(pinged[0])
            assert not pinged[0].transport.is_closing()
        assert one.gateway.calls.count == 1
        pouring.cancel()
        socket.transport.abort()


async def test_a_client_that_sends_is_there_and_gone_once_it_is_silent(gateway, pinged):
    one = await gateway(limits={"ping_interval_s": 0.01})
    async with raw_stream(one) as (_, writer):  # answers no ping
        await until(lambda: pinged)
        for _ in range(3):
            writer.write(frame(2, bytes(32)))
            # What was not passed on yet would count too.
            await until(lambda: pinged[0]._was_heard and not pinged[0].read_paused)
            let_pass(pinged[0])
            assert not pinged[0].transport.is_closing()
        assert one.gateway.calls.count == 1
        let_pass(pinged[0])
        await ended(one)


async def test_too_many_messages_close_the_stream(gateway):
    one = await gateway(rates={"messages_per_s": 5, "burst_s": 1.0})
    async with one.stream() as socket:
        for _ in range(20):
            await socket.send(json.dumps({"type": "commit"}))
        assert (await receive(socket, "error"))["code"] == "rate_limited"
        assert await closed(socket) == (1008, "rate_limited")
    await ended(one)


async def test_a_message_that_is_too_large_closes_the_stream(gateway):
    one = await gateway(limits={"frame_bytes": 10_000})
    async with one.stream() as socket:
        await receive(socket, "connected")
        await socket.send(bytes(10_002))
        assert (await closed(socket))[0] == 1009
    await ended(one)


async def test_a_message_of_endless_pieces_drops_the_connection(gateway):
    one = await gateway()
    async with raw_stream(one) as (_, writer):
        writer.write(frame(2, b"", fin=False))
        writer.write(frame(0, b"", fin=False) * 2_000)
        await ended(one)


async def test_pings_whose_answers_are_not_read_drop_the_connection(gateway):
    one = await gateway()
    pings = frame(9, bytes(120)) * 1_000
    async with raw_stream(one) as (_, writer):

        async def flood():
            while True:
                writer.write(pings)
                await writer.drain()

        flooding = asyncio.create_task(flood())
        await ended(one)
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)


async def test_a_server_that_takes_no_audio_makes_the_client_wait(gateway):
    async def stuck(stream):
        await stream.frames.get()
        stream.say(CONNECTED)
        stream.may_send.clear()
        await asyncio.Event().wait()

    one = await gateway(stuck, calls={"send_s": 30.0, "acknowledge_s": 30.0, "close_s": 0.1})
    received = one.gateway.metrics.received.labels("binary")._value
    async with one.stream() as socket:
        await receive(socket, "connected")

        async def pour():
            while True:
                await socket.send(bytes(32_000))

        pouring = asyncio.create_task(pour())
        # A second is stuck on the way, two wait for it, and the next one waits for room.
        await until(lambda: received.get() == 4)
        for _ in range(1_000):
            await asyncio.sleep(0)
        assert received.get() == 4
        pouring.cancel()
        socket.transport.abort()


async def test_a_call_too_many_is_refused_with_a_time_to_wait(gateway):
    one = await gateway(calls={"limit": 1, "retry_after_s": 7.0})
    waiting = await one.create()
    async with one.stream() as socket:
        await receive(socket, "connected")
        answer = await one.http.post("/v1/sessions")
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "too_many_calls")
        assert answer.headers["Retry-After"] == "7"
        with pytest.raises(Exception, match="429") as refusal:
            async with one.stream(waiting):
                pass
        assert refusal.value.response.headers["Retry-After"] == "7"
    await until(lambda: one.gateway.calls.count == 0)
    async with one.stream(waiting) as socket:
        await receive(socket, "connected")


async def test_key_cannot_hold_all_calls(gateway):
    one = await gateway(calls={"limit": 10, "per_key": 1})
    key = Principal(id="key-1", scopes=frozenset({"agent"}))
    async with one.gateway.calls.open(protocol.Start(), principal=key, api="test"):
        with pytest.raises(TooManyCallsError, match="this key"):
            one.gateway.calls.check_room(key)
        one.gateway.calls.check_room(Principal(id="key-2", scopes=frozenset({"agent"})))


async def test_limit_per_key_ignores_callers_without_a_key(gateway):
    one = await gateway(calls={"limit": 10, "per_key": 1})
    async with one.stream() as socket:
        await receive(socket, "connected")
        assert (await one.http.post("/v1/sessions")).status_code == 201


async def test_a_body_that_is_too_large_is_refused(gateway):
    one = await gateway(limits={"body_bytes": 100})
    announced = await one.http.post("/v1/sessions", content=b" " * 101)

    async def pieces():
        for _ in range(101):
            yield b" "

    unannounced = await one.http.post("/v1/sessions", content=pieces())
    for answer in (announced, unannounced):
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "message_too_large")


@pytest.mark.parametrize("limit", ["body_s", "body_stall_s"])
async def test_a_body_that_does_not_come_is_not_waited_for(gateway, limit):
    one = await gateway(limits={limit: 0.05})
    async with one.connection() as (reader, writer):
        writer.write(b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{")
        async with asyncio.timeout(DEADLINE_S):
            assert b" 408 " in await reader.readline()


async def test_a_connection_that_asks_nothing_is_closed(gateway, monkeypatch):
    monkeypatch.setattr("parley_gateway.protocols._HEAD_S", 0.05)
    one = await gateway()
    async with one.connection() as (reader, writer):
        writer.write(b"GET /healthz HTTP/1.1\r\n")
        await read_to_the_end(reader)


@pytest.mark.parametrize("begun_early", [False, True])
async def test_a_second_request_that_does_not_come_whole_is_not_waited_for(gateway, monkeypatch, begun_early):
    monkeypatch.setattr("parley_gateway.protocols._HEAD_S", 0.05)
    one = await gateway(limits={"keep_alive_s": 600})
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with one.connection() as (reader, writer):
        writer.write(request + (b"G" if begun_early else b""))
        async with asyncio.timeout(DEADLINE_S):
            assert b" 200 " in await reader.readline()
        writer.write(b"E" if begun_early else b"G")
        await read_to_the_end(reader)


async def test_the_wait_for_a_head_ends_with_it(gateway, monkeypatch):
    timers = []
    wait = HttpProtocol._wait_for_head

    def note(self):
        wait(self)
        timers.append(self._head_timer)

    monkeypatch.setattr(HttpProtocol, "_wait_for_head", note)
    one = await gateway()
    async with one.stream() as socket:
        await receive(socket, "connected")
        assert timers
        assert all(timer.cancelled() for timer in timers)


MOST = 2_000


def head(size, method=b"GET", target=b"/healthz", more=b""):
    """A request's head of so many bytes."""
    start = method + b" " + target + b" HTTP/1.1\r\nHost: localhost\r\n" + more + b"X-Much: "
    return start + b"a" * (size - len(start) - 4) + b"\r\n\r\n"


async def answers(one, *pieces):
    """The statuses of all answers until the gateway closes the connection, and what it sent."""
    async with one.connection() as (reader, writer):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.02)
        async with asyncio.timeout(DEADLINE_S):
            raw = await reader.read()
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3})", raw)], raw


CLOSE = b"Connection: close\r\n"
UPGRADE = b"Connection: Upgrade\r\nUpgrade: websocket\r\n"


@pytest.mark.parametrize(
    ("request_", "statuses", "code"),
    [
        (head(MOST, more=CLOSE), [200], None),
        (head(MOST + 1, more=CLOSE), [431], "head_too_large"),
        (head(120_000), [431], "head_too_large"),
        (head(10_000)[:-4], [431], "head_too_large"),
        (b"GET /" + b"a" * 120_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", [414], "target_too_long"),
        (b"a" * 3_000, [414], "target_too_long"),
        (head(500) + head(MOST, more=CLOSE), [200, 200], None),
        (head(500) + head(MOST + 1), [200, 431], "head_too_large"),
        (head(500) + head(120_000), [200, 431], "head_too_large"),
        (head(500) * 3 + head(120_000), [200, 200, 200, 431], "head_too_large"),
        (head(500, more=UPGRADE), [400], None),
        (head(120_000, target=b"/v1/realtime", more=UPGRADE), [431], "head_too_large"),
        (head(500) + head(120_000, target=b"/v1/realtime", more=UPGRADE), [200, 431], "head_too_large"),
        (
            head(500, b"POST", b"/v1/sessions", b"Content-Length: 30000\r\n") + b" " * 30_000 + head(120_000),
            [400, 431],
            "head_too_large",
        ),
        (
            head(500, b"POST", b"/v1/sessions", b"Content-Length: 2\r\n") + b"{}" + head(MOST, more=CLOSE),
            [201, 200],
            None,
        ),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
async def test_a_head_is_bounded_however_it_comes(gateway, request_, statuses, code, at_once):
    one = await gateway(limits={"header_bytes": MOST})
    pieces = [request_] if at_once else [request_[:700], request_[700:5_000], request_[5_000:]]
    seen, raw = await answers(one, *pieces)
    assert seen == statuses
    assert code is None or json.loads(raw.rpartition(b"\r\n\r\n")[2])["error"]["code"] == code


START = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    ("head", "statuses"),
    [
        pytest.param(START + b"X: a\r\n" + b" folded\r\n" * 1_500 + CLOSE + b"\r\n", [200], id="folded"),
        pytest.param(START.replace(b"1.1", b"9.9") + CLOSE + b"\r\n", [200], id="version"),
        pytest.param(START + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", [400], id="two lengths"),
        pytest.param(START + b"Content-Length: -1\r\n\r\n", [400], id="negative length"),
        pytest.param(START + b"Content-Length: " + b"9" * 5_000 + b"\r\n\r\n", [400], id="endless length"),
        pytest.param(START + b"Transfer-Encoding: gzip\r\n\r\n", [400], id="gzip"),
        pytest.param(START + b"X-Null: \x00\r\n\r\n", [400], id="null"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500), [400], id="TLS"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [404, 400], id="HTTP/2"),
        pytest.param(b"\r\n" * 50_000, [400], id="line ends"),
    ],
)
async def test_unusual_head_is_answered_without_an_error_in_the_log(gateway, head, statuses, caplog):
    seen, _ = await answers(await gateway(), head)
    assert seen == statuses
    assert not [record for record in caplog.records if record.exc_info]


async def test_data_after_a_refused_head_is_dropped(gateway, monkeypatch):
    monkeypatch.setattr("parley_gateway.protocols._REFUSED_S", 60.0)
    made = []

    def remember(self, transport):
        made.append(self)
        connected(self, transport)

    connected = HttpProtocol.connection_made
    monkeypatch.setattr(HttpProtocol, "connection_made", remember)
    one = await gateway(limits={"header_bytes": MOST})
    async with one.connection() as (reader, writer):
        writer.write(head(MOST + 1))
        async with asyncio.timeout(DEADLINE_S):
            assert b" 431 " in await reader.read()
            for _ in range(64):
                writer.write(bytes(65_536))
                await writer.drain()
        (refused,) = made
        assert len(refused._unread) == 0


async def test_a_client_that_is_gone_before_its_refusal_is_let_go(gateway, monkeypatch, caplog):
    def gone(_):
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    one = await gateway(limits={"header_bytes": MOST})
    async with one.connection() as (reader, writer):
        monkeypatch.setattr(asyncio.selector_events._SelectorSocketTransport, "write_eof", gone)
        writer.write(head(MOST + 1))
        async with asyncio.timeout(DEADLINE_S):
            assert b" 431 " in await reader.read()
    assert "Traceback" not in caplog.text


async def test_turn_of_the_event_loop_reads_a_bounded_amount(gateway, monkeypatch):
    sizes = []

    def note(self, data):
        sizes.append(len(data))
        received(self, data)

    received = HttpProtocol.data_received
    monkeypatch.setattr(HttpProtocol, "data_received", note)
    one = await gateway()
    answer = await one.http.post("/v1/sessions", content=b" " * 500_000 + b"{}")
    assert answer.status_code == 201
    assert sum(sizes) > 500_000
    assert max(sizes) <= 65_536


@pytest.mark.parametrize(
    "headers",
    [[("X-Long", "a" * 9_000)], [(f"X-{number}", "a") for number in range(200)]],
    ids=["long", "many"],
)
async def test_a_websocket_whose_headers_its_library_refuses_is_answered(gateway, headers):
    one = await gateway()
    with pytest.raises(InvalidStatus, match="431"):
        await connect(f"{one.ws_url}/v1/realtime?model=parley", additional_headers=headers)
    await until(lambda: one.gateway.connections.count == 0)


@pytest.mark.parametrize(
    ("head", "answer"),
    [
        (b"POST /v1/realtime HTTP/1.1\r\nContent-Length: 5\r\n", (400, b"invalid_message")),
        (b"GET /v1/realtime HTTP/1.1\r\nTransfer-Encoding: chunked\r\n", (400, b"invalid_message")),
        (b"POST /v1/realtime HTTP/1.1\r\n", (405, b"POST")),
        (b"GET /v1/realtime HTTP/1.1\r\nX-A: \xff\r\n", (400, b"Sec-WebSocket-Key")),
        (b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\n", (414, b"target_too_long")),
    ],
)
async def test_invalid_websocket_request_gets_an_error(gateway, head, answer):
    status, why = answer
    one = await gateway()
    statuses, raw = await answers(one, head + b"Host: localhost\r\n" + UPGRADE + b"\r\n")
    assert statuses == [status]
    assert why in raw
    await until(lambda: one.gateway.connections.count == 0)


@pytest.mark.parametrize("protocol", [b"h2c", b"TLS/1.0", b"h2c, websocket"])
async def test_no_other_protocol_than_that_of_websockets_is_begun(gateway, protocol):
    # A proxy that passes it on would take what follows for another protocol, and check it no more.
    head = b"Host: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
    first = b"GET /healthz HTTP/1.1\r\nUpgrade: " + protocol + b"\r\n" + head + b"\r\n"
    statuses, _ = await answers(
        await gateway(), first, b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + CLOSE + b"\r\n"
    )
    assert statuses == [200, 200]


@pytest.mark.parametrize(
    "tail",
    [
        *(b"x\r\n", b"5\r\nabcdefgh\r\n", b"0" * 5_000),
        *(b"5;" + b"e" * 100_000, b"-1\r\n"),
    ],
    ids=["letter", "longer", "zeros", "extension", "negative"],
)
async def test_a_body_that_cannot_be_read_ends_the_connection_quietly(gateway, tail, caplog):
    one = await gateway(limits={"header_bytes": MOST})
    request = head(500, b"POST", b"/v1/sessions", b"Transfer-Encoding: chunked\r\n")
    async with one.connection() as (reader, writer):
        writer.write(request + b"1\r\n{\r\n")
        await writer.drain()
        writer.write(tail)
        with suppress(ConnectionError):
            await read_to_the_end(reader)
    await until(lambda: one.gateway.connections.count == 0)
    assert "Traceback" not in caplog.text
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_websocket_that_is_refused_is_no_error_in_the_log(gateway, caplog):
    one = await gateway()
    with pytest.raises(InvalidStatus, match="404"):
        await connect(f"{one.ws_url}/v1/sessions/x/stream", subprotocols=["parley.v1"])
    await until(lambda: one.gateway.connections.count == 0)
    assert not [message for message in caplog.messages if "handshake" in message]


async def test_a_message_that_is_no_text_closes_the_stream_quietly(gateway, caplog):
    one = await gateway()
    async with one.stream() as socket:
        await receive(socket, "connected")
        socket.transport.write(frame(1, b"\xff\xfe"))
        assert (await closed(socket))[0] == 1007
    assert not [record for record in caplog.records if record.exc_info]


async def test_only_tls_1_3_is_spoken(tmp_path):
    authority = Authority()
    for name, content in zip(("certificate", "key"), authority.issue("127.0.0.1"), strict=True):
        (tmp_path / name).write_bytes(content)
    settings = load_settings(
        flags={
            "listen": {name: str(tmp_path / name) for name in ("certificate", "key")} | {"port": 0},
            "servers": {"addresses": ["127.0.0.1:9"], "check_timeout_s": 0.2},
        }
    )
    trust, old = (ssl.create_default_context(cadata=authority.certificate.decode()) for _ in range(2))
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    async with running(settings) as one:
        assert one.url.startswith("https:")
        async with httpx.AsyncClient(timeout=30, verify=trust) as client:
            answer = await client.get(f"{one.url}/healthz")
            assert "max-age" in answer.headers["Strict-Transport-Security"]
        async with httpx.AsyncClient(timeout=30, verify=old) as client:
            with pytest.raises(httpx.ConnectError):
                await client.get(f"{one.url}/healthz")
        url = f"ws{one.url.removeprefix('http')}/v1/sessions/x/stream"
        with pytest.raises(InvalidStatus, match="404"):
            await connect(url, ssl=trust)
