"""Gateways that share a store of sessions, and lines to them that tests cut."""

import base64
import secrets
import shutil
import socket
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "client"))
sys.path.append(str(Path(__file__).parents[1] / "core"))
sys.path.append(str(Path(__file__).parents[1] / "security"))
sys.path.append(str(Path(__file__).parent))

from fake_redis import RealRedis
from gateways import Gateways, MemoryStore
from listening_gateway import GatewayUnderTest


def new_key() -> str:
    return base64.b64encode(secrets.token_bytes(32)).decode()


@pytest.fixture
def keys_file(tmp_path):
    file = tmp_path / "takeover.keys"
    file.write_text(f"# the first encrypts\n{new_key()}\n")
    return file


def real_redis():
    """One that is not started yet; skips the test where there is none."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("needs redis-server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return RealRedis(program, free.getsockname()[1])


@pytest.fixture
async def redis():
    """A real one."""
    async with real_redis() as server:
        yield server


@pytest.fixture(params=["memory", "redis"])
async def gateways(request, keys_file):
    """Starts gateways that share a store, which is one of the tests or Redis."""
    async with AsyncExitStack() as stack:
        if request.param == "memory":
            made = Gateways(keys_file, memory=MemoryStore())
        else:
            server = await stack.enter_async_context(real_redis())
            made = Gateways(keys_file, url=server.url)
        stack.push_async_callback(made.stop)
        yield made


@pytest.fixture
async def gateway():
    """Starts a gateway without a store."""
    started = []

    async def start(*behaviours, **parts):
        one = GatewayUnderTest(behaviours, parts)
        await one.start()
        started.append(one)
        return one

    yield start
    for one in started:
        await one.stop()
