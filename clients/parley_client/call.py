"""One conversation."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from parley import protocol
from parley.errors import (
    DeadlineExceededError,
    InvalidMessageError,
    ParleyError,
    SessionNotFoundError,
    from_wire,
)
from parley_client.errors import CallEndedError, CallLostError, SlowConsumerError
from parley_client.events import CallEvent, read_event
from parley_client.inbox import Inbox
from parley_client.options import Bounds, Deadlines
from parley_client.outbox import BYTES_PER_MS, Outbox
from parley_client.stats import CallStats
from parley_client.tools import ToolTable
from parley_client.transport import Frame, Reply, Stream

_START_ID = "start"
_END_ID = "end"
_WATCH_INTERVAL_S = 0.5
_DRAIN_S = 1.0  # after `closed`: the last acknowledgements
_MAX_TOOL_TASKS = 64
# Triton's own words for a chunk of a sequence that it has forgotten.
_SEQUENCE_FORGOTTEN = "START flag"


class Call:
    """An open conversation: send audio, iterate over events, leave the ``async with`` to hang up.

    Made by :func:`parley_client.connect`. It belongs to the event loop that opened it, and its
    events have one reader.

    Args:
        stream: The open stream; the call owns it.
        call_id: The sequence's correlation id.
        start: How the session is opened.
        tools: Answers tool requests by itself; None: the application answers them with
            :meth:`respond`.
        deadlines: Limits of every wait.
        bounds: Limits of the queues.
    """

    def __init__(
        self,
        stream: Stream,
        call_id: str,
        start: protocol.Start,
        *,
        tools: ToolTable | None = None,
        deadlines: Deadlines | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        deadlines, bounds = deadlines or Deadlines(), bounds or Bounds()
        self.id = call_id
        self.stats = CallStats()
        self._stream = stream
        self._start = start
        self._tools = tools
        self._deadlines = deadlines
        self._outbox = Outbox(bounds.audio_ms, bounds.messages)
        self._inbox = Inbox(bounds.events, deadlines.consumer_s)
        self._half_sample = b""
        self._max_chunk_bytes = protocol.MAX_CHUNK_MS * BYTES_PER_MS
        self._tasks: list[asyncio.Task[None]] = []
        self._tool_tasks: set[asyncio.Task[None]] = set()
        self._connected: asyncio.Future[protocol.Connected] | None = None
        self._over = asyncio.Event()
        self._failure: ParleyError | None = None
        self._closed: protocol.Closed | None = None

    # --- life -----------------------------------------------------------------------------

    async def open(self) -> protocol.Connected:
        """Send START and wait for ``connected``.

        Raises:
            ParleyError: what the server answered instead.
            DeadlineExceededError: no answer within ``Deadlines.connect_s``.
        """
        loop = asyncio.get_running_loop()
        self._connected = loop.create_future()
        self._tasks = [
            loop.create_task(self._receive_all(), name=f"call-{self.id}-receive"),
            loop.create_task(self._send_all(), name=f"call-{self.id}-send"),
            loop.create_task(self._watch(), name=f"call-{self.id}-watch"),
        ]
        try:
            async with asyncio.timeout(self._deadlines.connect_s):
                connected = await self._connected
        except TimeoutError as error:
            waited = f"the server did not answer within {self._deadlines.connect_s:g} s"
            raise DeadlineExceededError(waited) from error
        self._max_chunk_bytes = connected.max_chunk_ms * BYTES_PER_MS
        return connected

    async def hang_up(self) -> protocol.Closed | None:
        """End the call: what is queued is still sent, then the server is told.

        Events can still be read afterwards, up to ``closed``.

        Returns:
            The server's ``closed``; None if it did not come within ``Deadlines.close_s`` or the
            call is lost.
        """
        self._outbox.end()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._deadlines.close_s):
                await self._over.wait()
        return self._closed

    async def aclose(self) -> None:
        """Hang up, drop events that nobody read, and free everything."""
        self._inbox.discard()
        try:
            if self._connected is not None and self._connected.done() and not self._connected.cancelled():
                await self.hang_up()
                await asyncio.wait(self._tasks[:1], timeout=_DRAIN_S)
        finally:
            self._fail(CallEndedError("the call was closed"))
            self._stream.cancel()
            tasks = [*self._tasks, *self._tool_tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def closed(self) -> protocol.Closed | None:
        """How the server ended the call; None while it lasts, or if it was lost."""
        return self._closed

    @property
    def is_over(self) -> bool:
        """Whether no further event will come."""
        return self._over.is_set()

    # --- sending --------------------------------------------------------------------------

    async def send_audio(self, pcm: bytes | NDArray[np.int16]) -> None:
        """Send 16 kHz mono PCM16 of any length, waiting while the send queue is full.

        Raises:
            DeadlineExceededError: no room within ``Deadlines.send_s``.
            CallEndedError: the call has ended.
            CallLostError: the call was lost.
        """
        for chunk in self._chunks(pcm):
            await self._outbox.put_audio(chunk, self._deadlines.send_s)

    def offer_audio(self, pcm: bytes | NDArray[np.int16]) -> float:
        """Send without waiting: the oldest queued audio gives way.

        Returns:
            How much was dropped (milliseconds); ``stats.dropped_audio_ms`` adds it up.

        Raises:
            CallEndedError: the call has ended.
            CallLostError: the call was lost.
        """
        dropped = sum(self._outbox.offer_audio(chunk) for chunk in self._chunks(pcm)) / BYTES_PER_MS
        self.stats.dropped_audio_ms += dropped
        return dropped

    def respond(self, response: protocol.ToolResponse) -> None:
        """Answer a ``tool_request`` (with a tool table this happens by itself)."""
        self._outbox.put_message(protocol.encode(response))

    def mute(self) -> None:
        """Let the server ignore the audio that follows."""
        self._outbox.put_message(protocol.encode(protocol.Control(action="mute")))

    def unmute(self) -> None:
        """Let the server listen again."""
        self._outbox.put_message(protocol.encode(protocol.Control(action="unmute")))

    def report_playback(self, response_id: str, played_ms: float) -> None:
        """Tell how much of a response has been heard (milliseconds)."""
        mark = protocol.Playback(response_id=response_id, played_ms=round(played_ms))
        self._outbox.put_message(protocol.encode(mark))

    def _chunks(self, pcm: bytes | NDArray[np.int16]) -> list[bytes]:
        """Whole samples, in pieces that the server takes; half a sample waits for its other half."""
        raw = self._half_sample + (
            np.asarray(pcm, "<i2").tobytes() if isinstance(pcm, np.ndarray) else bytes(pcm)
        )
        whole = len(raw) - len(raw) % 2
        self._half_sample = raw[whole:]
        size = self._max_chunk_bytes
        return [raw[at : min(at + size, whole)] for at in range(0, whole, size)]

    # --- receiving ------------------------------------------------------------------------

    def __aiter__(self) -> Call:
        return self

    async def __anext__(self) -> CallEvent:
        """The next event; the iteration ends after ``closed``.

        Raises:
            CallLostError: the stream broke, or the server stopped answering.
            SlowConsumerError: events were not read in time.
        """
        event = await self._inbox.get()
        if event is not None:
            return event
        if self._failure is not None and self._closed is None:
            raise self._failure
        raise StopAsyncIteration

    # --- tasks ----------------------------------------------------------------------------

    async def _send_all(self) -> None:
        """Move requests from the outbox to the stream; END is sent even after ``closed``.

        Only END makes Triton give the sequence's slot to somebody else.
        """
        try:
            await self._send(Frame(_START_ID, message=protocol.encode(self._start), start=True))
            number = 0
            while not (parcel := await self._outbox.get()).end:
                number += 1
                await self._send(Frame(str(number), message=parcel.message, audio=parcel.audio))
            await self._send(Frame(_END_ID, end=True))
            await self._stream.finish()
        except ParleyError as error:
            self._fail(CallLostError(f"sending failed: {error}"), error)

    async def _send(self, frame: Frame) -> None:
        self.stats.note_sent(frame.request_id)
        await self._stream.send(frame)

    async def _receive_all(self) -> None:
        """Move replies from the stream to the inbox, until the stream ends."""
        try:
            while (reply := await self._receive()) is not None:
                await self._take(reply)
            self._fail(CallLostError("the server ended the stream without a word"))
        except (CallLostError, SlowConsumerError) as error:
            self._fail(error)
        except ParleyError as error:
            self._fail(CallLostError(f"the stream broke: {error}"), error)

    async def _receive(self) -> Reply | None:
        try:
            async with asyncio.timeout(self._deadlines.silence_s):
                return await self._stream.receive()
        except TimeoutError as error:
            silence = f"nothing came from the server for {self._deadlines.silence_s:g} s"
            raise CallLostError(silence) from error

    async def _take(self, reply: Reply) -> None:
        if reply.final or reply.error:
            self.stats.note_acknowledged(reply.request_id)
        try:
            if reply.error:
                raise from_wire(reply.error)
            if reply.event:
                await self._deliver(read_event(reply))
        except InvalidMessageError as error:
            await self._deliver(protocol.ErrorEvent.of(error))
        except ParleyError as error:
            if self._closed is not None:
                return  # END of a session that the server has closed by itself
            forgotten = isinstance(error, SessionNotFoundError) or _SEQUENCE_FORGOTTEN in reply.error
            if not reply.error or forgotten or reply.request_id in (_START_ID, "") or self._is_connecting:
                raise
            await self._deliver(protocol.ErrorEvent.of(error))

    @property
    def _is_connecting(self) -> bool:
        return self._connected is not None and not self._connected.done()

    async def _deliver(self, event: CallEvent) -> None:
        self.stats.events += 1
        if isinstance(event, protocol.Connected):
            self.stats.keep_open(_START_ID)
            if self._connected is not None and not self._connected.done():
                self._connected.set_result(event)
        elif isinstance(event, protocol.ErrorEvent) and self._is_connecting:
            raise from_wire(f"{event.code}: {event.message}")
        elif isinstance(event, protocol.ToolRequest) and self._tools is not None:
            self._start_tool(event, self._tools)
        await self._inbox.put(event)
        if isinstance(event, protocol.Closed):
            self._closed = event
            self._end(CallEndedError(f"the server closed the call: {event.reason}"))

    def _start_tool(self, request: protocol.ToolRequest, tools: ToolTable) -> None:
        if len(self._tool_tasks) >= _MAX_TOOL_TASKS:
            busy = {"error": "too many tools are running"}
            self.respond(protocol.ToolResponse(call_id=request.call_id, output=busy, is_error=True))
            return
        task = asyncio.get_running_loop().create_task(self._answer(request, tools), name=request.call_id)
        self._tool_tasks.add(task)
        task.add_done_callback(self._tool_tasks.discard)

    async def _answer(self, request: protocol.ToolRequest, tools: ToolTable) -> None:
        response = await tools.answer(request)
        try:
            self.respond(response)
        except ParleyError as error:
            self._fail(CallLostError(f"tool {request.name} could not be answered: {error}"), error)

    async def _watch(self) -> None:
        """Notice a server that keeps the connection open but has stopped answering."""
        while not self._over.is_set():
            await asyncio.sleep(_WATCH_INTERVAL_S)
            if self.stats.oldest_wait_s > self._deadlines.acknowledge_s:
                waited = f"{self._deadlines.acknowledge_s:g} s"
                self._fail(CallLostError(f"the server acknowledged nothing for {waited}"))
                self._stream.cancel()

    # --- the end --------------------------------------------------------------------------

    def _fail(self, failure: ParleyError, cause: ParleyError | None = None) -> None:
        """End the call with its first failure; later ones are only consequences."""
        if self._over.is_set():
            return
        failure.__cause__ = cause
        self._failure = failure
        if self._connected is not None and not self._connected.done():
            self._connected.set_exception(cause or failure)
        self._end(failure)

    def _end(self, reason: ParleyError) -> None:
        """Wake everyone: senders get ``reason``, the reader the end of its iteration."""
        self._over.set()
        self._outbox.end(reason)
        self._inbox.end()
