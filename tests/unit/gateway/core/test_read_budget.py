"""How much of what clients send is parsed in one turn of the event loop, on all connections together."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import h11
import pytest
from listening_gateway import DEADLINE_S, receive, until
from websockets.frames import Frame
from websockets.server import ServerProtocol

from parley_gateway.read_budget import EVENTS_PER_TURN, ReadBudget

CHUNKED = b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
ONE_BYTE = b"1\r\n \r\n"
FRAMES_PER_READ = 170
"""The most that one piece of 1 KiB has, each empty and with its mask."""


class Turns:
    """Numbers the turns of the event loop, and counts events in each."""

    def __init__(self):
        self.now = 0
        self.events = Counter()
        self.requests = Counter()
        self._handle = asyncio.get_running_loop().call_soon(self._next)

    def _next(self):
        self.now += 1
        self._handle = asyncio.get_running_loop().call_soon(self._next)

    def stop(self):
        self._handle.cancel()

    @property
    def most(self):
        return max(self.events.values())


@pytest.fixture
async def turns(monkeypatch):
    """Counts what h11 and websockets parse."""
    counted = Turns()
    next_event, recv_frame = h11.Connection.next_event, ServerProtocol.recv_frame

    def count_event(connection):
        event = next_event(connection)
        if connection.our_role is h11.SERVER and event is not h11.NEED_DATA:
            counted.events[counted.now] += 1
            counted.requests[counted.now] += isinstance(event, h11.Request)
        return event

    def count_frame(connection, frame):
        counted.events[counted.now] += 1
        recv_frame(connection, frame)

    monkeypatch.setattr(h11.Connection, "next_event", count_event)
    monkeypatch.setattr(ServerProtocol, "recv_frame", count_frame)
    yield counted
    counted.stop()


async def trickle(one, chunks):
    async with one.connection() as (reader, writer):
        writer.write(CHUNKED + ONE_BYTE * chunks + b"2\r\n{}\r\n0\r\n\r\n")
        async with asyncio.timeout(6 * DEADLINE_S):
            return await reader.readline()


async def test_connections_with_single_bytes_share_the_budget_and_others_pass(gateway, turns):
    one = await gateway()
    senders = [asyncio.create_task(trickle(one, 1_000)) for _ in range(32)]
    await until(lambda: sum(turns.events.values()) > 1_000)
    async with one.connection() as (reader, writer):
        began = turns.now
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 " in await reader.readline()
        answered = turns.now
    assert not any(sender.done() for sender in senders), "the health check did not compete"
    assert turns.most <= EVENTS_PER_TURN
    assert answered - began < 50
    assert all(b" 201 " in answer for answer in await asyncio.gather(*senders))


async def test_small_frames_of_a_websocket_are_parsed_a_few_per_turn(gateway, turns):
    one = await gateway()
    async with one.stream() as socket:
        await receive(socket, "connected")
        turns.events.clear()
        pong = Frame(10, b"").serialize(mask=True)
        socket.transport.write(pong * 5_000)
        await socket.send("no JSON")
        await receive(socket, "error")
    assert sum(turns.events.values()) > 5_000
    assert turns.most <= EVENTS_PER_TURN + FRAMES_PER_READ


@pytest.mark.parametrize("body", [b"Transfer-Encoding: chunked\r\n\r\n", b"Content-Length: 100000\r\n\r\n"])
async def test_request_refused_before_its_body_came_closes_the_connection(gateway, turns, body, tmp_path):
    keys = tmp_path / "keys.toml"
    keys.write_text("")
    keys.chmod(0o600)
    one = await gateway(security={"keys_file": str(keys)})
    async with one.connection() as (reader, writer):
        writer.write(b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\n" + body)
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 401 " in head
        assert b"connection: close" in head.lower()
        parsed = sum(turns.events.values())
        writer.write(ONE_BYTE * 1_000)
        async with asyncio.timeout(DEADLINE_S):
            await reader.read()
    assert sum(turns.events.values()) == parsed
    await until(lambda: one.gateway.connections.count == 0)


async def test_request_refused_after_its_body_came_keeps_the_connection(gateway, tmp_path):
    keys = tmp_path / "keys.toml"
    keys.write_text("")
    keys.chmod(0o600)
    one = await gateway(security={"keys_file": str(keys)})
    request = b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"
    async with one.connection() as (reader, writer):
        for _ in range(2):
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            assert b" 401 " in head
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)


async def test_body_with_two_lengths_is_refused_and_its_connection_closed(gateway):
    one = await gateway()
    hidden = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with one.connection() as (reader, writer):
        writer.write(
            b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
            b"Content-Length: 5\r\n\r\n0\r\n\r\n" + hidden
        )
        async with asyncio.timeout(DEADLINE_S):
            answers = await reader.read()
    assert answers.startswith(b"HTTP/1.1 400 ")
    assert answers.count(b"HTTP/1.1 ") == 1


async def test_waiting_readers_go_on_in_order_and_a_few_events_each():
    budget, served = ReadBudget(), []

    def reader(name, events):
        def go_on():
            nonlocal events
            while events and budget.take():
                events -= 1
                served.append(name)
            if events:
                budget.wait(go_on)

        return go_on

    budget.spend(EVENTS_PER_TURN)
    assert not budget.take()
    for name, events in (("a", 20), ("b", 3), ("c", 20)):
        budget.wait(reader(name, events))
    while len(served) < 43:  # noqa: ASYNC110 - no event reports a turn
        await asyncio.sleep(0)
    assert served == ["a"] * 8 + ["b"] * 3 + ["c"] * 8 + ["a"] * 8 + ["c"] * 8 + ["a"] * 4 + ["c"] * 4


@pytest.mark.parametrize("size", [1_000, 3_200, 6_400, 16_000, 60_000])
async def test_websocket_that_was_held_receives_everything(gateway, size):
    one = await gateway()
    count = 640_000 // size
    async with one.stream() as socket:
        await receive(socket, "connected")
        silence = Frame(2, bytes(size)).serialize(mask=True)
        socket.transport.write(silence * count)
        await socket.send("no JSON")  # behind all audio
        await receive(socket, "error")


async def test_heads_of_many_headers_use_up_the_budget(gateway, turns):
    one = await gateway()
    head = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"a:\r\n" * 3_000 + b"\r\n"
    async with AsyncExitStack() as stack:
        pairs = [await stack.enter_async_context(one.connection()) for _ in range(8)]
        for _, writer in pairs:
            writer.write(head)
        for reader, _ in pairs:
            assert b" 200 " in await reader.readline()
    # Each takes more than a turn has.
    assert max(turns.requests.values()) == 1
