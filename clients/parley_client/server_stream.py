"""One session of a call on one server: the tasks that send, receive and watch."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeGuard

from parley import protocol
from parley.errors import InferenceError, InvalidMessageError, ParleyError, SessionNotFoundError, from_wire
from parley.timeouts import cancel_all
from parley_client.call_stats import CallStats, InFlight
from parley_client.errors import CallEndedError, CallLostError, SlowConsumerError, UnknownEventError
from parley_client.events import ServerEvent, read_event
from parley_client.options import Deadlines
from parley_client.queues import BYTES_PER_MS, OutgoingMessage
from parley_client.stream_feed import StreamFeed
from parley_client.transport import CallStream, Frame, ServerReply

# Every acknowledgement is a message of its own; one for so much audio is enough to notice a hanging server.
_ACKNOWLEDGED_BYTES = 250 * BYTES_PER_MS
_START_ID = "start"
_END_ID = "end"
_WATCH_INTERVAL_S = 0.5
_STALL_S = 0.25  # a pause of this process that is longer proves nothing about the server
_UNKNOWN_TYPES = 16  # that are warned of
_DRAIN_S = 1.0  # after `closed`: the last acknowledgements
# Triton's own words for a chunk of a sequence that it has forgotten.
_SEQUENCE_FORGOTTEN = "START flag"
# And for one of a session whose process has died, or was stopped and will be killed for it.
_PROCESS_GONE = ("Stub process ", "Failed to obtain the health mutex")
_log = logging.getLogger("parley.client")


class ServerStream:
    """One session on one server: sends what its feed returns, and passes events on.

    Args:
        stream: The open stream; owned by this object.
        start: How the session is opened.
        feed: What is to be sent.
        stats: Counts.
        deadlines: Limits of every wait.
        on_event: Gets every event; while it waits, nothing is received.
        on_end: Called once, when no further event will come.
        is_reading: Whether the application takes events, or ``on_event`` would wait for it.
        on_silent: Called while :attr:`is_silent`, now and then; None: nobody minds.
        holds: The stream pauses as soon as the session is open, and ``connected`` is not passed on.
    """

    def __init__(
        self,
        stream: CallStream,
        *,
        start: protocol.Start,
        feed: StreamFeed,
        stats: CallStats,
        deadlines: Deadlines,
        on_event: Callable[[ServerEvent], Awaitable[None]],
        on_end: Callable[[ServerStream, ParleyError], None],
        is_reading: Callable[[], bool],
        on_silent: Callable[[], None] | None = None,
        holds: bool = False,
    ) -> None:
        self.stream = stream
        self._start = start
        self._feed = feed
        self._stats = stats
        self._in_flight = InFlight(stats)
        self._deadlines = deadlines
        self._on_event = on_event
        self._on_end = on_end
        self._is_reading = is_reading
        self._on_silent = on_silent
        self._holds = holds
        self._tasks: list[asyncio.Task[None]] = []
        self._reading = True
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._is_left = False
        self._unknown: set[str] = set()
        self._read_since_s = time.perf_counter()
        self._sending_since_s: float | None = None
        self.connected: asyncio.Future[protocol.Connected] = asyncio.get_running_loop().create_future()
        self.is_over = asyncio.Event()
        """No further event will come."""
        self.is_silent = False
        """Whether an acknowledgement is late by ``Deadlines.suspect_s``."""
        self.failure: ParleyError | None = None
        """Why the session was lost."""
        self.closed: protocol.Closed | None = None
        """How the server ended the session."""

    def begin(self, name: str) -> None:
        """Send START and whatever the feed has; ``connected`` gets the answer."""
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._receive_all(), name=f"call-{name}-receive"),
            loop.create_task(self._send_all(), name=f"call-{name}-send"),
            loop.create_task(self._watch(), name=f"call-{name}-watch"),
        ]

    def pause(self) -> None:
        """Send and handle nothing more, until :meth:`resume` or :meth:`drain`."""
        self._feed.pause()
        self._flowing.clear()

    def resume(self, repeated: Sequence[OutgoingMessage] = ()) -> None:
        """Go on; ``repeated`` is sent first."""
        self._read_since_s = time.perf_counter()
        self._flowing.set()
        self._feed.resume(repeated)

    async def drain(self) -> None:
        """Send END, and let the stream end by itself, within a second.

        A stream that is cancelled while the server is about to end it can take Triton 24.10 with it.
        """
        self._feed.finish()
        await asyncio.wait(self._tasks[:1], timeout=_DRAIN_S)

    def drop(self) -> None:
        """From now on what comes is dropped."""
        self._is_left = True
        self._in_flight.clear()
        self._flowing.set()
        self.connected.cancel()

    async def leave(self) -> None:
        """As :meth:`drain`, after :meth:`drop`."""
        self.drop()
        await self.drain()

    async def stop(self) -> None:
        """Drop the stream and end the tasks."""
        self.fail(CallEndedError("the call was closed"))
        self.stream.cancel()
        await cancel_all(self._tasks)
        self._in_flight.clear()

    def fail(self, failure: ParleyError, cause: Exception | None = None) -> None:
        """End the session with its first failure; later ones are only consequences."""
        if self.is_over.is_set():
            return
        failure.__cause__ = cause
        self.failure = failure
        if not self.connected.done():
            self.connected.set_exception(cause if isinstance(cause, ParleyError) else failure)
        self._end(failure)

    # --- out ------------------------------------------------------------------------------

    async def _send_all(self) -> None:
        """Send until the end mark; END is sent even after ``closed``: only it frees the sequence's slot."""
        try:
            await self._send(Frame(_START_ID, message=protocol.encode(self._start), start=True))
            number, unasked_bytes = 0, _ACKNOWLEDGED_BYTES
            while not (content := await self._feed.get()).end:
                number += 1
                unasked_bytes += len(content.audio)
                ask = bool(content.message) or unasked_bytes >= _ACKNOWLEDGED_BYTES
                unasked_bytes = 0 if ask else unasked_bytes
                await self._send(
                    Frame(str(number), message=content.message, audio=content.audio, acknowledged=ask)
                )
            await self._send(Frame(_END_ID, end=True, goes_on=self._is_left))
            await self.stream.finish()
        except Exception as error:  # noqa: BLE001 - the reason of the call's end
            self.fail(CallLostError(f"sending failed: {error}"), error)

    async def _send(self, frame: Frame) -> None:
        if not self.stream.acknowledges:
            frame = replace(frame, acknowledged=False)
        self._in_flight.on_sent(frame)
        self._sending_since_s = time.perf_counter()
        await self.stream.send(frame)
        self._sending_since_s = None

    async def _watch(self) -> None:
        """Notice a server that keeps the connection open but has stopped answering."""
        limit_s, suspect_s = self._deadlines.acknowledge_s, self._deadlines.suspect_s
        interval_s = _WATCH_INTERVAL_S if self._on_silent is None else min(_WATCH_INTERVAL_S, suspect_s / 4)
        while not self.is_over.is_set():
            began_s = time.perf_counter()
            await asyncio.sleep(interval_s)
            if time.perf_counter() - began_s > interval_s + _STALL_S:
                continue  # this process stood still, and what has come was not read yet
            if self._waited_s > limit_s:
                self.fail(CallLostError(f"the server acknowledged nothing for {limit_s:g} s"))
                self.stream.cancel()
            elif self._on_silent is not None and self._waited_s > suspect_s:
                self.is_silent = self.connected.done()
                self._on_silent()

    @property
    def _waited_s(self) -> float:
        """How long the server could have taken or acknowledged the oldest request, and did not (seconds).

        While the application reads no events, acknowledgements are not read either.
        """
        if not self._reading or not self._flowing.is_set():
            return 0.0
        now = time.perf_counter()
        sending_s = 0.0 if self._sending_since_s is None else now - self._sending_since_s
        return min(max(self._in_flight.oldest_wait_s, sending_s), now - self._read_since_s)

    # --- in -------------------------------------------------------------------------------

    async def _receive_all(self) -> None:
        """Take replies until the stream ends; those that follow a failure are dropped."""
        try:
            while (reply := await self._receive()) is not None:
                await self._flowing.wait()
                if self.failure is None and not self._is_left:
                    await self._handle_or_fail(reply)
            self.fail(CallLostError("the server ended the stream without closing the call"))
        except CallLostError as error:
            self.fail(error)
        except Exception as error:  # noqa: BLE001 - the reason of the call's end
            self.fail(CallLostError(f"the stream broke: {error}"), error)
        finally:
            # Only a cancelled task gets here with the call still open.
            self.fail(CallLostError("the task that receives was cancelled"))

    async def _handle_or_fail(self, reply: ServerReply) -> None:
        try:
            await self._handle_reply(reply)
        except (CallLostError, SlowConsumerError) as error:
            self.fail(error)
        except Exception as error:  # noqa: BLE001 - the reason of the call's end
            self.fail(CallLostError(f"the stream broke: {error}"), error)

    async def _receive(self) -> ServerReply | None:
        try:
            async with asyncio.timeout(self._deadlines.silence_s):
                return await self.stream.receive()
        except TimeoutError as error:
            silence = f"nothing came from the server for {self._deadlines.silence_s:g} s"
            raise CallLostError(silence) from error

    async def _handle_reply(self, reply: ServerReply) -> None:
        if reply.final or reply.error:
            self._in_flight.on_acknowledged(reply.request_id)
        try:
            if reply.error:
                raise from_wire(reply.error)
            if reply.event:
                await self._deliver(reply)
        except ParleyError as error:
            if self.closed is not None:
                return  # END of a session that the server has closed by itself
            if not reply.error or self._is_fatal(error, reply):
                raise
            self.is_silent = False
            await self._pass_on(protocol.ErrorEvent.of(error))
        else:
            if reply.final:
                self.is_silent = False

    def _is_fatal(self, error: ParleyError, reply: ServerReply) -> bool:
        """Whether a failed request means that there is no session (any more)."""
        forgotten = isinstance(error, SessionNotFoundError) or _SEQUENCE_FORGOTTEN in reply.error
        gone = str(error).startswith(_PROCESS_GONE)
        # A server that has not got a request counts audio and messages otherwise than this side.
        counts = self._feed.is_counted
        return forgotten or gone or counts or reply.request_id in (_START_ID, "") or not self.connected.done()

    async def _deliver(self, reply: ServerReply) -> None:
        try:
            event = read_event(reply)
        except UnknownEventError as error:
            self._skip(error)
            return
        except InvalidMessageError as error:
            await self._pass_on(protocol.ErrorEvent.of(error))
            return
        self._stats.events += 1
        if isinstance(event, protocol.Connected):
            self._in_flight.forget(_START_ID)
            if not self.connected.done():
                self.connected.set_result(event)
            if self._holds:
                self.pause()
                return
        elif isinstance(event, protocol.ErrorEvent) and not self.connected.done():
            raise event.to_error()
        elif _is_unknown_session(event, reply):
            raise SessionNotFoundError(event.message)
        elif self._holds and not self.connected.done() and not isinstance(event, protocol.Checkpoint):
            raise InferenceError(f"the server began with {type(event).__name__}")
        await self._pass_on(event)
        if isinstance(event, protocol.Closed):
            self.closed = event
            self._end(CallEndedError(f"the server closed the call: {event.reason}"))

    def _skip(self, error: UnknownEventError) -> None:
        """Warn once for each type, of a bounded number of types."""
        if error.kind not in self._unknown and len(self._unknown) < _UNKNOWN_TYPES:
            self._unknown.add(error.kind)
            _log.warning("the server is newer than this client: %s, and skipped", error)

    async def _pass_on(self, event: ServerEvent) -> None:
        self._reading = self._is_reading()
        try:
            await self._on_event(event)
        finally:
            if not self._reading:
                self._reading, self._read_since_s = True, time.perf_counter()

    def _end(self, reason: ParleyError) -> None:
        self.is_over.set()
        self._on_end(self, reason)


def _is_unknown_session(event: ServerEvent, reply: ServerReply) -> TypeGuard[protocol.ErrorEvent]:
    """Whether the agent knows no session of this request; failures of a session come on the first one's."""
    is_error = isinstance(event, protocol.ErrorEvent) and event.code == SessionNotFoundError.code
    return is_error and reply.request_id.isdecimal()
