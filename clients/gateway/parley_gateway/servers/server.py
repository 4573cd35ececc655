"""One Triton behind the gateway: its channel, its checks, and who uses it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Self, TypeAlias

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from parley.errors import DeadlineExceededError, ModelUnavailableError, ParleyError
from parley.timeouts import cancel_all, hold_task, is_set_within, loop_time
from parley_client.channel import error_of
from parley_client.transport import MODEL
from parley_gateway.model_health import ModelHealth
from parley_gateway.servers.discovery import Endpoint
from parley_gateway.servers.load import PUBLISHED_S, ServerLoad
from parley_gateway.servers.settings import ServerSettings

_log = logging.getLogger("parley.gateway")
# A busy server may be late once; twice in a row is not ready.
_MAX_LATE_CHECKS = 2
_LEAST_SHARE = 0.1
_MAX_CHECK_INTERVAL_S = 1.0
"""The longest wait between two checks while no server is ready."""

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


class TritonServer:
    """One Triton, whose channel this object owns; it is checked more often while no server is ready."""

    def __init__(
        self,
        endpoint: Endpoint,
        open_channel: Callable[[Endpoint], grpc.aio.Channel],
        settings: ServerSettings,
        *,
        probe: Probe,
        models: ModelHealth,
        load: ServerLoad,
        is_needed: Callable[[], bool],
        on_unused: Callable[[TritonServer], None],
    ) -> None:
        self.endpoint = endpoint
        self._open_channel = open_channel
        self.channel = open_channel(endpoint)
        self._closing: set[asyncio.Task[None]] = set()
        self.models = models
        self._load = load
        self.last_turn = -1
        """Its number among all choices of a server; -1: it was never chosen."""
        self._leases: set[Lease] = set()
        self._ended: deque[tuple[float, float]] = deque()
        """When each session that the newest report may still contain began and ended."""
        self._is_reachable = False
        self._reached = asyncio.Event()
        self._ready_since: float | None = None
        self._problem = "not checked yet"
        self.checked = asyncio.Event()
        """Set after the first check."""
        self._settings = settings
        self._probe = probe
        self._is_needed = is_needed
        self._on_unused = on_unused
        self._doubted = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to check it, and its models."""
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(work, name=f"{what}-{self.address}")
            for what, work in (
                ("watch", self._watch()),
                ("models", self.models.watch()),
                ("load", self._watch_load()),
            )
        ]

    async def aclose(self) -> None:
        """Check it no longer, and close its channels; calls on them break."""
        await cancel_all(self._tasks)
        channels = {self.channel, *(lease.channel for lease in self._leases)}
        await asyncio.gather(*(channel.close() for channel in channels), *self._closing)

    def renew_channel(self) -> None:
        """Use a new channel from now on; the old one is closed when its last user has left."""
        old, self.channel = self.channel, self._open_channel(self.endpoint)
        self._close_if_unused(old)

    def _close_if_unused(self, channel: grpc.aio.Channel) -> None:
        if channel is self.channel or any(lease.channel is channel for lease in self._leases):
            return
        hold_task(self._closing, channel.close(), f"close-{self.address}")

    @property
    def address(self) -> str:
        """``host:port`` of gRPC."""
        return self.endpoint.address

    @property
    def users(self) -> int:
        """Leases that are out."""
        return len(self._leases)

    def enter(self, lease: Lease) -> None:
        """Count a user."""
        self._leases.add(lease)

    def leave(self, lease: Lease) -> None:
        """Count a user no longer."""
        self._leases.discard(lease)
        if lease.opens_session:
            self._ended.append((lease.entered_at, loop_time()))
        self._close_if_unused(lease.channel)
        if not self._leases:
            self._on_unused(self)

    @property
    def is_answering(self) -> bool:
        """Whether Triton calls itself and the agent ready, and the agent answers."""
        return self._is_reachable and not self.models.agent_problem

    @property
    def is_ready(self) -> bool:
        """Whether it would take a call: it answers, and does not drain."""
        return self.is_answering and not self.is_draining

    @property
    def is_draining(self) -> bool:
        """Whether it says that it takes no new sessions."""
        return self._load.report.draining

    @property
    def gpu_memory_free(self) -> int | None:
        """Free memory of all its GPUs together (bytes); None: unknown, or it has none."""
        return self._load.report.gpu_memory_free

    @property
    def sessions(self) -> int:
        """Sessions that it has, as far as is known.

        Those that it has reported, of all gateways, with those that this one has opened since, and without
        those that have ended. Without a report, those of this one.
        """
        own = [lease for lease in self._leases if lease.opens_session]
        reported = self._load.report.sessions
        if reported is None:
            return len(own)
        # The page is behind what was opened and has ended shortly before. For a moment, some may count twice,
        # or not at all: servers refuse what they cannot take.
        since = self._load.read_at - PUBLISHED_S
        opened = sum(lease.entered_at > since for lease in own)
        ended = sum(entered_at <= since < left_at for entered_at, left_at in self._ended)
        return max(reported + opened - ended, len(own))

    @property
    def limit(self) -> int | None:
        """The most sessions on it: its own limit, or a lower one of the settings; None: unknown."""
        known = [one for one in (self._load.report.limit, self.endpoint.sessions) if one is not None]
        return min(known, default=None)

    @property
    def is_full(self) -> bool:
        """Whether it has as many sessions as it takes, as far as is known."""
        limit = self.limit
        return limit is not None and self.sessions >= limit

    @property
    def is_filled(self) -> bool:
        """Whether it has as many sessions as the settings allow."""
        return self.endpoint.sessions is not None and self.sessions >= self.endpoint.sessions

    def load_with_another(self, usual_limit: int) -> float:
        """The part of its places that would be taken with one more user; 1: all of them.

        A server that has just become ready counts as smaller than it is.

        Args:
            usual_limit: Its limit, where that is unknown.
        """
        requests = sum(not lease.opens_session for lease in self._leases)
        places = (self.limit or usual_limit) * self._share
        return (self.sessions + requests + 1) / places

    @property
    def _share(self) -> float:
        """The part of its places that count: less than 1 while it starts slowly."""
        slow_s = self._settings.slow_start_s
        if self._ready_since is None or not slow_s:
            return 1.0
        return min(1.0, max(_LEAST_SHARE, (loop_time() - self._ready_since) / slow_s))

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
        draining = "it takes no new sessions" if self.is_draining else ""
        return self._problem or self.models.agent_problem or draining

    def doubt(self, error: ParleyError) -> None:
        """A call could not reach it: leave it out until a check succeeds."""
        self._record(str(error) or error.code)
        self._doubted.set()

    async def _watch(self) -> None:
        failures = 0
        while True:
            channel = self.channel
            try:
                await self._probe(channel, self._settings.check_timeout_s)
            except ParleyError as error:
                if channel is not self.channel:  # it may have been closed meanwhile
                    continue
                failures += 1
                is_late = isinstance(error, DeadlineExceededError)
                if not (is_late and self._is_reachable and failures < _MAX_LATE_CHECKS):
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

    async def _watch_load(self) -> None:
        while True:
            await self._reached.wait()
            await self._load.refresh(self.endpoint)
            self._forget_ended()
            await asyncio.sleep(self._settings.load_s)

    def _forget_ended(self) -> None:
        """Forget the sessions that ended before all that the newest report may contain."""
        if self._load.report.sessions is None:
            self._ended.clear()
        while self._ended and self._ended[0][1] <= self._load.read_at - PUBLISHED_S:
            self._ended.popleft()

    async def _pause(self, failures: int) -> None:
        settings = self._settings
        wait_s = settings.check_s
        if failures:
            # The exponent is bounded, as the number of failures is not.
            wait_s = min(settings.retry_max_s, settings.retry_s * 2.0 ** min(failures - 1, 16))
        while wait_s > 0 and not self._doubted.is_set():
            step_s = min(wait_s, _MAX_CHECK_INTERVAL_S)
            await is_set_within(self._doubted, step_s)
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
        if problem:
            self._reached.clear()
            self._load.forget()
            self._ready_since = None
        elif not self._is_reachable:
            self._reached.set()
            self._ready_since = loop_time()
        self._is_reachable, self._problem = not problem, problem
        self.models.set_reachable(is_reachable=self._is_reachable)


class Lease:
    """Counts one user of a server for as long as it is entered."""

    def __init__(self, server: TritonServer, *, opens_session: bool) -> None:
        self.server = server
        self.channel = server.channel
        """The server's when the lease was entered."""
        self.opens_session = opens_session
        self.entered_at = math.inf
        """By the clock of the event loop (seconds)."""

    def __enter__(self) -> Self:
        self.entered_at = loop_time()
        self.channel = self.server.channel
        self.server.enter(self)
        return self

    def __exit__(self, *problem: object) -> None:
        self.server.leave(self)
