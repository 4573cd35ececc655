"""The calls that run in this process: opened on a server, capped, and ended when it shuts down."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

import msgspec

from parley import protocol
from parley.errors import (
    ParleyError,
    ShuttingDownError,
    UnknownAgentError,
)
from parley.logs import log_ids
from parley.timeouts import cancel_all, hold_task, is_set_within, loop_time, with_timeout
from parley.tracing import NO_TRACE, Trace, Tracing
from parley_client.call import Call
from parley_client.options import Bounds, Deadlines, check_start
from parley_client.reconnection import MoveRequest
from parley_client.transport import Transport, TritonTransport
from parley_gateway.errors import NoServerReadyError, TooManyCallsError
from parley_gateway.metrics import Metrics
from parley_gateway.moves import DOUBTFUL, CallServers
from parley_gateway.security.audit import audit
from parley_gateway.security.principal import Principal
from parley_gateway.servers import Lease, Servers, TritonServer
from parley_gateway.settings_sections import Count, Seconds
from parley_gateway.shares import Shares
from parley_gateway.tracing import with_trace
from parley_gateway.voice_owners import check_voice

_log = logging.getLogger("parley.gateway")
_BOUNDS = Bounds()
_LOST = "lost"
_BROKEN = (_LOST, "failed")
# What APIs take for their goodbyes, after their calls have ended (seconds).
_LAST_WORDS_S = 3.0


class CallSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many calls, how long each of their waits may take, and where those are that servers record."""

    limit: Count = 32
    """Calls of this process at once ([how many](gateway.md#how-many-calls)); more are answered with 429."""
    per_key: Count = 32
    """Calls of one key at once, beside its [share](gateway.md#shares)."""
    retry_after_s: Seconds = 5.0
    """``Retry-After`` of a refused request (seconds)."""
    open_s: Seconds = 10.0
    """Limit of opening a call, on all servers."""
    attempt_s: Seconds = 5.0
    """Limit of opening it on one server."""
    send_s: Seconds = 10.0
    """Longest wait for room in the queue of audio for the server; then the call goes on at another one."""
    acknowledge_s: Seconds = 15.0
    """A server that acknowledges nothing for so long is lost."""
    suspect_s: Seconds = 1.0
    """A call whose server acknowledges nothing for so long goes on at another one that is ready."""
    resume_s: Seconds = 30.0
    """How long a call that has lost its server looks for another one."""
    read_s: Seconds = 30.0
    """An API that reads no events for so long loses the call."""
    close_s: Seconds = 5.0
    """Limit of closing a call on the server."""
    folder: str = ""
    """Folder of [recorded calls](gateway.md#recorded-calls). Empty: no `/v1/calls`."""

    @property
    def deadlines(self) -> Deadlines:
        """For the client library."""
        return Deadlines(
            connect_s=self.attempt_s,
            send_s=self.send_s,
            acknowledge_s=self.acknowledge_s,
            consumer_s=self.read_s,
            close_s=self.close_s,
            suspect_s=self.suspect_s,
            resume_s=self.resume_s,
        )


def triton_transport(server: TritonServer) -> Transport:
    """A transport on the server's pooled channel."""
    return TritonTransport(server.address, channel=server.channel)


def check_share(places: Shares, principal: Principal, settings: CallSettings, what: str) -> None:
    """Whether a principal gets another place.

    Raises:
        TooManyCallsError: there are too many calls already, of all or of this principal.
    """
    held = places.held(principal.owner)
    if places.taken >= places.limit:
        why = f"{places.limit} {what} are open, which is all this gateway takes"
    elif held >= settings.per_key and not principal.is_many:
        why = f"{held} {what} of this key are open, which is all it may have"
    elif not places.has_room(principal.owner):
        why = f"{held} {what} of this caller are open, which is its share for now"
    else:
        return
    raise TooManyCallsError(why, retry_after_s=settings.retry_after_s)


@contextmanager
def hold_share(places: Shares, principal: Principal, settings: CallSettings, what: str) -> Iterator[None]:
    """Hold a place; raises as :func:`check_share`."""
    check_share(places, principal, settings, what)
    with places.take(principal.owner):
        yield


class _OwnedCall(Call):
    """A call that may not change to another client's voice."""

    principal: Principal

    def update(self, update: protocol.Update) -> None:
        check_voice(update.voice, self.principal)
        super().update(update)


class Calls:
    """All calls of the process; each belongs to the ``async with`` of the API that opened it."""

    def __init__(
        self,
        settings: CallSettings,
        servers: Servers,
        metrics: Metrics,
        transport: Callable[[TritonServer], Transport] = triton_transport,
        tracing: Tracing | None = None,
    ) -> None:
        self._tracing = tracing
        self._settings = settings
        self._servers = servers
        self._metrics = metrics
        self._transport = transport
        self._places = Shares(settings.limit)
        self._open: set[Call] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._attended = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._drain_ends_s = 0.0
        self.drain_began = asyncio.Event()
        """No new calls are taken, and clients that can go elsewhere should."""
        self.going_away = asyncio.Event()
        """The grace time is over: calls are ended, and APIs say ``going_away``."""

    @property
    def draining(self) -> bool:
        """Whether no new calls are taken."""
        return self.drain_began.is_set()

    @property
    def drain_left_s(self) -> float:
        """How long calls may still go on after :attr:`drain_began` (seconds)."""
        return max(0.0, self._drain_ends_s - loop_time())

    @property
    def count(self) -> int:
        """Calls that are open or being opened."""
        return self._places.taken

    def check_room(self, principal: Principal) -> None:
        """Refuse now what :meth:`open` would refuse.

        Raises:
            ShuttingDownError: the process takes no new calls.
            TooManyCallsError: there are too many calls already.
        """
        settings = self._settings
        if self.draining:
            raise ShuttingDownError("this gateway shuts down; connect to another one")
        check_share(self._places, principal, settings, "calls")

    @asynccontextmanager
    async def open(
        self, start: protocol.Start, *, principal: Principal, api: str, shows_checkpoints: bool = False
    ) -> AsyncIterator[Call]:
        """Open a call on a server that takes it; leaving hangs up.

        Raises:
            ShuttingDownError: the process takes no new calls.
            TooManyCallsError: there are too many calls already.
            NoServerReadyError: no server is ready.
            InvalidMessageError: a number of ``start`` is out of its range.
            NotPermittedError: the client may not call the agent.
            UnsupportedVoiceError: the voice is another client's.
            ParleyError: what the last server that was tried answered.
        """
        settings = self._settings
        self.check_room(principal)
        check_start(start)
        principal.check_agent(start.agent)
        check_voice(start.voice, principal)
        # A client that could name a salt could read in `cached_tokens` what others have said; as an owner
        # it could give them calls that they have not held.
        # Servers of an older version do not know it.
        owner = principal.call_owner if settings.folder else ""
        start = msgspec.structs.replace(with_trace(start), cache_salt=principal.cache_salt, owner=owner)
        self._idle.clear()
        try:
            async with AsyncExitStack() as stack:
                stack.enter_context(self._places.take(principal.owner))
                trace = stack.enter_context(self._begin_trace(start, api))
                if trace.traceparent:
                    start = msgspec.structs.replace(start, traceparent=trace.traceparent)
                servers = CallServers(
                    self._servers,
                    self._transport,
                    trace,
                    lambda request, server, failure: self._on_move(
                        request, server, failure, principal=principal, api=api
                    ),
                )
                try:
                    call = await with_timeout(
                        self._connect(start, servers, shows_checkpoints=shows_checkpoints),
                        settings.open_s,
                        "the servers",
                    )
                except UnknownAgentError:
                    if principal.agents is None:
                        raise
                    # The server's text may name agents that the client may not call.
                    raise UnknownAgentError(f"no agent {start.agent!r} on this server") from None
                call.principal = principal
                trace.set({"gen_ai.conversation.id": call.id})
                stack.enter_context(log_ids(session=call.id, traceparent=start.traceparent))
                _log.info("call %s is open: %s", call.id, api)
                self._metrics.opened.labels(api).inc()
                stack.enter_context(self._metrics.calls.labels(api).track_inprogress())
                self._open.add(call)
                audit("call_opened", principal, call=call.id, api=api)
                try:
                    yield call
                finally:
                    self._open.discard(call)
                    await self._end(call, lambda: _audit_end(call, principal, api))
                    reason = _reason(call)
                    trace.set({"parley.reason": reason, "parley.moves": call.stats.moves})
                    if reason in _BROKEN:
                        trace.end(failure=reason)
        finally:
            self._update_idle()

    def _begin_trace(self, start: protocol.Start, api: str) -> Trace:
        if self._tracing is None:
            return NO_TRACE
        return self._tracing.begin("gateway call", start.traceparent, {"parley.api": api})

    def _on_move(
        self,
        request: MoveRequest,
        server: TritonServer,
        failure: ParleyError | None,
        *,
        principal: Principal,
        api: str,
    ) -> None:
        """Write down an attempt to go on with a call at another server."""
        self._metrics.moves.labels(request.reason, "failed" if failure else "moved").inc()
        call_id = request.session_id.rpartition(".")[0]
        if failure is None:
            _log.warning("call %s goes on at %s: %s", call_id, server.address, request.reason)
            audit("call_moved", principal, call=call_id, api=api, reason=request.reason)
        else:
            _log.warning("call %s cannot go on at %s: %s", call_id, server.address, failure.to_log())

    async def describe(self, server: TritonServer, agent: str = "") -> protocol.AgentDescription | None:
        """What an agent of a server has; its session is a health check's and takes no caller's place.

        Returns:
            None: the agent is too old to describe itself.

        Raises:
            ParleyError: what the server answered.
        """
        # Without a prompt there is nothing to read ahead, and without a greeting nothing is spoken.
        start = protocol.Start(
            agent=agent,
            system_prompt="",
            greeting="",
            # A definition names its language; the own agent may lack any.
            language=protocol.Start().language if agent else "",
            describe=True,
        )
        call_id = f"{protocol.CANARY_PREFIX}{uuid.uuid4().hex}"
        stream = await self._transport(server).open(call_id, self._settings.attempt_s)
        call = Call(stream, call_id, start, deadlines=self._settings.deadlines, bounds=_BOUNDS)
        try:
            return (await call.open()).agent
        finally:
            # A server that does not answer does not acknowledge the end either: it is not waited for.
            self._begin_to_end(call)

    @contextmanager
    def attend(self) -> Iterator[None]:
        """Something runs that :meth:`drain` waits for, beside calls: a WebSocket."""
        self._attended += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._attended -= 1
            self._update_idle()

    def _update_idle(self) -> None:
        if not self._places.taken and not self._attended:
            self._idle.set()

    async def drain(self, grace_s: float) -> None:
        """Take no new calls, wait for the open ones and for WebSockets, then end them."""
        self._drain_ends_s = loop_time() + grace_s
        self.drain_began.set()
        self._metrics.draining.set(1)
        if await is_set_within(self._idle, grace_s):
            return
        _log.info("ending %d calls that are still open", len(self._open))
        self.going_away.set()
        await asyncio.gather(*(call.hang_up() for call in self._open))
        # The APIs have seen the end of their calls and say goodbye.
        await is_set_within(self._idle, self._settings.close_s + _LAST_WORDS_S)

    async def aclose(self) -> None:
        """Wait for calls that are being hung up; those that take too long are cut off."""
        if not self._closing:
            return
        _, late = await asyncio.wait(self._closing, timeout=self._settings.close_s * 2)
        await cancel_all(late)  # each has its line in the audit log then

    async def _connect(
        self, start: protocol.Start, servers: CallServers, *, shows_checkpoints: bool
    ) -> _OwnedCall:
        """Try servers, the least busy first, until one takes the call."""
        tried: list[TritonServer] = []
        refusal: ParleyError | None = None
        while refusal is None or len(tried) < self._servers.attempts:
            try:
                lease = self._servers.lease(excluding=tried)
            except NoServerReadyError as error:
                raise refusal or error from error
            tried.append(lease.server)
            try:
                return await self._attempt(lease, start, servers, shows_checkpoints=shows_checkpoints)
            except ParleyError as error:
                if not error.retryable:
                    raise
                refusal = error
                self._metrics.failovers.inc()
                if isinstance(error, DOUBTFUL):
                    lease.server.doubt(error)
        raise refusal

    async def _attempt(
        self, lease: Lease, start: protocol.Start, servers: CallServers, *, shows_checkpoints: bool
    ) -> _OwnedCall:
        call_id = str(uuid.uuid4())
        stream = await servers.open(lease, call_id, self._settings.attempt_s)
        deadlines = self._settings.deadlines
        call = _OwnedCall(
            stream,
            call_id,
            start,
            deadlines=deadlines,
            bounds=_BOUNDS,
            reconnect=servers,
            shows_checkpoints=shows_checkpoints,
        )
        try:
            await call.open()
        except BaseException:
            await self._end(call)
            raise
        return call

    async def _end(self, call: Call, then: Callable[[], None] = lambda: None) -> None:
        """Hang up, to the end even if the API is cancelled meanwhile."""
        await asyncio.shield(self._begin_to_end(call, then))

    def _begin_to_end(self, call: Call, then: Callable[[], None] = lambda: None) -> asyncio.Task[None]:
        """Hang up in the background; :meth:`aclose` waits for it."""
        return hold_task(self._closing, _close(call, then), f"close-{call.id}")


async def _close(call: Call, then: Callable[[], None]) -> None:
    try:
        await call.aclose()
    finally:
        then()


def _audit_end(call: Call, principal: Principal, api: str) -> None:
    audit("call_closed", principal, call=call.id, api=api, reason=_reason(call))


def _reason(call: Call) -> str:
    return call.closed.reason if call.closed else _LOST
