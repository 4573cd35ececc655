"""The session of a call: on one server, and if need be on the next."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from parley import protocol
from parley.checkpoint import HistoryState
from parley.errors import DeadlineExceededError, InferenceError, ParleyError, SessionNotFoundError
from parley.timeouts import cancel_all, hold_task
from parley_client.call_stats import CallStats
from parley_client.errors import (
    CallEndedError,
    CallLostError,
    CallRefusedError,
    ConnectError,
    NotResumableError,
    SlowConsumerError,
)
from parley_client.events import CallEvent, MoveReason, Reconnected, Reconnecting, ServerEvent
from parley_client.options import Bounds, Deadlines
from parley_client.queues import BYTES_PER_MS, EventQueue, SendQueue
from parley_client.reconnection import RELAPSE_S, MoveRequest, Outage, Reconnect
from parley_client.resumption import CallCheckpoint, Resumption
from parley_client.server_stream import ServerStream
from parley_client.stream_feed import StreamFeed
from parley_client.transport import CallStream

_SERVERS_REASONS = ("shutdown", "failed", "disconnected")
"""Of ``closed``: the server ends the session, and neither side of the conversation."""
_CONNECT_S = 3.0
"""For the connection to another server: the next one may answer at once."""
_PLANNED_OPEN_S = 3.0
"""A call that has a server does not pause for longer while another one opens the session."""
_LONGEST_PAUSE_S = 60.0
"""Between two moves of a call whose servers acknowledge nothing."""
_LEAVE_S = 5.0
_LOOK_S = 0.5
"""Between two looks at how many servers there are, while those that are known ask to be left alone."""


class CallSession:
    """Owns the streams of a call, of which one is current, and the queues' other ends.

    Without ``reconnect`` the session ends with its first stream. With it the session moves when that stream
    is lost, when the server acknowledges nothing, and when the server asks for it: another server gets the
    newest checkpoint and what it does not contain, or, where nothing was said yet, begins again. A call that
    still has a server leaves it only when the new one has opened the session, and stays otherwise. In any
    case one of three things holds: a stream is current and served, an attempt is under way that ends in
    time, or the session is over.
    """

    def __init__(
        self,
        stream: CallStream,
        *,
        call_id: str,
        start: protocol.Start,
        outbox: SendQueue,
        inbox: EventQueue[CallEvent],
        stats: CallStats,
        deadlines: Deadlines,
        bounds: Bounds,
        on_tool_event: Callable[[protocol.ToolRequest | protocol.ToolCancelled], None] | None = None,
        reconnect: Reconnect | None = None,
        shows_checkpoints: bool = False,
    ) -> None:
        self._call_id = call_id
        self._shows_checkpoints = shows_checkpoints
        self._outbox = outbox
        self._inbox = inbox
        self._stats = stats
        self._deadlines = deadlines
        self._on_tool_event = on_tool_event
        self._reconnect = reconnect
        self._resumption: Resumption | None = None
        if reconnect is not None:
            start = msgspec.structs.replace(start, checkpoints=True)
            self._resumption = Resumption(start, bounds.replay_ms, _now)
        self._rng = random.Random()
        self._current = self._make_stream(stream, start)
        self._leaving: set[asyncio.Task[None]] = set()
        self._mover: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._delivering = asyncio.Lock()
        self._sessions = 1
        self._outage: Outage | None = None
        self._stay: Outage | None = None  # of a server that the call would leave, but no other takes it
        self._next_try_s = 0.0
        self._pause_s = RELAPSE_S
        self._leave_by_s: float | None = None
        self._lost_s = 0.0
        self._is_ending = False
        self.is_over = asyncio.Event()
        """No further event will come."""
        self.failure: ParleyError | None = None
        """Why the call was lost."""
        self.closed: protocol.Closed | None = None
        """How the server ended the call."""
        self.max_chunk_bytes = protocol.MAX_CHUNK_MS * BYTES_PER_MS
        """The longest audio that the server takes in one request."""

    def _make_stream(self, stream: CallStream, start: protocol.Start, *, holds: bool = False) -> ServerStream:
        feed = StreamFeed(self._outbox, self._resumption)
        if holds:
            feed.pause()
        return ServerStream(
            stream,
            start=start,
            feed=feed,
            stats=self._stats,
            deadlines=self._deadlines,
            on_event=self._on_event,
            on_end=self._on_end,
            is_reading=lambda: not self._inbox.is_full,
            on_silent=self._wake_mover if self._reconnect is not None else None,
            holds=holds,
        )

    def begin(self) -> None:
        """Send START and whatever the outbox holds."""
        self._current.begin(self._call_id)
        if self._reconnect is not None:
            self._mover = asyncio.get_running_loop().create_task(
                self._move_when_needed(), name=f"call-{self._call_id}-move"
            )

    @property
    def connected(self) -> asyncio.Future[protocol.Connected]:
        """The current server's answer to START."""
        return self._current.connected

    @property
    def checkpoint(self) -> CallCheckpoint | None:
        """The newest; None: there is none."""
        return self._resumption.checkpoint if self._resumption else None

    @property
    def history(self) -> HistoryState | None:
        """Of the newest checkpoint; None: there is none."""
        return self._resumption.history if self._resumption else None

    def hang_up(self) -> None:
        """End the call after what is queued was sent; a call without a server is over at once."""
        self._is_ending = True
        self._outbox.end()
        if self._mover is not None:
            self._mover.cancel()

    def fail(self, failure: ParleyError, cause: Exception | None = None) -> None:
        """End the call with a failure for which no other server helps."""
        self._is_ending = True
        if self._current.is_over.is_set() and not self.is_over.is_set():
            failure.__cause__ = cause
            self._finish(failure, failure)
        self._current.fail(failure, cause)
        if self._mover is not None:
            self._mover.cancel()

    def leave_stalled(self, failure: DeadlineExceededError) -> bool:
        """The server takes no audio, and counts as lost; returns whether the call may go on elsewhere."""
        lost = CallLostError(str(failure))
        if self.is_over.is_set() or self._is_final(lost):
            return False
        self._current.fail(lost, failure)
        return True

    def keep_playback(self, response_id: str, played_ms: float) -> bool:
        """Keep a report for the next server; returns whether there is none now."""
        if self._resumption is None or not self._current.is_over.is_set() or self.is_over.is_set():
            return False
        self._resumption.on_playback(response_id, played_ms)
        return True

    async def drain(self) -> None:
        """Let the current stream end by itself, within a second."""
        await self._current.drain()

    async def stop(self) -> None:
        """Drop all streams and end all tasks."""
        self.fail(CallEndedError("the call was closed"))
        if self._mover is not None:
            await asyncio.gather(self._mover, return_exceptions=True)
        await self._current.stop()
        await self._release(self._current)
        if self._leaving:
            _, late = await asyncio.wait(self._leaving, timeout=_LEAVE_S)
            await cancel_all(late)

    # --- the current stream -------------------------------------------------------------------------

    @property
    def _kept(self) -> Resumption:
        assert self._resumption is not None
        return self._resumption

    @property
    def _servers(self) -> Reconnect:
        assert self._reconnect is not None
        return self._reconnect

    async def _on_event(self, event: ServerEvent) -> None:
        if isinstance(event, protocol.GoAway) and self._reconnect is not None:
            self._leave_by_s = _now() + event.time_left_ms / 1000
            self._next_try_s = 0.0
        if isinstance(event, protocol.Closed) and not self._is_final(event):
            return  # the application gets it if no other server takes the call
        events = [event] if self._resumption is None else self._resumption.on_event(event)
        if isinstance(event, protocol.Checkpoint):
            self._outbox.wake()  # messages may have waited for it
            events = [event] if self._shows_checkpoints else events
        if self._leave_by_s is not None:
            self._wake_mover()
        await self._deliver(events)

    async def _deliver(self, events: Sequence[CallEvent]) -> None:
        async with self._delivering:
            for event in events:
                if isinstance(event, protocol.ToolRequest | protocol.ToolCancelled) and self._on_tool_event:
                    self._on_tool_event(event)
                await self._inbox.put(event)

    def _on_end(self, stream: ServerStream, reason: ParleyError) -> None:
        if stream is not self._current or self.is_over.is_set():
            return
        if not stream.connected.done() or self._is_final(stream.closed or stream.failure):
            self._finish(reason, stream.failure, stream.closed)
        else:
            self._outbox.begin_outage()
            stream.pause()
            self._wake_mover()

    def _is_final(self, end: protocol.Closed | ParleyError | None) -> bool:
        """Whether no other server can go on after such an end of a stream."""
        if self._reconnect is None or self._is_ending or not self._kept.can_move:
            return True
        if isinstance(end, protocol.Closed):
            return end.reason not in _SERVERS_REASONS
        return not isinstance(end, CallLostError)

    def _finish(
        self, reason: ParleyError, failure: ParleyError | None, closed: protocol.Closed | None = None
    ) -> None:
        """Wake all waiters: senders get ``reason``, the reader the end of its iteration."""
        if not self.is_over.is_set():
            self.failure, self.closed = failure, closed
            self.is_over.set()
            self._outbox.end(reason)
            self._inbox.end()

    # --- moving -------------------------------------------------------------------------------------

    def _wake_mover(self) -> None:
        self._wake.set()

    async def _move_when_needed(self) -> None:
        try:
            while not self.is_over.is_set():
                self._wake.clear()
                if self._current.is_over.is_set():
                    await self._recover()
                elif (reason := self._reason_to_leave()) is not None:
                    await self._try_to_leave(reason)
                else:
                    await self._wait_for_reason()
        except SlowConsumerError as error:
            self.fail(error)
        except Exception as error:  # noqa: BLE001 - the reason of the call's end
            self.fail(CallLostError(f"the call could not go on: {error}"), error)
        finally:
            if self._current.is_over.is_set():
                self._give_up()

    def _reason_to_leave(self) -> MoveReason | None:
        now = _now()
        if now < self._next_try_s or not self._kept.can_move or not self._current.connected.done():
            return None
        if self._current.is_silent:
            return "silent"
        if self._leave_by_s is None:
            self._stay = None
        elif self._kept.settled or now >= self._leave_by_s:
            return "go_away"
        return None

    async def _wait_for_reason(self) -> None:
        """Wait for an event, or for the time at which a reason counts that is known already."""
        now = _now()
        times = [time for time in (self._next_try_s, self._leave_by_s) if time is not None and time > now]
        with suppress(TimeoutError):
            async with asyncio.timeout_at(min(times, default=None)):
                await self._wake.wait()

    async def _try_to_leave(self, reason: MoveReason) -> None:
        """Go on elsewhere, or stay and look again later."""
        self._stay = self._stay or Outage(_now(), math.inf, self._rng)
        try:
            await self._move(reason, None, self._stay, self._deadlines.connect_s)
        except SlowConsumerError:
            raise
        except ParleyError as error:
            now, others = _now(), max(1, self._servers.others)
            self._next_try_s = now + self._stay.on_failure(error, others, now)

    async def _recover(self) -> None:
        """Go on elsewhere; the call is over if no server takes it in time."""
        lost, now = self._current, _now()
        failure = lost.failure or CallLostError("the server closed the call")
        refusal = _refusal_in(failure)
        outage, wait_s = self._outage, 0.0
        if outage is not None and outage.goes_on(now):
            wait_s = outage.on_failure(refusal or failure, self._servers.count, now)
        else:
            outage = self._outage = Outage(now, self._deadlines.resume_s, self._rng)
            if refusal is not None:
                outage.on_failure(refusal, self._servers.count, now)
        self._lost_s = now
        self._begin_to_leave(lost)
        await self._deliver([Reconnecting("lost")])
        while (left_s := outage.left_s(_now())) > wait_s:
            await self._wait_to_try(outage, wait_s)
            try:
                await self._move("lost", failure, outage, min(self._deadlines.connect_s, left_s - wait_s))
            except NotResumableError:
                await self._end_without_server(lost, None)
                return
            except SlowConsumerError:
                raise
            except ParleyError as error:
                wait_s = outage.on_failure(error, self._servers.count, _now())
            else:
                return
        end: ParleyError | None = None
        if outage.refusal is not None:
            end = CallRefusedError(outage.refusal)
        elif outage.attempts:
            end = CallLostError(f"{failure}, and no server took the call within {outage.limit_s:g} s")
            end.__cause__ = failure
        await self._end_without_server(lost, end)

    async def _end_without_server(self, lost: ServerStream, failure: ParleyError | None) -> None:
        """The call is over, as the lost server said; else with a failure, None: that of the lost stream."""
        if lost.closed is not None:
            await self._deliver([lost.closed])
        elif failure is not None:
            self._finish(failure, failure)
        self._give_up()

    async def _wait_to_try(self, outage: Outage, wait_s: float) -> None:
        """Wait before the next attempt; a server that is new, or is back, is not waited for."""
        end_s = _now() + wait_s
        while (left_s := end_s - _now()) > 0:
            await asyncio.sleep(min(left_s, _LOOK_S))
            now = _now()
            end_s = min(end_s, now + outage.wait_s(self._servers.count, now))

    def _give_up(self) -> None:
        lost = self._current
        self._finish(lost.failure or CallEndedError("the call has ended"), lost.failure, lost.closed)

    async def _move(
        self, reason: MoveReason, failure: ParleyError | None, outage: Outage, limit_s: float
    ) -> None:
        """Go on at the server that ``reconnect`` chooses.

        Raises:
            ParleyError: it did not take the session; a stream that was served is served again.
        """
        request = MoveRequest(
            session_id=f"{self._call_id}.{self._sessions}",
            reason=reason,
            failure=failure,
            attempt=outage.on_attempt(),
            timeout_s=min(limit_s, _CONNECT_S),
        )
        try:
            stream = await self._next_stream(request)
            self._sessions += 1
            began_s = _now() if failure is None else self._lost_s
            if failure is None:
                limit_s = min(limit_s, _PLANNED_OPEN_S)
            new, connected = await self._open(stream, request.session_id, limit_s)
        except ParleyError as error:
            self._servers.on_moved(request, error)
            raise
        events, repeated = self._kept.go_on(connected)
        old, self._current = self._current, new
        self.max_chunk_bytes = connected.max_chunk_ms * BYTES_PER_MS
        self._stats.moves += 1
        self._leave_by_s = self._stay = None
        now = _now()
        # Where all servers are slow, calls must not wander between them.
        self._pause_s = min(_LONGEST_PAUSE_S, 2 * self._pause_s) if reason == "silent" else RELAPSE_S
        self._next_try_s = now + self._pause_s
        told: list[CallEvent] = []
        if failure is None:
            self._begin_to_leave(old)
            self._outage = outage = Outage(began_s, self._deadlines.resume_s, self._rng)
            told.append(Reconnecting(reason))
        outage.end(now)
        self._outbox.end_outage()
        self._servers.on_moved(request, None)
        try:
            await self._deliver([*told, *events, Reconnected(1000 * (now - began_s), reason)])
        finally:
            new.resume(repeated)

    async def _next_stream(self, request: MoveRequest) -> CallStream:
        try:
            async with asyncio.timeout(request.timeout_s):
                return await self._servers.next_stream(request)
        except TimeoutError as error:
            raise ConnectError(f"no connection within {request.timeout_s:g} s") from error

    async def _open(
        self, stream: CallStream, session_id: str, limit_s: float
    ) -> tuple[ServerStream, protocol.Connected]:
        """Open the session on a new stream, while the current one pauses.

        Raises:
            ParleyError: the server did not open it.
        """
        current = self._current
        current.pause()
        try:
            new, goes_on = await self._make_next(stream)
            try:
                return new, await self._wait_until_open(new, session_id, limit_s, goes_on=goes_on)
            except BaseException:
                self._begin_to_leave(new)
                raise
        except BaseException:
            if not current.is_over.is_set():
                current.resume()
            raise

    async def _make_next(self, stream: CallStream) -> tuple[ServerStream, bool]:
        """The stream, and whether the session goes on there, or begins again."""
        try:
            start = self._kept.make_start()
            return self._make_stream(stream, start, holds=True), start.resume is not None
        except ParleyError:
            stream.cancel()
            await self._servers.release(stream)
            raise

    async def _wait_until_open(
        self, new: ServerStream, session_id: str, limit_s: float, *, goes_on: bool
    ) -> protocol.Connected:
        new.begin(session_id)
        # A future that is awaited with a deadline would be cancelled, and a refusal that comes in that moment
        # would be taken for an event of an open session.
        done, _ = await asyncio.wait([new.connected], timeout=limit_s)
        if not done:
            raise DeadlineExceededError(f"the server did not answer within {limit_s:g} s")
        connected = new.connected.result()
        if goes_on and not connected.resumed:
            raise InferenceError("the server has begun a new session")
        return connected

    def _begin_to_leave(self, stream: ServerStream) -> None:
        stream.drop()
        hold_task(self._leaving, self._leave(stream), f"call-{self._call_id}-leave")

    async def _leave(self, stream: ServerStream) -> None:
        try:
            await stream.leave()
        finally:
            await stream.stop()
            await self._release(stream)

    async def _release(self, stream: ServerStream) -> None:
        if self._reconnect is not None:
            await self._reconnect.release(stream.stream)


def _refusal_in(failure: ParleyError) -> ParleyError | None:
    """The refusal for good by which a server was lost; None: it was lost otherwise.

    A server that does not know the session has lost it, and has refused nothing.
    """
    cause = failure.__cause__
    if not isinstance(cause, ParleyError) or cause.retryable or isinstance(cause, SessionNotFoundError):
        return None
    return cause


def _now() -> float:
    return asyncio.get_running_loop().time()
