"""The Triton servers behind the gateway: one pooled channel each, watched, least calls first."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from types import TracebackType
from typing import Annotated, Any, Self, TypeAlias

import grpc
import grpc.aio
import msgspec
from msgspec import Meta
from tritonclient.grpc import service_pb2, service_pb2_grpc

from parley.errors import DeadlineExceededError, ModelUnavailableError, ParleyError
from parley_client.channel import error_of
from parley_client.options import Keepalive
from parley_client.transport import MODEL, open_triton_channel
from parley_gateway.errors import NoServerReadyError
from parley_gateway.model_health import AskModels, ModelHealth
from parley_gateway.settings_sections import Count, Seconds

Probe: TypeAlias = Callable[[grpc.aio.Channel, float], Awaitable[None]]
"""Returns if the server behind the channel is ready, within seconds; raises :class:`ParleyError` if not."""


async def check_readiness(channel: grpc.aio.Channel, timeout_s: float) -> None:
    """Ask whether server and agent are ready.

    Raises:
        ModelUnavailableError: one of them is not, or nothing answers.
        DeadlineExceededError: no answer in time.
        ParleyError: what the server answered instead.
    """
    stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    try:
        server, model = await asyncio.gather(
            stub.ServerReady(service_pb2.ServerReadyRequest(), timeout=timeout_s),
            stub.ModelReady(service_pb2.ModelReadyRequest(name=MODEL), timeout=timeout_s),
        )
    except grpc.aio.AioRpcError as error:
        raise error_of(error) from error
    except grpc.aio.UsageError as error:
        raise ParleyError("the channel is closed") from error
    if not server.ready:
        raise ModelUnavailableError("the server is not ready")
    if not model.ready:
        raise ModelUnavailableError(f"the model {MODEL} is not ready")


_log = logging.getLogger("parley.gateway")
# gRPC itself waits up to two minutes before it connects anew; the health check owns that here.
_RECONNECT = [("grpc.initial_reconnect_backoff_ms", 200), ("grpc.max_reconnect_backoff_ms", 1_000)]
# A recording is one message; how long it may be is limited where it is taken.
_RECORDINGS = [("grpc.max_send_message_length", -1)]
# A busy server may be late once; twice in a row is not ready.
_LATE_TWICE = 2
_METRICS_PORT = 8002
_NEEDED_S = 1.0
"""The longest wait between two checks while no server is ready."""


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which Triton servers there are, and how they are watched."""

    addresses: Annotated[tuple[str, ...], Meta(min_length=1)] = ("127.0.0.1:8001",)
    """gRPC endpoints, `host:port` each."""
    attempts: Count = 3
    """Servers that are tried for one call."""
    check_s: Seconds = 5.0
    """Time between two health checks of a server that is ready (seconds)."""
    check_timeout_s: Seconds = 2.0
    """Limit of one health check (seconds)."""
    retry_s: Seconds = 0.5
    """Longest wait before a server that is not ready is checked again; it doubles each time (seconds)."""
    retry_max_s: Seconds = 10.0
    """The longest of these waits (seconds); while no server is ready, 1 s."""
    canary_s: Seconds = 30.0
    """Time between two times that every model of a server is asked something real (seconds); `check_s` while
    one fails."""
    canary_timeout_s: Seconds = 5.0
    """Limit of each of them (seconds)."""
    models: tuple[str, ...] = ()
    """Models that have to answer for `/ready`, beside all that a server names."""
    metrics: tuple[str, ...] = ()
    """URLs of the servers' metrics, in the order of `addresses`, for `gpu_memory_free` in `/health`. Empty:
    port 8002 of the same hosts."""


class TritonServer:
    """One Triton.

    Args:
        address: ``host:port``.
        channel: To it; the server owns it.
        settings: How it is watched.
        probe: Asks whether it is ready.
        models: What its models answer.
        is_needed: Whether no server is ready: then it is checked more often.
    """

    def __init__(
        self,
        address: str,
        channel: grpc.aio.Channel,
        settings: ServerSettings,
        probe: Probe,
        models: ModelHealth,
        *,
        is_needed: Callable[[], bool],
    ) -> None:
        self.address = address
        self.channel = channel
        self.models = models
        self.users = 0
        """Leases that are out."""
        self._is_reachable = False
        self._problem = "not checked yet"
        self.checked = asyncio.Event()
        """Set after the first check."""
        self._settings = settings
        self._probe = probe
        self._is_needed = is_needed
        self._doubted = asyncio.Event()

    @property
    def is_ready(self) -> bool:
        """Whether it would take a call: Triton calls itself and the agent ready, and the agent answers."""
        return self._is_reachable and not self.models.agent_problem

    @property
    def is_reachable(self) -> bool:
        """Whether Triton calls itself and the agent ready."""
        return self._is_reachable

    @property
    def is_connected(self) -> bool:
        """Whether something answers at its address, ready or not."""
        return self.channel.get_state() is grpc.ChannelConnectivity.READY

    @property
    def problem(self) -> str:
        """Why it is not ready; empty if it is."""
        return self._problem or self.models.agent_problem

    def doubt(self, error: ParleyError) -> None:
        """A call could not reach it: leave it out until a check succeeds."""
        self._record(str(error) or error.code)
        self._doubted.set()

    async def watch(self) -> None:
        """Check it again and again; never returns."""
        failures = 0
        while True:
            try:
                await self._probe(self.channel, self._settings.check_timeout_s)
            except ParleyError as error:
                failures += 1
                is_late = isinstance(error, DeadlineExceededError)
                if not (is_late and self._is_reachable and failures < _LATE_TWICE):
                    self._record(str(error) or error.code)
            except Exception as error:  # noqa: BLE001 - logged with its trace
                # In any case go on: the state of an unwatched server would never change.
                failures += 1
                _log.exception("the check of server %s failed", self.address)
                self._record(f"the check failed: {type(error).__name__}")
            else:
                failures = 0
                self._record("")
            self.checked.set()
            await self._pause(failures)

    async def _pause(self, failures: int) -> None:
        settings = self._settings
        wait_s = settings.check_s
        if failures:
            # The exponent is bounded, as the number of failures is not.
            wait_s = min(settings.retry_max_s, settings.retry_s * 2.0 ** min(failures - 1, 16))
        while wait_s > 0 and not self._doubted.is_set():
            step_s = min(wait_s, _NEEDED_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(step_s):
                    await self._doubted.wait()
            # The last one that was ready may have been lost meanwhile.
            wait_s = 0.0 if failures and self._is_needed() else wait_s - step_s
        if self._doubted.is_set():
            self._doubted.clear()
            await asyncio.sleep(settings.retry_s)

    def _record(self, problem: str) -> None:
        if problem and not self.checked.is_set():
            # The command that starts the gateway warns in plain words, and `/readyz` has the details.
            _log.debug("server %s is not ready: %s", self.address, problem)
        elif self._is_reachable and problem:
            _log.warning("server %s is left out: %s", self.address, problem)
        elif not self._is_reachable and not problem:
            _log.info("server %s is ready", self.address)
        self._is_reachable, self._problem = not problem, problem
        self.models.set_reachable(is_reachable=self._is_reachable)


class Lease:
    """Counts one user of a server for as long as it is entered."""

    def __init__(self, server: TritonServer) -> None:
        self.server = server

    def __enter__(self) -> Self:
        self.server.users += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.users -= 1


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
