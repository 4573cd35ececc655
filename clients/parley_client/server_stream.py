"""The tasks between a call's stream and its two queues, and the counters of the call."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from parley import protocol
from parley.errors import InvalidMessageError, ParleyError, SessionNotFoundError, from_wire
from parley_client.errors import CallEndedError, CallLostError, SlowConsumerError, UnknownEventError
from parley_client.events import CallEvent, read_event
from parley_client.options import Deadlines
from parley_client.queues import BYTES_PER_MS, EventQueue, SendQueue
from parley_client.transport import CallStream, Frame, ServerReply

_REMEMBERED = 16_384

# Every acknowledgement is a message of its own; one for so much audio is enough to notice a hanging server.
_ACKNOWLEDGED_BYTES = 250 * BYTES_PER_MS
_START_ID = "start"
_END_ID = "end"
_WATCH_INTERVAL_S = 0.5
_UNKNOWN_TYPES = 16  # that are warned of
_DRAIN_S = 1.0  # after `closed`: the last acknowledgements
# Triton's own words for a chunk of a sequence that it has forgotten.
_SEQUENCE_FORGOTTEN = "START flag"
# And for one of a session whose process has died, or was stopped and will be killed for it.
_PROCESS_GONE = ("Stub process ", "Failed to obtain the health mutex")


@dataclass
class CallStats:
    """Counters of one call, and when requests were acknowledged."""

    sent: int = 0
    """Requests handed to the network."""
    acknowledged: int = 0
    """Requests that the server has handled: all with a message, and for audio about four in a second."""
    events: int = 0
    dropped_audio_ms: float = 0.0
    """Audio given to ``offer_audio`` that found no room (milliseconds)."""
    round_trips_ms: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED), repr=False)
    """Request to acknowledgement (milliseconds); the newest ones."""
    _in_flight: dict[str, float] = field(default_factory=dict, repr=False)

    def on_sent(self, frame: Frame) -> None:
        """Count a request."""
        self.sent += 1
        if frame.acknowledged:
            self._in_flight[frame.request_id] = time.perf_counter()

    def on_acknowledged(self, request_id: str) -> None:
        """Measure a request that the server has answered completely."""
        began = self._in_flight.pop(request_id, None)
        if began is not None:
            self.acknowledged += 1
            self.round_trips_ms.append(1000 * (time.perf_counter() - began))

    def forget_request(self, request_id: str) -> None:
        """Do not measure a request whose answer lasts as long as the call."""
        self._in_flight.pop(request_id, None)

    @property
    def in_flight(self) -> int:
        """Requests whose acknowledgement is due."""
        return len(self._in_flight)

    @property
    def oldest_wait_s(self) -> float:
        """How long the oldest unacknowledged request has waited (seconds)."""
        return time.perf_counter() - next(iter(self._in_flight.values())) if self._in_flight else 0.0


_log = logging.getLogger("parley.client")


class ServerStream:
    """Moves requests from the send queue to the stream and events from the stream to the event queue.

    Args:
        stream: The open stream; owned by this object.
        start: How the session is opened.
        outbox: What is to be sent.
        inbox: Gets the events.
        stats: Counts.
        deadlines: Limits of every wait.
        on_tool_event: Called with each, whether or not events are read.
    """

    def __init__(
        self,
        stream: CallStream,
        *,
        start: protocol.Start,
        outbox: SendQueue,
        inbox: EventQueue[CallEvent],
        stats: CallStats,
        deadlines: Deadlines,
        on_tool_event: Callable[[protocol.ToolRequest | protocol.ToolCancelled], None] | None = None,
    ) -> None:
        self._stream = stream
        self._start = start
        self._outbox = outbox
        self._inbox = inbox
        self._stats = stats
        self._deadlines = deadlines
        self._on_tool_event = on_tool_event
        self._tasks: list[asyncio.Task[None]] = []
        self._reading = True
        self._unknown: set[str] = set()
        self._read_since_s = time.perf_counter()
        self._sending_since_s: float | None = None
        self.connected: asyncio.Future[protocol.Connected] = asyncio.get_running_loop().create_future()
        self.is_over = asyncio.Event()
        """No further event will come."""
        self.failure: ParleyError | None = None
        """Why the call was lost."""
        self.closed: protocol.Closed | None = None
        """How the server ended the call."""

    def begin(self, name: str) -> None:
        """Send START and whatever the outbox holds; ``connected`` gets the answer."""
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._receive_all(), name=f"call-{name}-receive"),
            loop.create_task(self._send_all(), name=f"call-{name}-send"),
            loop.create_task(self._watch(), name=f"call-{name}-watch"),
        ]

    async def drain(self) -> None:
        """Send END, and let the stream end by itself, within a second.

        A stream that is cancelled while the server is about to end it can take Triton 24.10 with it.
        """
        self._outbox.end()
        await asyncio.wait(self._tasks[:1], timeout=_DRAIN_S)

    async def stop(self) -> None:
        """Drop the stream and end the tasks."""
        self.fail(CallEndedError("the call was closed"))
        self._stream.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def fail(self, failure: ParleyError, cause: Exception | None = None) -> None:
        """End the call with its first failure; later ones are only consequences."""
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
            while not (content := await self._outbox.get()).end:
                number += 1
                unasked_bytes += len(content.audio)
                ask = bool(content.message) or unasked_bytes >= _ACKNOWLEDGED_BYTES
                unasked_bytes = 0 if ask else unasked_bytes
                await self._send(
                    Frame(str(number), message=content.message, audio=content.audio, acknowledged=ask)
                )
            await self._send(Frame(_END_ID, end=True))
            await self._stream.finish()
        except Exception as error:  # noqa: BLE001 - the reason of the call's end
            self.fail(CallLostError(f"sending failed: {error}"), error)

    async def _send(self, frame: Frame) -> None:
        if not self._stream.acknowledges:
            frame = replace(frame, acknowledged=False)
        self._stats.on_sent(frame)
        self._sending_since_s = time.perf_counter()
        await self._stream.send(frame)
        self._sending_since_s = None

    async def _watch(self) -> None:
        """Notice a server that keeps the connection open but has stopped answering."""
        while not self.is_over.is_set():
            await asyncio.sleep(_WATCH_INTERVAL_S)
            if self._waited_s > self._deadlines.acknowledge_s:
                waited = f"{self._deadlines.acknowledge_s:g} s"
                self.fail(CallLostError(f"the server acknowledged nothing for {waited}"))
                self._stream.cancel()

    @property
    def _waited_s(self) -> float:
        """How long the server could have taken or acknowledged the oldest request, and did not (seconds).

        While the application reads no events, acknowledgements are not read either.
        """
        if not self._reading:
            return 0.0
        now = time.perf_counter()
        sending_s = 0.0 if self._sending_since_s is None else now - self._sending_since_s
        return min(max(self._stats.oldest_wait_s, sending_s), now - self._read_since_s)

    # --- in -------------------------------------------------------------------------------

    async def _receive_all(self) -> None:
        """Take replies until the stream ends; those that follow a failure are dropped."""
        try:
            while (reply := await self._receive()) is not None:
                if self.failure is None:
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
                return await self._stream.receive()
        except TimeoutError as error:
            silence = f"nothing came from the server for {self._deadlines.silence_s:g} s"
            raise CallLostError(silence) from error

    async def _handle_reply(self, reply: ServerReply) -> None:
        if reply.final or reply.error:
            self._stats.on_acknowledged(reply.request_id)
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
            await self._queue(protocol.ErrorEvent.of(error))

    def _is_fatal(self, error: ParleyError, reply: ServerReply) -> bool:
        """Whether a failed request means that there is no session (any more)."""
        forgotten = isinstance(error, SessionNotFoundError) or _SEQUENCE_FORGOTTEN in reply.error
        gone = str(error).startswith(_PROCESS_GONE)
        return forgotten or gone or reply.request_id in (_START_ID, "") or not self.connected.done()

    async def _deliver(self, reply: ServerReply) -> None:
        try:
            event = read_event(reply)
        except UnknownEventError as error:
            self._skip(error)
            return
        except InvalidMessageError as error:
            await self._queue(protocol.ErrorEvent.of(error))
            return
        self._stats.events += 1
        if isinstance(event, protocol.Connected):
            self._stats.forget_request(_START_ID)
            if not self.connected.done():
                self.connected.set_result(event)
        elif isinstance(event, protocol.ErrorEvent) and not self.connected.done():
            raise from_wire(f"{event.code}: {event.message}")
        elif isinstance(event, protocol.ToolRequest | protocol.ToolCancelled) and self._on_tool_event:
            self._on_tool_event(event)
        await self._queue(event)
        if isinstance(event, protocol.Closed):
            self.closed = event
            self._end(CallEndedError(f"the server closed the call: {event.reason}"))

    def _skip(self, error: UnknownEventError) -> None:
        """Warn once for each type, of a bounded number of types."""
        if error.kind not in self._unknown and len(self._unknown) < _UNKNOWN_TYPES:
            self._unknown.add(error.kind)
            _log.warning("the server is newer than this client: %s, and skipped", error)

    async def _queue(self, event: CallEvent) -> None:
        self._reading = not self._inbox.is_full
        try:
            await self._inbox.put(event)
        finally:
            if not self._reading:
                self._reading, self._read_since_s = True, time.perf_counter()

    def _end(self, reason: ParleyError) -> None:
        """Wake all waiters: senders get ``reason``, the reader the end of its iteration."""
        self.is_over.set()
        self._outbox.end(reason)
        self._inbox.end()
