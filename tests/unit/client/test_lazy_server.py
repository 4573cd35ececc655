import asyncio
import socket

import grpc.aio
import pytest
from fake_models import serving_models

from parley_client.errors import ConnectError
from parley_client.stages.lazy import LazyServer


async def test_those_who_come_first_share_the_connection():
    async with serving_models() as (fake, _):
        lazy = LazyServer(fake.address)
        first, second = await asyncio.gather(lazy.get(), lazy.get())
        assert first is second
        await lazy.close()
        assert first.channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN
        assert (await lazy.get()) is not first
        await lazy.close()


async def test_a_failure_is_forgotten():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    lazy = LazyServer(address)
    with pytest.raises(ConnectError):
        await lazy.get()
    server = grpc.aio.server()
    server.add_insecure_port(address)
    await server.start()
    try:
        assert (await lazy.get()).channel is not None
    finally:
        await lazy.close()
        await server.stop(None)
