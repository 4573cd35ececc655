"""The connection that clients of single stages share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import grpc
import grpc.aio

from parley_client.channel import open_channel, wait_until_connected
from parley_client.errors import ConnectError
from parley_client.options import Keepalive

_CONNECT_S = 10.0


class StageServer(Protocol):
    """A Triton, as a stage needs it."""

    @property
    def channel(self) -> grpc.aio.Channel:
        """To its gRPC endpoint; whoever opened it closes it, after the stages that use it."""
        ...


@dataclass(frozen=True)
class Server:
    """A channel that is open; any other object with a ``channel`` will do."""

    channel: grpc.aio.Channel


@asynccontextmanager
async def open_server(
    address: str,
    *,
    credentials: grpc.ChannelCredentials | None = None,
    keepalive: Keepalive | None = None,
    timeout_s: float = _CONNECT_S,
) -> AsyncGenerator[Server, None]:
    """Connect to a Triton; any number of stages may use the connection side by side.

    Args:
        address: ``host:port`` of its gRPC endpoint.
        credentials: TLS; None: plain text.
        keepalive: pings on a silent connection.
        timeout_s: longest wait for the connection (seconds).

    Raises:
        ConnectError: nothing answers, or not in time.
    """
    options: list[tuple[str, int]] = [
        # Recordings and their transcripts are one message each.
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", -1),
        # A server that comes back is found soon; gRPC would wait for up to two minutes.
        ("grpc.initial_reconnect_backoff_ms", 250),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        *(keepalive or Keepalive()).channel_options(),
    ]
    channel = open_channel(address, credentials, options)
    try:
        try:
            async with asyncio.timeout(timeout_s):
                await wait_until_connected(channel, address)
        except TimeoutError as error:
            raise ConnectError(f"no connection to {address} within {timeout_s:g} s") from error
        yield Server(channel)
    finally:
        await channel.close()
