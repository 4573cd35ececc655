"""A connection that is opened when somebody first needs it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import grpc

from parley_client.stages.server import Server, open_server


class LazyServer:
    """Opens the connection to a Triton at the first use; plugins are made long before they are needed.

    Once open it stays so: gRPC connects again by itself after the server was away.

    Args:
        address: ``host:port`` of the gRPC endpoint.
        credentials: TLS; None: plain text.
    """

    def __init__(self, address: str, *, credentials: grpc.ChannelCredentials | None = None) -> None:
        self._address = address
        self._credentials = credentials
        self._opening = asyncio.Lock()
        self._open = AsyncExitStack()
        self._server: Server | None = None

    async def get(self) -> Server:
        """The connection; whoever comes first waits for it.

        Raises:
            ConnectError: nothing answers, or not in time; the next call tries again.
        """
        async with self._opening:
            if self._server is None:
                opened = open_server(self._address, credentials=self._credentials)
                self._server = await self._open.enter_async_context(opened)
            return self._server

    async def close(self) -> None:
        """Close the connection, after the stages that use it; another use opens it again."""
        async with self._opening:
            self._server = None
            await self._open.aclose()
