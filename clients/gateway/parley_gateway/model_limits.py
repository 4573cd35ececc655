"""Single stages behind an API: how many requests at once, and on which server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from parley.errors import ParleyError, ShuttingDownError
from parley_gateway.errors import TooManyCallsError
from parley_gateway.gateway import Gateway
from parley_gateway.security.principal import Principal
from parley_gateway.servers import TritonServer
from parley_gateway.shares import Shares


class ModelSlot:
    """The place of one admitted request."""

    def __init__(self, gateway: Gateway, owner: str | None) -> None:
        self._gateway = gateway
        self.owner = owner

    @contextmanager
    def lease(self) -> Iterator[TritonServer]:
        """A server with room.

        Raises:
            NoServerReadyError: there is no server.
        """
        with self._gateway.servers.lease(opens_session=False) as lease:
            try:
                yield lease.server
            except ParleyError as error:
                if lease.server.channel.get_state() is not grpc.ChannelConnectivity.READY:
                    lease.server.doubt(error)
                raise


class ModelLimiter:
    """Bounds the requests of one API, and sends each to a server with room."""

    def __init__(self, gateway: Gateway, api: str) -> None:
        self._gateway = gateway
        self._gauge = gateway.metrics.stages.labels(api)
        self._running = Shares(gateway.settings.stages.requests)

    @contextmanager
    def place(self, principal: Principal) -> Iterator[ModelSlot]:
        """Room for one request, from before its body is read until it is answered; a drain waits for it.

        Raises:
            ShuttingDownError: the gateway takes nothing new.
            TooManyCallsError: enough is under way already.
        """
        settings = self._gateway.settings.stages
        if self._gateway.calls.draining:
            raise ShuttingDownError("this gateway shuts down; connect to another one")
        running, owner = self._running, principal.owner
        if not running.has_room(owner):
            raise TooManyCallsError(
                f"{running.taken} requests are under way already, {running.held(owner)} of them your own",
                retry_after_s=settings.retry_after_s,
            )
        with running.take(owner), self._gauge.track_inprogress(), self._gateway.calls.attend():
            yield ModelSlot(self._gateway, owner)

    @contextmanager
    def lease(self, principal: Principal) -> Iterator[TritonServer]:
        """A place, and a server for it at once.

        Raises:
            ShuttingDownError: the gateway takes nothing new.
            TooManyCallsError: enough is under way already.
            NoServerReadyError: there is no server.
        """
        with self.place(principal) as place, place.lease() as server:
            yield server
