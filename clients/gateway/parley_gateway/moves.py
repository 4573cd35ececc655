"""The servers of one call: which one it is on, and where it goes on when it leaves that."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from parley.errors import DeadlineExceededError, ModelUnavailableError, ParleyError
from parley.tracing import Trace
from parley_client.errors import ConnectError
from parley_client.reconnection import MoveRequest
from parley_client.transport import CallStream, Transport
from parley_gateway.errors import NoServerReadyError
from parley_gateway.servers import Lease, Servers, TritonServer

DOUBTFUL = (ConnectError, ModelUnavailableError, DeadlineExceededError)
"""After these errors of a call the server itself is in question; after others only this call."""


class CallServers:
    """Leases a server for each stream of a call.

    Implements :class:`parley_client.reconnection.Reconnect`: the call goes on at a server that it has not
    tried in the same outage, and at its own again only if it has lost that and no other is ready.
    """

    def __init__(
        self,
        servers: Servers,
        transport: Callable[[TritonServer], Transport],
        trace: Trace,
        on_attempt: Callable[[MoveRequest, TritonServer, ParleyError | None], None],
    ) -> None:
        self._servers = servers
        self._transport = transport
        self._trace = trace
        self._on_attempt = on_attempt
        self._leases: dict[CallStream, ExitStack] = {}
        self._current: TritonServer | None = None
        self._chosen: TritonServer | None = None
        self._tried: list[TritonServer] = []

    @property
    def count(self) -> int:
        """See :class:`parley_client.reconnection.Reconnect`."""
        return max(1, sum(server.is_ready for server in self._servers.all))

    @property
    def others(self) -> int:
        """See :class:`parley_client.reconnection.Reconnect`."""
        # One that drains is not ready, and may be the call's own or not.
        return sum(server.is_ready and server is not self._current for server in self._servers.all)

    async def open(self, lease: Lease, call_id: str, timeout_s: float) -> CallStream:
        """A stream to the leased server, which is the call's until :meth:`release`.

        Raises:
            ConnectError: the server cannot be reached within ``timeout_s``.
        """
        stream = await self._open(lease, call_id, timeout_s)
        self._current = lease.server
        return stream

    async def _open(self, lease: Lease, session_id: str, timeout_s: float) -> CallStream:
        with ExitStack() as stack:
            server = stack.enter_context(lease).server
            stream = await self._transport(server).open(session_id, timeout_s)
            self._leases[stream] = stack.pop_all()
        return stream

    async def next_stream(self, request: MoveRequest) -> CallStream:
        """A stream to another server.

        Raises:
            NoServerReadyError: there is none.
            ConnectError: it cannot be reached.
        """
        if request.attempt == 1:
            self._tried = [] if self._current is None else [self._current]
            self._doubt_lost(request.failure)
        self._chosen = None
        lease = self._lease(request)
        self._chosen = lease.server
        self._tried.append(lease.server)
        return await self._open(lease, request.session_id, request.timeout_s)

    def _lease(self, request: MoveRequest) -> Lease:
        is_lost = request.failure is not None
        try:
            return self._servers.lease(excluding=self._tried, is_rescue=is_lost)
        except NoServerReadyError:
            self._tried = [] if is_lost or self._current is None else [self._current]
            return self._servers.lease(excluding=self._tried, is_rescue=is_lost)

    def _doubt_lost(self, failure: ParleyError | None) -> None:
        cause = failure.__cause__ if failure is not None else None
        if self._current is not None and isinstance(cause, DOUBTFUL):
            self._current.doubt(cause)

    async def release(self, stream: CallStream) -> None:
        """The call does not use the server of this stream any more."""
        lease = self._leases.pop(stream, None)
        if lease is not None:
            lease.close()

    def on_moved(self, request: MoveRequest, failure: ParleyError | None) -> None:
        """The call goes on at the server that was chosen last, or not."""
        server = self._chosen
        if server is None:
            return  # no server is ready
        if failure is None:
            self._current = server
        elif isinstance(failure, DOUBTFUL):
            server.doubt(failure)
        attributes = {"parley.reason": request.reason, "server.address": server.address}
        self._trace.child("gateway move", attributes).end(failure=failure.code if failure else "")
        self._on_attempt(request, server, failure)
