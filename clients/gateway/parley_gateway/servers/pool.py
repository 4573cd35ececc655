"""The Triton servers behind the gateway: watched, one pooled channel each; of two the emptier is chosen."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from random import Random
from typing import Self

import grpc
import grpc.aio

from parley.canaries.asking import ask_models
from parley.canaries.connection import ServerAddress
from parley.errors import TooManySessionsError
from parley.timeouts import hold_task
from parley_client.options import Keepalive
from parley_client.transport import open_triton_channel
from parley_gateway.errors import NoServerReadyError
from parley_gateway.model_health import AskModels, ModelHealth
from parley_gateway.servers.discovery import Discovery, Endpoint, Resolve, resolve_name
from parley_gateway.servers.load import MetricsReader, ReadMetrics, ServerLoad
from parley_gateway.servers.server import Lease, Probe, TritonServer, check_readiness
from parley_gateway.servers.settings import ServerSettings
from parley_gateway.servers.tls import ServerTls

# gRPC itself waits up to two minutes before it connects anew; the health check owns that here.
_RECONNECT = [("grpc.initial_reconnect_backoff_ms", 200), ("grpc.max_reconnect_backoff_ms", 1_000)]
# A recording is one message; how long it may be is limited where it is taken.
_RECORDINGS = [("grpc.max_send_message_length", -1)]
# Between two looks at the files of certificates.
_CERTIFICATES_S = 1.0
_log = logging.getLogger("parley.gateway")


class Servers:
    """All servers; an ``async with`` finds and watches them.

    A server that is no longer found takes no new call. Its channel is closed when its last user has left; if
    it is found again before, it takes calls again.
    """

    def __init__(
        self,
        settings: ServerSettings,
        *,
        open_channel: Callable[[Endpoint], grpc.aio.Channel] | None = None,
        probe: Probe = check_readiness,
        ask_models: AskModels | None = None,
        resolve: Resolve = resolve_name,
        read_metrics: ReadMetrics | None = None,
        random: Random | None = None,
    ) -> None:
        self._settings = settings
        self._tls = ServerTls(settings.tls) if settings.tls else None
        self._open_channel = open_channel or self._open_triton_channel
        self._probe = probe
        self._ask_models = ask_models
        self._discovery = Discovery(settings, self._update, resolve)
        self._servers: dict[str, TritonServer] = {}
        self._removed: dict[str, TritonServer] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._certificates: asyncio.Task[None] | None = None
        self._turns = itertools.count()
        self._metrics = MetricsReader(settings.check_timeout_s, settings.max_connected, self._tls)
        self._read_metrics = read_metrics or self._metrics.read
        self._random = random or Random()

    async def __aenter__(self) -> Self:
        """Find the servers, and wait until each has been checked once."""
        try:
            if self._tls is not None:
                watch = self._watch_certificates(self._tls)
                self._certificates = asyncio.get_running_loop().create_task(watch, name="certificates")
            await self._discovery.start()
            self._update()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.check_timeout_s):
                    await asyncio.gather(*(server.checked.wait() for server in self.all))
        except BaseException:
            await self._aclose()
            raise
        return self

    async def __aexit__(self, *problem: object) -> None:
        await self._aclose()

    async def _aclose(self) -> None:
        await self._discovery.aclose()
        if self._certificates is not None:
            self._certificates.cancel()
            await asyncio.wait([self._certificates])
        open_ones = [*self._servers.values(), *self._removed.values()]
        self._removed.clear()
        await asyncio.gather(*(server.aclose() for server in open_ones), *self._closing)
        await self._metrics.aclose()

    @property
    def all(self) -> tuple[TritonServer, ...]:
        """Every server that there is, ready or not."""
        return tuple(self._servers.values())

    @property
    def removed(self) -> tuple[TritonServer, ...]:
        """Servers that are no longer found, and still have users."""
        return tuple(self._removed.values())

    @property
    def discovery_problems(self) -> Mapping[str, str]:
        """By name or file that servers are found by: why it could not be used the last time, or nothing."""
        return self._discovery.problems

    @property
    def attempts(self) -> int:
        """How many servers are tried for one call."""
        return self._settings.attempts

    @property
    def is_ready(self) -> bool:
        """Whether at least one server is ready."""
        return any(server.is_ready for server in self.all)

    def lease(
        self,
        *,
        excluding: Collection[TritonServer] = (),
        opens_session: bool = True,
        is_rescue: bool = False,
    ) -> Lease:
        """A ready server: of two that are drawn, the one with more room, or that waits for longer.

        The best of all would be wrong: gateways that read the same metrics would all choose it.

        Args:
            excluding: Servers that are not to be chosen.
            opens_session: Whether a session of the agent is opened. Servers that are full are left out then,
                unless all are, and those that have as many sessions as the settings allow in any case.
            is_rescue: Whether the session has lost its server: one more than the settings allow is better
                than a lost call. Servers refuse what they cannot take.

        Raises:
            NoServerReadyError: none is left.
            TooManySessionsError: all that are left have as many sessions as the settings allow.
        """
        ready = [server for server in self.all if server.is_ready and server not in excluding]
        if not ready:
            raise NoServerReadyError(
                "no server is ready" if not excluding else "no other server is ready",
                retry_after_s=self._settings.retry_s * 2,
            )
        if opens_session:
            within = [server for server in ready if not server.is_filled]
            if not within and not is_rescue:
                raise TooManySessionsError("every server has as many sessions as the gateway gives it")
            ready = within or ready
            ready = [server for server in ready if not server.is_full] or ready
        usual_limit = min((limit for server in ready if (limit := server.limit)), default=1)
        drawn = self._random.sample(ready, 2) if len(ready) > 2 else ready
        server = min(drawn, key=lambda one: (one.load_with_another(usual_limit), one.last_turn))
        server.last_turn = next(self._turns)
        return Lease(server, opens_session=opens_session)

    def _update(self) -> None:
        """Begin to use servers that are new, and stop using those that are no longer found."""
        wanted = {endpoint.address: endpoint for endpoint in self._discovery.endpoints}
        for address in [address for address in self._servers if address not in wanted]:
            server = self._removed[address] = self._servers.pop(address)
            _log.info("server %s is no longer found; %d users are left", address, server.users)
            if not server.users:
                self._close(server)
        for address, endpoint in wanted.items():
            if address in self._servers:
                self._servers[address].endpoint = endpoint
            elif address in self._removed:
                self._servers[address] = self._removed.pop(address)
                self._servers[address].endpoint = endpoint
            else:
                self._servers[address] = self._open(endpoint)
                self._servers[address].start()

    def _open(self, endpoint: Endpoint) -> TritonServer:
        settings = self._settings
        models = ModelHealth(
            endpoint.address,
            required=settings.models,
            interval_s=settings.canary_s,
            retry_s=settings.check_s,
            deadline_s=settings.canary_timeout_s,
            ask=self._ask_models
            or (lambda _, deadline_s: ask_models(self._address_of(endpoint), deadline_s)),
        )
        return TritonServer(
            endpoint,
            self._open_channel,
            settings,
            probe=self._probe,
            models=models,
            load=ServerLoad(self._read_metrics, settings),
            is_needed=lambda: not self.is_ready,
            on_unused=self._on_unused,
        )

    async def _watch_certificates(self, tls: ServerTls) -> None:
        while True:
            await asyncio.sleep(_CERTIFICATES_S)
            if tls.check():
                for server in (*self.all, *self.removed):
                    server.renew_channel()
                await self._metrics.renew()

    def _address_of(self, endpoint: Endpoint) -> ServerAddress:
        return self._tls.address_of(endpoint) if self._tls else endpoint.address

    def _open_triton_channel(self, endpoint: Endpoint) -> grpc.aio.Channel:
        options = [*_RECONNECT, *_RECORDINGS]
        address = self._address_of(endpoint)
        if isinstance(address, str):
            return open_triton_channel(address, keepalive=Keepalive(), options=options)
        return open_triton_channel(
            address.address,
            keepalive=Keepalive(),
            credentials=address.credentials,
            options=[*options, *address.channel_options()],
        )

    def _on_unused(self, server: TritonServer) -> None:
        if self._removed.get(server.address) is server:
            self._close(server)

    def _close(self, server: TritonServer) -> None:
        del self._removed[server.address]
        hold_task(self._closing, server.aclose(), f"close-{server.address}")
