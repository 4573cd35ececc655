"""The file that asks a server to take no new sessions."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import asynccontextmanager

import psutil
import pytest

from parley.errors import InvalidInputError
from parley.runtime.drain import (
    MAX_DEADLINE_S,
    SERVER_START_VARIABLE,
    ask_to_drain,
    cancel_drain,
    follow_drain,
    read_drain,
    server_start_ns,
)

INTERVAL_S = 0.01


class Follower:
    def __init__(self):
        self.seen = []
        self.more = asyncio.Event()

    def add(self, what):
        self.seen.append(what)
        self.more.set()

    async def wait(self, count):
        async with asyncio.timeout(10):
            while len(self.seen) < count:
                self.more.clear()
                await self.more.wait()


@asynccontextmanager
async def following(file, started_ns=0):
    follower = Follower()
    task = asyncio.create_task(
        follow_drain(
            file,
            lambda left_s: follower.add(round(left_s)),
            lambda: follower.add("end"),
            started_ns=started_ns,
            interval_s=INTERVAL_S,
        )
    )
    try:
        yield follower
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_drain_file_is_followed(tmp_path):
    file = tmp_path / "drain.json"
    async with following(file) as follower:
        ask_to_drain(file, 1_000.0)
        await follower.wait(1)
        ask_to_drain(file, 2_000.0)
        await follower.wait(2)
        cancel_drain(file)
        await follower.wait(3)
        cancel_drain(file)
        await asyncio.sleep(5 * INTERVAL_S)
        assert follower.seen == [1_000, 2_000, "end"]
    assert list(tmp_path.iterdir()) == []


async def test_a_process_that_starts_later_is_asked_too(tmp_path):
    file = tmp_path / "drain.json"
    ask_to_drain(file, 1_000.0)
    async with following(file) as follower:
        await follower.wait(1)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"{}", b'{"deadline_s": -1}', b'{"deadline_s": 1e9}', b"\xff", b'{"deadline_s": "x"}'],
)
async def test_another_content_changes_nothing(tmp_path, content, caplog):
    file = tmp_path / "drain.json"
    file.write_bytes(content)
    with pytest.raises(InvalidInputError, match=r"asks for nothing|deadline_s is"):
        read_drain(file)
    async with following(file) as follower:
        await asyncio.sleep(5 * INTERVAL_S)
        ask_to_drain(file, MAX_DEADLINE_S)
        await follower.wait(1)
    assert len(follower.seen) == 1
    assert caplog.text.count("cannot be drained") == 1


async def test_a_file_that_cannot_be_read_changes_nothing(tmp_path, caplog):
    async with following(tmp_path) as follower:
        await asyncio.sleep(5 * INTERVAL_S)
    assert follower.seen == []
    assert caplog.text.count("cannot be drained") == 1


async def test_a_file_of_the_server_before_is_ignored_until_it_is_written_again(tmp_path):
    file = tmp_path / "drain.json"
    ask_to_drain(file, 1_000.0)
    written_ns = file.stat().st_mtime_ns
    async with following(file, written_ns + 1) as follower:
        await asyncio.sleep(5 * INTERVAL_S)
        assert follower.seen == []
        ask_to_drain(file, 2_000.0)
        await follower.wait(1)
        cancel_drain(file)
        await follower.wait(2)
    assert follower.seen == [2_000, "end"]
    async with following(file, written_ns + 1) as follower:
        await asyncio.sleep(5 * INTERVAL_S)
        # As by a clock that was set back.
        ask_to_drain(file, MAX_DEADLINE_S)
        os.utime(file, ns=(0, 1_000_000_000))
        await follower.wait(1)


def test_server_starts_with_tritonserver_or_the_launcher():
    parent_ns = psutil.Process(os.getppid()).create_time() * 1e9
    assert server_start_ns({}) == pytest.approx(parent_ns, abs=2e9)
    assert server_start_ns({}) < time.time_ns()
    assert server_start_ns({SERVER_START_VARIABLE: "12.5"}) == 12_500_000_000
