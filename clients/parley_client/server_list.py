"""The servers of one call that an application names, and the connections to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from parley.errors import ParleyError
from parley_client.errors import ConnectError
from parley_client.reconnection import MoveRequest
from parley_client.transport import CallStream, Transport

_BEHIND_NAMES = 3
"""Servers that are assumed where a name stands for several."""


class ServerList:
    """Opens streams to servers in their order, each over a connection of its own.

    Implements :class:`parley_client.reconnection.Reconnect`: a call that has lost its server tries the next
    ones in turn, and then the same again, which may have been restarted. A call that has a server never
    gets a stream to that one.

    Args:
        servers: Their names, at least one.
        make_transport: Makes the transport to a server.
        names_many: Whether a name stands for several servers, as that of a balancer does: a call that leaves
            one finds the next under the same name.
    """

    def __init__(
        self,
        servers: Sequence[str],
        make_transport: Callable[[str], Transport],
        *,
        names_many: bool = False,
    ) -> None:
        self._servers = servers
        self._make_transport = make_transport
        self._names_many = names_many
        self._transports: dict[CallStream, Transport] = {}
        self._current = 0
        self._tried = 0

    @property
    def count(self) -> int:
        """See :class:`parley_client.reconnection.Reconnect`."""
        return max(_BEHIND_NAMES, len(self._servers)) if self._names_many else len(self._servers)

    @property
    def others(self) -> int:
        """See :class:`parley_client.reconnection.Reconnect`."""
        return self.count - 1

    async def open(self, index: int, call_id: str, timeout_s: float) -> CallStream:
        """A stream to the server at ``index``, from which the call goes on.

        Raises:
            ConnectError: the server cannot be reached.
        """
        stream = await self._open(index, call_id, timeout_s)
        self._current = self._tried = index
        return stream

    async def next_stream(self, request: MoveRequest) -> CallStream:
        """A stream to the next server.

        Raises:
            ConnectError: it cannot be reached, or there is no other.
        """
        count = len(self._servers)
        if request.attempt == 1:
            self._tried = self._current
        self._tried = (self._tried + 1) % count
        if request.failure is None and not self._names_many and self._tried == self._current:
            if count == 1:
                raise ConnectError("there is no other server")
            self._tried = (self._tried + 1) % count
        return await self._open(self._tried, request.session_id, request.timeout_s)

    async def release(self, stream: CallStream) -> None:
        """Drop the connection of a stream."""
        transport = self._transports.pop(stream, None)
        if transport is not None:
            await transport.close()

    def on_moved(self, request: MoveRequest, failure: ParleyError | None) -> None:  # noqa: ARG002 - of all reasons
        """From now on the next server is the one behind that of the last stream."""
        if failure is None:
            self._current = self._tried

    async def close(self) -> None:
        """Drop all connections."""
        while self._transports:
            _, transport = self._transports.popitem()
            await transport.close()

    async def _open(self, index: int, call_id: str, timeout_s: float) -> CallStream:
        transport = self._make_transport(self._servers[index])
        try:
            stream = await transport.open(call_id, timeout_s)
        except BaseException:
            await transport.close()
            raise
        self._transports[stream] = transport
        return stream
