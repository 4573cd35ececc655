"""Gateways in front of fakes, and a real Redis."""

import shutil
import socket
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

sys.path.extend(str(Path(__file__).parents[1] / folder) for folder in ("client", "calls"))
# Programs that tests start import the fakes of several folders.
sys.path.extend(map(str, Path(__file__).parent.glob("*/")))

from listening_gateway import GatewayUnderTest
from redis_server import RedisServer

from parley_gateway.app import APIS


@pytest.fixture
async def gateway():
    """Starts gateways with settings by section, before agents of given behaviours."""
    async with AsyncExitStack() as stack:

        async def start(*behaviours, apis=APIS, **parts):
            one = GatewayUnderTest(behaviours, parts, apis=apis)
            await one.start()
            stack.push_async_callback(one.stop)
            return one

        yield start


@pytest.fixture
async def redis():
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("needs redis-server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        server = RedisServer(program, free.getsockname()[1])
    async with server:
        yield server
