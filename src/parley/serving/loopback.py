"""Calls to other models over gRPC on the same machine.

Slower than in-process calls by a trip through the network stack, but free of their faults, and
closing a stream early also cancels it in the server.
"""

from __future__ import annotations

import grpc.aio

from parley.grpc_port import GrpcPort

_CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # Connections to one's own machine need no proxy.
    ("grpc.enable_http_proxy", 0),
]


class LoopbackPort(GrpcPort):
    """:class:`parley.grpc_port.GrpcPort` over a channel of its own, without TLS.

    Args:
        url: host and port of the server's gRPC endpoint.
        max_calls: calls to ordinary models that may be under way at once.
        max_streams: calls to decoupled models that may be under way at once.
    """

    def __init__(self, url: str, *, max_calls: int = 64, max_streams: int = 64) -> None:
        super().__init__(self._open_channel, max_calls=max_calls, max_streams=max_streams)
        self._url = url
        self._channel: grpc.aio.Channel | None = None

    async def close(self) -> None:
        """Cancel what is under way and close the channel."""
        await super().close()
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    def _open_channel(self) -> grpc.aio.Channel:
        self._channel = grpc.aio.insecure_channel(self._url, options=_CHANNEL_OPTIONS)
        return self._channel
