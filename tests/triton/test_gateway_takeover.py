"""A gateway that is killed within an answer: the client goes on at another one, with the real server."""

from __future__ import annotations

import asyncio
import base64
import os
import secrets
import shutil
import socket
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path

import coredis
import msgspec
import pytest

sys.path.append(str(Path(__file__).parents[1] / "unit" / "gateway" / "security"))

from fake_redis import RealRedis

from parley.protocol import Connected, ErrorEvent, ResponseDone, ResponseText, TurnMetrics
from parley_client import NO_RETRY, AgentAudio, Reconnected, connect
from parley_gateway.apis.sessions.record import SessionRecord
from parley_gateway.security.watched import WatchedFile
from parley_gateway.takeover.sealing import Sealer, read_seal_keys

QUESTION = "tell me a story"
OWNER = "anonymous anonymous"
KEPT_S = 60.0
"""Until a conversation is kept: its audio is played before."""


@pytest.fixture
async def redis():
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("needs redis-server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        server = RealRedis(program, free.getsockname()[1])
    async with server:
        yield server


@pytest.fixture
def keys_file(tmp_path):
    file = tmp_path / "takeover.keys"
    file.write_bytes(base64.b64encode(secrets.token_bytes(32)) + b"\n")
    return file


@asynccontextmanager
async def gateway_process(name, server, redis, keys_file):
    """A gateway of its own process: the process, and its URL."""
    settings = {
        "LISTEN_INSTANCE": name,
        "TAKEOVER_STORE": redis.url,
        "TAKEOVER_KEYS_FILE": str(keys_file),
        "TAKEOVER_HOLD_S": "5",
        "TAKEOVER_STORE_TIMEOUT_S": "5",
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "parley_client.cli.program", "gateway"),
        *("--server", server.endpoints.grpc, "--listen", "127.0.0.1:0"),
        env={**os.environ, **{f"PARLEY_GATEWAY_{key}": value for key, value in settings.items()}},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(60):
            while not (line := (await process.stdout.readline()).decode()).startswith("ready "):
                assert line, "the gateway has ended"
        yield process, line.split()[1].removeprefix("http=")
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


class Listener:
    """All events of a call."""

    def __init__(self, call):
        self._call = call
        self.events = []
        self._changed = asyncio.Event()

    async def listen(self):
        async for event in self._call:
            self.events.append(event)
            self._changed.set()

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]

    async def until(self, kind, count=1):
        async with asyncio.timeout(60):
            while len(self.of(kind)) < count:
                self._changed.clear()
                await self._changed.wait()


async def remembered(redis, keys_file):
    """What the gateways have of the only session."""
    client = coredis.Redis.from_url(redis.url)
    (key,) = await client.keys("parley:session:*")
    epoch, data = await client.hmget(key, ["epoch", "data"])
    client.connection_pool.disconnect()
    name = key.decode().removeprefix("parley:session:")
    sealer = Sealer(WatchedFile(keys_file, read_seal_keys))
    content = sealer.open(data, name=name, owner=OWNER, epoch=int(epoch))
    return msgspec.json.decode(content, type=SessionRecord)


async def until_remembered(redis, keys_file, *texts):
    """The same as soon as its first messages have these texts, or as it is at last."""
    end = asyncio.get_running_loop().time() + KEPT_S
    while True:
        record = await remembered(redis, keys_file)
        kept = [message.content for message in record.history.messages[: len(texts)]]
        if kept == list(texts) or asyncio.get_running_loop().time() > end:
            return record
        await asyncio.sleep(0.2)


async def test_a_call_goes_on_when_its_gateway_is_killed_in_an_answer(server, redis, keys_file):
    async with AsyncExitStack() as stack:
        start = [gateway_process(name, server, redis, keys_file) for name in ("a", "b")]
        (first, url), (_, other) = [await stack.enter_async_context(one) for one in start]
        call = await stack.enter_async_context(connect([url, other], greeting="", retry=NO_RETRY))
        caller = Listener(call)
        listening = asyncio.create_task(caller.listen())
        call.send_text(QUESTION)
        await caller.until(AgentAudio, 10)
        first.kill()
        await caller.until(Reconnected)
        await caller.until(ResponseDone)
        await caller.until(TurnMetrics)
        text = "".join(event.text for event in caller.of(ResponseText) if event.turn == 1)
        await until_remembered(redis, keys_file, QUESTION, text)
        before = len(caller.of(AgentAudio))
        call.send_text("thank you")
        await caller.until(TurnMetrics, 2)
        record = await until_remembered(redis, keys_file, QUESTION, text, "thank you")
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)

    assert not caller.of(ErrorEvent)
    assert len(caller.of(Connected)) == 1
    story = [event for event in caller.of(AgentAudio) if event.turn == 1]
    assert {event.response_id for event in story} == {story[0].response_id}
    for one, two in pairwise(story):
        assert abs(two.offset_ms - one.offset_ms - one.duration_ms) <= 1
    asked, answer, thanks, *_ = record.history.messages
    assert (asked.content, thanks.content) == (QUESTION, "thank you")
    assert answer.content == text
    assert len(caller.of(AgentAudio)) > before
    assert len(record.tokens) == 1
