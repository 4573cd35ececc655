"""The bounded queue in front of a WebSocket."""

import asyncio

import pytest
from starlette.websockets import WebSocketDisconnect

from parley_gateway.metrics import Metrics
from parley_gateway.settings_sections import WriterSettings
from parley_gateway.websocket import SLOW_READER, SocketWriter


class FakeSocket:
    """Takes messages while `open` is set."""

    def __init__(self):
        self.open = asyncio.Event()
        self.open.set()
        self.sent = []
        self.closed = None
        self.gone = False

    async def _take(self, message):
        await self.open.wait()
        if self.gone:
            raise WebSocketDisconnect(1006)
        self.sent.append(message)

    send_text = send_bytes = _take

    async def close(self, code, reason):
        await self.open.wait()
        self.closed = (code, reason)


@pytest.fixture
def socket():
    return FakeSocket()


def writer_of(socket, **bounds):
    return SocketWriter(socket, WriterSettings(**bounds), Metrics())


async def test_messages_leave_in_their_order_and_before_the_close(socket):
    writer = writer_of(socket)
    writer.send_json({"a": "ä"})
    writer.send_bytes(b"\x00\x01")
    writer.send_json("text")
    writer.close(1001, "going_away")
    writer.close(1000, "later")
    writer.send_json("ignored")
    await writer.run()
    assert socket.sent == ['{"a":"ä"}', b"\x00\x01", '"text"']
    assert socket.closed == (1001, "going_away")


@pytest.mark.parametrize(
    ("bounds", "message", "room"),
    [({"messages": 3}, b"x", 3), ({"bytes": 100}, bytes(40), 2), ({"bytes": 100}, "ä" * 20, 2)],
)
async def test_a_queue_that_is_full_closes_the_socket_at_once(socket, bounds, message, room):
    writer = writer_of(socket, **bounds, stall_s=60.0)
    socket.open.clear()
    send = writer.send_bytes if isinstance(message, bytes) else writer.send_json
    for _ in range(room):
        send(message)
    assert writer.closing is None
    running = asyncio.create_task(writer.run())
    await asyncio.sleep(0)
    send(message)
    assert writer.closing == SLOW_READER
    socket.open.set()
    async with asyncio.timeout(5):
        await running
    assert socket.sent == []
    assert socket.closed == SLOW_READER


async def test_a_queue_that_fills_between_two_messages_closes_the_socket_too(socket):
    writer = writer_of(socket, messages=2)
    running = asyncio.create_task(writer.run())
    writer.send_json("one")
    while not socket.sent:  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0)
    for _ in range(3):
        writer.send_json("more")
    assert writer.closing == SLOW_READER
    await running
    assert socket.closed == SLOW_READER


async def test_a_message_that_does_not_leave_in_time_closes_the_socket(socket, monkeypatch):
    monkeypatch.setattr("parley_gateway.websocket._CLOSE_S", 0.01)
    writer = writer_of(socket, stall_s=0.01)
    socket.open.clear()
    writer.send_json("one")
    async with asyncio.timeout(5):
        await writer.run()
    assert writer.closing == SLOW_READER
    assert writer.is_gone
    assert socket.closed is None


async def test_room_comes_back_when_messages_have_left(socket):
    writer = writer_of(socket, messages=1)
    running = asyncio.create_task(writer.run())
    for number in range(5):
        writer.send_json(number)
        while len(socket.sent) <= number:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0)
    writer.close()
    await running
    assert socket.sent == ["0", "1", "2", "3", "4"]


async def test_a_client_that_has_gone_ends_the_writer(socket):
    writer = writer_of(socket)
    socket.gone = True
    writer.send_json("one")
    writer.send_json("two")
    async with asyncio.timeout(5):
        await writer.run()
    assert writer.is_gone
    assert socket.closed is None
