"""Open connections: how many at once, how many of one address, and within the descriptors of the process.

A connection *waits* while no request is under way on it. When a limit is reached, the one that has waited
for longest is closed for the new one, so that a flood of idle connections pushes out its own, and a request
comes through. Requests beyond a limit are answered with an error, except those to :data:`HEALTH`.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
import time
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from parley.errors import OverloadedError, ParleyError
from parley_gateway.errors import TargetTooLongError, TooManyConnectionsError
from parley_gateway.failures import answer
from parley_gateway.metrics import Metrics
from parley_gateway.security.addresses import UNKNOWN, ClientAddresses, counted_as
from parley_gateway.security.origins import Origins

HEALTH = ("/healthz", "/readyz", "/health", "/ready")
"""What answers while the gateway is full, and, without details, under every host name."""

MAX_PARAMETERS = 512
"""Of a request's target; to read one takes some thirty lines of Python."""
_log = logging.getLogger("parley.gateway")
# Tried in one turn, until one is found that there is room for.
_AT_MOST = 64
SIDE_CONNECTIONS = 32
"""At once, where probes have a port of their own."""
# Connections beyond the limit that are let in to be answered with an error.
_SPARE = 32
# Accepted in one turn of the event loop. A new connection is read two turns later; by then no more may have
# come than an address may have, or a flood would push out those that bring a request at once.
BACKLOG = 8
# What waits in the kernel to be accepted.
_QUEUE = 1_024
# Closed here, but not yet by the event loop, which takes some turns.
_LEAVING = 8 * BACKLOG
# The interpreter, the event loop, the logs, files that are read.
_BASE = 64
_PER_SERVER = 8
# The sockets of one WebRTC call.
_PER_CALL = 4
# A recording that is being read: its file, and the pipes to its decoder.
_PER_STAGE_REQUEST = 6
_FEWEST = 4 * BACKLOG
_SUMMARY_S = 10.0
_EXHAUSTED = (errno.EMFILE, errno.ENFILE)


@dataclass(eq=False)
class _Connection:
    handle: weakref.ref[socket.socket]
    who: str
    is_leaving: bool = False


class ConnectionLimiter:
    """Counts the connections of one process.

    Args:
        limit: Open at once.
        per_address: Of one address, or IPv6 network of 64 bits; behind a trusted proxy, requests of one
            client.
        addresses: Finds clients' addresses behind proxies.
        metrics: Where closed and refused connections are counted.
    """

    def __init__(self, limit: int, per_address: int, addresses: ClientAddresses, metrics: Metrics) -> None:
        self.limit = limit
        self.per_address = min(per_address, limit)
        self._addresses = addresses
        self._metrics = metrics
        self._all: dict[int, _Connection] = {}
        """By descriptor."""
        self._waiting: OrderedDict[int, None] = OrderedDict()
        self._waiting_of: dict[str, OrderedDict[int, None]] = {}
        self._count_of: Counter[str] = Counter()
        self._leaving = 0
        self._requests_of: Counter[str] = Counter()
        self._events: Counter[str] = Counter()
        self._crowd: Counter[str] = Counter()
        self._summarised_at = float("-inf")
        self._summary: asyncio.TimerHandle | None = None

    @property
    def count(self) -> int:
        """Open connections, without those that are being closed to make room."""
        return len(self._all) - self._leaving

    def fit(self, descriptors: int, reserved: int) -> None:
        """Lower the limit to what the process has descriptors for."""
        room = descriptors - _BASE - _SPARE - _LEAVING
        fits = max(_FEWEST, room - min(reserved, room // 2))
        if fits < self.limit:
            _log.warning(
                "limits.connections is %d instead of %d: the process may have %d descriptors (ulimit -Hn)",
                fits,
                self.limit,
                descriptors,
            )
            self.limit = fits
            self.per_address = min(self.per_address, max(_FEWEST, fits // 2))

    # --- connections ------------------------------------------------------------------------

    def add(self, connection: socket.socket, host: str) -> bool:
        """Count a new connection, which waits; False: there is no room, close it."""
        who = counted_as(host)
        if not self._is_exempt(host) and self._count_of[who] >= self.per_address:
            self._make_room(self._waiting_of.get(who), "address", who)
        if self.count >= self.limit:
            self._make_room(self._waiting, "total", who)
        if self.count >= self.limit + _SPARE or self._leaving >= _LEAVING:
            self._record("refused", who)
            return False
        number = connection.fileno()
        entry = _Connection(weakref.ref(connection), who)
        # Also of one that the event loop loses without closing it.
        weakref.finalize(connection, self._forget, number, entry).atexit = False
        self._all[number] = entry
        self._count_of[who] += 1
        self.waiting(number)
        return True

    def closed(self, number: int) -> None:
        """Its descriptor is free."""
        if (entry := self._all.get(number)) is not None:
            self._forget(number, entry)

    def waiting(self, number: int) -> None:
        """No request is under way on it."""
        if (entry := self._all.get(number)) is not None and not entry.is_leaving:
            self._waiting[number] = None
            self._waiting_of.setdefault(entry.who, OrderedDict())[number] = None

    def busy(self, number: int) -> None:
        """A request, or a WebSocket, is under way on it."""
        if (entry := self._all.get(number)) is not None:
            self._no_longer_waiting(number, entry)

    def exhausted(self) -> None:
        """The process has no descriptor for a connection."""
        self._make_room(self._waiting, "descriptors", UNKNOWN)
        self._record("refused", UNKNOWN)

    def _make_room(self, waiting: OrderedDict[int, None] | None, why: str, who: str) -> None:
        if not waiting:
            return
        number = next(iter(waiting))
        entry = self._all[number]
        self._no_longer_waiting(number, entry)
        entry.is_leaving = True
        self._leaving += 1
        self._count_of[entry.who] -= 1
        self._record(why, who)
        # The event loop reads its end and closes it, whatever layers are above it.
        with suppress(OSError):
            if (connection := entry.handle()) is not None:
                connection.shutdown(socket.SHUT_RDWR)

    def _no_longer_waiting(self, number: int, entry: _Connection) -> None:
        self._waiting.pop(number, None)
        theirs = self._waiting_of.get(entry.who, OrderedDict())
        theirs.pop(number, None)
        if not theirs:
            self._waiting_of.pop(entry.who, None)

    def _forget(self, number: int, entry: _Connection) -> None:
        if self._all.get(number) is not entry:
            return
        del self._all[number]
        self._no_longer_waiting(number, entry)
        if entry.is_leaving:
            self._leaving -= 1
        else:
            self._count_of[entry.who] -= 1
        if not self._count_of[entry.who]:
            del self._count_of[entry.who]

    def _is_exempt(self, host: str) -> bool:
        """Whether many clients come from there."""
        return host == UNKNOWN or self._addresses.is_proxy(host)

    # --- requests -----------------------------------------------------------------------------

    @contextmanager
    def request(self, connection: HTTPConnection) -> Iterator[None]:
        """One request, or WebSocket, from its head to its end.

        Raises:
            OverloadedError: too many connections are open.
            TooManyConnectionsError: too many of this address.
        """
        peer = connection.client.host if connection.client else UNKNOWN
        if self.count > self.limit:
            self._record("overloaded", counted_as(peer))
            raise OverloadedError("too many connections are open")
        who = None
        if self._is_exempt(peer) or self._addresses.is_passed_on(connection):
            client = self._addresses.of(connection)
            who = counted_as(client) if client != peer else None
            full = who is not None and self._requests_of[who] >= self.per_address
        else:
            full = self._count_of[counted_as(peer)] > self.per_address
        if full:
            self._record("address", who or counted_as(peer))
            raise TooManyConnectionsError(f"this address has {self.per_address} connections already")
        if who is None:
            yield
            return
        self._requests_of[who] += 1
        try:
            yield
        finally:
            self._requests_of[who] -= 1
            if not self._requests_of[who]:
                del self._requests_of[who]

    # --- one line for a flood -----------------------------------------------------------------

    def _record(self, what: str, who: str) -> None:
        self._metrics.crowded.labels(what).inc()
        self._events[what] += 1
        if len(self._crowd) < _LEAVING or who in self._crowd:
            self._crowd[who] += 1
        if self._summary is None:
            wait_s = max(0.0, self._summarised_at + _SUMMARY_S - time.monotonic())
            self._summary = asyncio.get_running_loop().call_later(wait_s, self._summarise)

    def _summarise(self) -> None:
        self._summary = None
        self._summarised_at = time.monotonic()
        (worst, times), *_ = self._crowd.most_common(1)
        _log.warning(
            "crowded: %d connections are open (limit %d), %d of them wait; since the last such line: %s; "
            "most from %s (%d)",
            self.count,
            self.limit,
            len(self._waiting),
            ", ".join(f"{_WHAT[what]}: {count}" for what, count in sorted(self._events.items())),
            worst,
            times,
        )
        self._events.clear()
        self._crowd.clear()


_WHAT = {
    "address": "closed or refused, too many of one address",
    "descriptors": "closed, no descriptors",
    "overloaded": "requests answered with 503",
    "refused": "refused",
    "total": "closed to make room",
}


class ConnectionLimits:
    """ASGI middleware: answers requests beyond the limits with an error, and closes their connection.

    Beside those of connections there is one of the parameters of a target, and the host's name is checked.
    """

    def __init__(self, app: ASGIApp, connections: ConnectionLimiter, origins: Origins) -> None:
        self._app = app
        self._connections = connections
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        with ExitStack() as stack:
            try:
                if scope["query_string"].count(b"&") >= MAX_PARAMETERS:
                    raise TargetTooLongError(f"a target has at most {MAX_PARAMETERS} parameters")
                if scope["path"] not in HEALTH:
                    connection = HTTPConnection(scope)
                    self._origins.check_host(connection)
                    stack.enter_context(self._connections.request(connection))
            except ParleyError as error:
                refusal = answer(error)
                refusal.headers["Connection"] = "close"
                await refusal(scope, receive, send)
            else:
                await self._app(scope, receive, send)


class _Accepted(socket.socket):
    """Says when its descriptor is free."""

    on_closed: Callable[[int], None] | None = None

    def close(self) -> None:
        number = self.fileno()
        super().close()
        if self.on_closed is not None and self.fileno() == -1:
            self.on_closed(number)


class Listener(socket.socket):
    """A listening socket whose connections are counted, and that survives a process without descriptors.

    asyncio itself logs a traceback for every connection that it has no descriptor for, and leaves it in the
    queue. Here one descriptor is kept aside, to accept and close what there is no room for.
    """

    limiter: ConnectionLimiter | None = None
    _kept: int | None = None

    def listen(self, backlog: int = _QUEUE) -> None:
        """Make the queue longer than what asyncio accepts in one turn, which is its ``backlog``."""
        super().listen(max(backlog, _QUEUE))

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection that there is room for.

        Raises:
            BlockingIOError: there is none.
        """
        assert self.limiter is not None
        self._keep_one()
        for _ in range(_AT_MOST):
            try:
                plain, address = super().accept()
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._drop_one()
                continue
            connection = _Accepted(self.family, self.type, self.proto, fileno=plain.detach())
            host = address[0] if isinstance(address, tuple) else UNKNOWN
            if self.limiter.add(connection, host):
                connection.on_closed = self.limiter.closed
                return connection, address
            connection.close()
        raise BlockingIOError(errno.EAGAIN, "there is room for none of these")

    def close(self) -> None:
        """Also the descriptor that is kept aside."""
        super().close()
        if self._kept is not None:
            os.close(self._kept)
            self._kept = None

    def _drop_one(self) -> None:
        """Accept and close one, and let one that waits go.

        Raises:
            BlockingIOError: there is none, which the kernel only says to those who have a descriptor.
        """
        assert self.limiter is not None
        if self._kept is None:
            self.limiter.exhausted()
            raise BlockingIOError(errno.EAGAIN, "no descriptor is free")
        os.close(self._kept)
        self._kept = None
        try:
            super().accept()[0].close()
        finally:
            self._keep_one()
        self.limiter.exhausted()

    def _keep_one(self) -> None:
        if self._kept is None:
            with suppress(OSError):
                self._kept = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def raise_descriptor_limit() -> int:
    """Let the process have as many descriptors as it may; how many these are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft if soft != resource.RLIM_INFINITY else 1 << 30


def reserved_descriptors(*, servers: int, calls: int, stage_requests: int, side_ports: int) -> int:
    """What is needed beside the connections of clients.

    Args:
        servers: Triton servers; each has one connection, whatever number of calls it carries.
        calls: WebRTC calls at once.
        stage_requests: Recordings that are read at once.
        side_ports: Ports of their own that probes and metrics have.
    """
    probes = side_ports * (SIDE_CONNECTIONS + _SPARE)
    return servers * _PER_SERVER + calls * _PER_CALL + stage_requests * _PER_STAGE_REQUEST + probes
