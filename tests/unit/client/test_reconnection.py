"""How long a call looks for a server, in which order, and what waits meanwhile."""

import asyncio
import math
import random
from types import SimpleNamespace

import pytest
from fake_agent import FakeAgent, FakeStream, polite

from parley import protocol
from parley.errors import (
    DeadlineExceededError,
    InferenceError,
    ModelUnavailableError,
    TooManySessionsError,
    UnsupportedVoiceError,
)
from parley_client import Backoff, connect, connection
from parley_client.errors import ConnectError
from parley_client.queues import SendQueue
from parley_client.reconnection import RELAPSE_S, MoveRequest, Outage
from parley_client.server_list import ServerList

LOST = InferenceError("the stream has ended")
GONE = ModelUnavailableError("gone")


def test_an_outage_ends_at_its_limit_and_waits_longer_each_time():
    outage = Outage(100.0, 30.0, random.Random(1))
    assert outage.left_s(110.0) == pytest.approx(20.0)
    assert outage.left_s(131.0) == 0
    waits = [outage.on_failure(GONE, 2, 110.0) for _ in range(200)]
    assert max(waits[:1]) <= 0.1
    assert max(waits[:3]) <= 0.4
    assert 1.0 < max(waits) <= 2.0


@pytest.mark.parametrize("servers", [1, 2, 5])
def test_refusals_for_good_of_every_server_end_an_outage(servers):
    outage = Outage(0.0, 30.0, random.Random(1))
    refusal = UnsupportedVoiceError("no such voice")
    for error in [*[refusal] * (servers - 1), GONE, *[refusal] * (servers - 1)]:
        outage.on_failure(error, servers, 1.0)
    assert outage.left_s(1.0) > 0
    assert outage.refusal is None
    outage.on_failure(refusal, servers, 1.0)
    assert outage.left_s(1.0) == 0
    assert outage.refusal is refusal


def test_a_full_server_is_left_alone_as_long_as_it_asks_and_others_are_not():
    outage = Outage(0.0, 30.0, random.Random(1))
    assert outage.on_failure(TooManySessionsError("full", retry_after_s=8.0), 3, 0.0) <= 0.1
    assert outage.on_failure(TooManySessionsError("full", retry_after_s=5.0), 3, 1.0) <= 0.2
    assert outage.on_failure(GONE, 3, 2.0) == pytest.approx(6.0)  # now the first one would be asked again
    assert outage.on_failure(GONE, 3, 8.0) <= 0.8  # the second has had its time


def test_a_server_that_comes_while_others_are_full_is_not_waited_for():
    outage = Outage(0.0, 30.0, random.Random(1))
    assert outage.on_failure(TooManySessionsError("full", retry_after_s=20.0), 1, 0.0) == pytest.approx(20.0)
    assert outage.wait_s(1, 5.0) == pytest.approx(15.0)
    assert outage.wait_s(2, 5.0) == 0


def test_a_full_server_does_not_use_up_the_time_of_an_outage():
    outage = Outage(0.0, 30.0, random.Random(1))
    full = TooManySessionsError("full", retry_after_s=60.0)
    wait_s = outage.on_failure(full, 1, 5.0)
    assert wait_s == pytest.approx(22.0)
    assert outage.left_s(5.0 + wait_s) == pytest.approx(3.0)
    assert 0 <= outage.on_failure(full, 1, 28.0) < 1


def test_a_call_that_has_a_server_waits_however_long_others_ask():
    staying = Outage(0.0, math.inf, random.Random(1))
    assert staying.on_failure(TooManySessionsError("full", retry_after_s=90.0), 1, 500.0) == pytest.approx(90)


def test_a_server_that_is_lost_at_once_belongs_to_the_same_outage():
    outage = Outage(0.0, 30.0, random.Random(1))
    assert not outage.goes_on(1.0)
    outage.end(10.0)
    assert outage.goes_on(10.0 + RELAPSE_S - 0.1)
    assert not outage.goes_on(10.0 + RELAPSE_S + 0.1)


class Transports:
    """Notes which servers are called."""

    def __init__(self):
        self.opened: list[str] = []
        self.closed: list[str] = []

    def __call__(self, name):
        transports = self

        class One:
            async def open(self, call_id, timeout_s):
                transports.opened.append(name)
                if name == "down":
                    raise ConnectError("down")
                return FakeStream()

            async def close(self):
                transports.closed.append(name)

        return One()


def request(attempt, failure=LOST, reason="lost"):
    return MoveRequest(f"id.{attempt}", reason, failure, attempt, 1.0)


async def test_a_lost_call_tries_the_other_servers_in_turn_and_then_its_own():
    transports = Transports()
    servers = ServerList(["a", "down", "b"], transports)
    first = await servers.open(0, "id", 1.0)
    with pytest.raises(ConnectError):
        await servers.next_stream(request(1))
    second = await servers.next_stream(request(2))
    third = await servers.next_stream(request(3))
    assert transports.opened == ["a", "down", "b", "a"]
    servers.on_moved(request(3), None)
    for stream in (first, first, second):
        await servers.release(stream)
    assert transports.closed == ["down", "a", "b"]
    await servers.close()
    assert transports.closed == ["down", "a", "b", "a"]
    await servers.release(third)
    assert len(transports.closed) == 4


async def test_a_call_that_loses_each_new_server_asks_all_of_them():
    transports = Transports()
    servers = ServerList(["a", "b", "c", "d"], transports)
    await servers.open(0, "id", 1.0)
    for attempt in range(1, 6):
        await servers.next_stream(request(attempt))
        servers.on_moved(request(attempt), None)
    assert transports.opened == ["a", "b", "c", "d", "a", "b"]
    assert servers.count == 4
    assert ServerList(["https://a"], transports, names_many=True).count == 3
    await servers.close()


async def test_a_call_that_has_a_server_never_gets_a_stream_to_that():
    transports = Transports()
    servers = ServerList(["a", "b", "c"], transports)
    await servers.open(1, "id", 1.0)
    for attempt in range(1, 5):
        await servers.next_stream(request(attempt, failure=None, reason="silent"))
    assert transports.opened == ["b", "c", "a", "c", "a"]
    servers.on_moved(request(4, failure=None), None)
    await servers.next_stream(request(1, failure=None))
    assert transports.opened[-1] == "b"
    await servers.close()
    alone = ServerList(["a"], transports)
    await alone.open(0, "id", 1.0)
    with pytest.raises(ConnectError, match="no other"):
        await alone.next_stream(request(1, failure=None))
    await alone.close()


def full_for(seconds):
    """A server that is full for so long."""

    async def refuse(stream):
        await stream.frames.get()
        stream.say(protocol.ErrorEvent.of(TooManySessionsError("full", retry_after_s=seconds)))
        stream.close("failed")

    return refuse


async def test_opening_waits_until_the_first_full_server_may_be_asked_again(monkeypatch):
    waits = []

    async def sleep(seconds):
        waits.append(seconds)

    monkeypatch.setattr(connection, "asyncio", SimpleNamespace(sleep=sleep))
    agent = FakeAgent(*map(full_for, (6.0, 3.0, 60.0, 60.0)), GONE, full_for(5.0), polite)
    async with connect(["a", "b"], transport=agent, retry=Backoff(attempts=4, initial_s=0.5, max_s=8.0)):
        pass
    assert waits[:2] == [3.0, 8.0]
    assert waits[2] <= 2.0  # the server that is gone may be back at any time


async def test_more_audio_waits_while_there_is_no_server_and_until_it_is_sent():
    queue = SendQueue(audio_ms=40, messages=4, outage_ms=100)
    piece = bytes(20 * 32)
    queue.begin_outage()
    assert sum(queue.offer_audio(piece) for _ in range(7)) == 2 * len(piece)
    queue.end_outage()
    assert queue.offer_audio(piece) == len(piece)  # 100 ms still wait: they are not cut to 40
    while queue.take() is not None:
        pass
    assert [queue.offer_audio(piece) for _ in range(3)] == [0, 0, len(piece)]


async def test_no_wait_for_room_ends_while_there_is_no_server():
    queue = SendQueue(audio_ms=20, messages=4)
    piece = bytes(20 * 32)
    await queue.put_audio(piece, 0.01)
    with pytest.raises(DeadlineExceededError):
        await queue.put_audio(piece, 0.01)
    queue.begin_outage()
    waiting = asyncio.create_task(queue.put_audio(piece, 0.01))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    queue.end_outage()
    with pytest.raises(DeadlineExceededError):
        await waiting
