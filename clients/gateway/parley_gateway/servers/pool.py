"""The Triton servers behind the gateway: one pooled channel each, watched, least calls first."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection
from contextlib import suppress
from types import TracebackType
from typing import Self

import grpc
import grpc.aio

from parley_client.options import Keepalive
from parley_client.transport import open_triton_channel
from parley_gateway.errors import NoServerReadyError
from parley_gateway.model_health import AskModels, ModelHealth
from parley_gateway.servers.server import Lease, Probe, TritonServer, check_readiness
from parley_gateway.servers.settings import ServerSettings

# gRPC itself waits up to two minutes before it connects anew; the health check owns that here.
_RECONNECT = [("grpc.initial_reconnect_backoff_ms", 200), ("grpc.max_reconnect_backoff_ms", 1_000)]
# A recording is one message; how long it may be is limited where it is taken.
_RECORDINGS = [("grpc.max_send_message_length", -1)]
_METRICS_PORT = 8002


class Servers:
    """All servers; an ``async with`` opens the channels and watches.

    Args:
        settings: Which they are.
        open_channel: Makes the channel to an address.
        probe: Asks whether a server is ready.
        ask_models: Asks every model of a server something real.
    """

    def __init__(
        self,
        settings: ServerSettings,
        *,
        open_channel: Callable[[str], grpc.aio.Channel] | None = None,
        probe: Probe = check_readiness,
        ask_models: AskModels | None = None,
    ) -> None:
        self._settings = settings
        self._ask_models = ask_models
        self._open_channel = open_channel or _open_channel
        self._probe = probe
        self._servers: list[TritonServer] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._turns = itertools.count()
        self._last_turn: dict[str, int] = {}

    async def __aenter__(self) -> Self:
        """Open the channels and wait until every server has been checked once."""
        settings = self._settings
        addresses = dict.fromkeys(settings.addresses)
        metrics = dict(zip(settings.addresses, settings.metrics, strict=False))
        self._servers = [
            TritonServer(
                address,
                self._open_channel(address),
                settings,
                self._probe,
                ModelHealth(
                    address,
                    metrics_url=metrics.get(address) or _metrics_url(address),
                    required=settings.models,
                    interval_s=settings.canary_s,
                    retry_s=settings.check_s,
                    deadline_s=settings.canary_timeout_s,
                    ask=self._ask_models,
                ),
                is_needed=lambda: not self.is_ready,
            )
            for address in addresses
        ]
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(work, name=f"{what}-{server.address}")
            for server in self._servers
            for what, work in (("watch", server.watch()), ("models", server.models.watch()))
        ]
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.check_timeout_s):
                await asyncio.gather(*(server.checked.wait() for server in self._servers))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(server.channel.close() for server in self._servers))

    @property
    def all(self) -> tuple[TritonServer, ...]:
        """Every server, ready or not."""
        return tuple(self._servers)

    @property
    def attempts(self) -> int:
        """How many servers are tried for one call."""
        return self._settings.attempts

    @property
    def is_ready(self) -> bool:
        """Whether at least one server is ready."""
        return any(server.is_ready for server in self._servers)

    def lease(self, *, excluding: Collection[TritonServer] = ()) -> Lease:
        """The ready server with the fewest users; of several, the one that was not chosen for longest.

        Args:
            excluding: Servers that are not to be chosen.

        Raises:
            NoServerReadyError: none is left.
        """
        ready = [server for server in self._servers if server.is_ready and server not in excluding]
        if not ready:
            raise NoServerReadyError(
                "no server is ready" if not excluding else "no other server is ready",
                retry_after_s=self._settings.retry_s * 2,
            )
        server = min(ready, key=lambda one: (one.users, self._last_turn.get(one.address, -1)))
        self._last_turn[server.address] = next(self._turns)
        return Lease(server)


def _metrics_url(address: str) -> str:
    return f"http://{address.rpartition(':')[0]}:{_METRICS_PORT}/metrics"


def _open_channel(address: str) -> grpc.aio.Channel:
    return open_triton_channel(address, keepalive=Keepalive(), options=[*_RECONNECT, *_RECORDINGS])
